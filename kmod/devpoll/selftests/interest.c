// SPDX-License-Identifier: GPL-2.0
/* Adding, modifying and removing interest: write(), pwrite(), writev(), DP_ISPOLLED. */
#include "util.h"

#include <sys/resource.h>
#include <sys/uio.h>

static int is_polled(int set, int fd, short *events)
{
	struct pollfd question = { fd, 0, 0 };
	int answer = OK(ioctl(set, DP_ISPOLLED, &question));

	*events = question.revents;
	CHECK_EQ(question.fd, fd);
	return answer;
}

TEST(interest_add_then_report)
{
	struct pair pair = tcp_pair();
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	set_poll_none(set, 0);
	make_readable(pair.b);
	CHECK_EQ(set_poll_one(set, pair.a, LONG_MS), POLLIN);
}

TEST(interest_add_of_what_is_ready_already)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	int set = set_open();

	make_readable(pair.b);
	set_write(set, pair.a, POLLIN | POLLOUT);
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLIN | POLLOUT);
}

TEST(interest_sets_are_independent)
{
	struct pair pair = tcp_pair();
	int first = set_open(), second = set_open();
	short events;

	set_write(first, pair.a, POLLIN);
	set_write(second, pair.a, POLLOUT);
	make_readable(pair.b);
	CHECK_EQ(set_poll_one(first, pair.a, LONG_MS), POLLIN);
	CHECK_EQ(set_poll_one(second, pair.a, 0), POLLOUT);
	set_remove(first, pair.a);
	set_poll_none(first, 0);
	CHECK_EQ(is_polled(second, pair.a, &events), 1);
}

TEST(interest_modify_replaces)
{
	struct pair pair = tcp_pair();
	int set = set_open();
	short events;

	set_write(set, pair.a, POLLIN);
	set_write(set, pair.a, POLLOUT);
	CHECK_EQ(is_polled(set, pair.a, &events), 1);
	CHECK_EQ(events, POLLOUT);
	make_readable(pair.b);
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLOUT);
	set_write(set, pair.a, 0);
	set_poll_none(set, 0);
	set_write(set, pair.a, POLLIN);
	CHECK_EQ(set_poll_one(set, pair.a, LONG_MS), POLLIN);
}

TEST(interest_modify_ors_if_asked)
{
	struct pair pair = tcp_pair();
	int set = set_open_with(DP_OPTION_OR);
	short events;

	set_write(set, pair.a, POLLIN);
	set_write(set, pair.a, POLLOUT);
	CHECK_EQ(is_polled(set, pair.a, &events), 1);
	CHECK_EQ(events, POLLIN | POLLOUT);
	make_readable(pair.b);
	while (set_poll_one(set, pair.a, LONG_MS) != (POLLIN | POLLOUT))
		sleep_ms(1);
	/* As on Solaris, a program removes single events by removing and adding the descriptor. */
	struct pollfd changes[] = { { pair.a, POLLREMOVE, 0 }, { pair.a, POLLIN, 0 } };

	CHECK_EQ(write(set, changes, sizeof(changes)), sizeof(changes));
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLIN);
}

/* Both kinds of programs run side by side; the node that a program opens decides. */
TEST(interest_modify_by_the_node_that_was_opened)
{
	int solaris = OK(open("/dev/poll", O_RDWR | O_CLOEXEC));
	int paper = OK(open("/dev/poll-replace", O_RDWR | O_CLOEXEC));
	struct pair pair = tcp_pair();
	short events;

	CHECK_EQ(OK(ioctl(solaris, DP_GETOPTIONS)), DP_OPTION_OR);
	CHECK_EQ(OK(ioctl(paper, DP_GETOPTIONS)), 0);
	set_write(solaris, pair.a, POLLIN);
	set_write(solaris, pair.a, POLLOUT);
	set_write(paper, pair.a, POLLIN);
	set_write(paper, pair.a, POLLOUT);
	CHECK_EQ(is_polled(solaris, pair.a, &events), 1);
	CHECK_EQ(events, POLLIN | POLLOUT);
	CHECK_EQ(is_polled(paper, pair.a, &events), 1);
	CHECK_EQ(events, POLLOUT);
	/* An option can still be changed for one open file. */
	OK(ioctl(solaris, DP_SETOPTIONS, 0));
	set_write(solaris, pair.a, POLLIN);
	CHECK_EQ(is_polled(solaris, pair.a, &events), 1);
	CHECK_EQ(events, POLLIN);
}

/* A batch has the same effect as a sequence of separate writes. */
TEST(interest_same_descriptor_twice_in_a_batch)
{
	struct pair pair = tcp_pair();
	struct pollfd changes[] = { { pair.a, POLLIN, 0 }, { pair.a, POLLOUT, 0 } };
	int paper = set_open(), solaris = set_open_with(DP_OPTION_OR);
	short events;

	CHECK_EQ(write(paper, changes, sizeof(changes)), sizeof(changes));
	CHECK_EQ(is_polled(paper, pair.a, &events), 1);
	CHECK_EQ(events, POLLOUT);
	CHECK_EQ(write(solaris, changes, sizeof(changes)), sizeof(changes));
	CHECK_EQ(is_polled(solaris, pair.a, &events), 1);
	CHECK_EQ(events, POLLIN | POLLOUT);
}

/*
 * Every descriptor in the set is reported as such, even a closed one or one without a slot in the
 * descriptor table.
 */
TEST(interest_is_polled_if_closed_or_beyond_the_table)
{
	int set = set_open();
	short events;

	set_write(set, 198, POLLIN);
	CHECK_EQ(is_polled(set, 198, &events), 1);
	set_write(set, 0x7fffffff, POLLIN);
	CHECK_EQ(is_polled(set, 0x7fffffff, &events), 1);
	CHECK_EQ(set_statistics(set).ds_entries, 2);
}

TEST(interest_remove)
{
	struct pair pair = tcp_pair();
	int set = set_open();
	short events;

	set_write(set, pair.a, POLLIN);
	make_readable(pair.b);
	set_remove(set, pair.a);
	set_poll_none(set, 0);
	CHECK_EQ(is_polled(set, pair.a, &events), 0);
	CHECK_EQ(set_statistics(set).ds_entries, 0);
}

TEST(interest_remove_of_unknown_is_no_error)
{
	int set = set_open();

	set_remove(set, 0);
	set_remove(set, 12345);
}

TEST(interest_remove_flag_wins_over_events)
{
	struct pair pair = tcp_pair();
	int set = set_open();
	short events;

	set_write(set, pair.a, POLLIN);
	set_write(set, pair.a, POLLREMOVE | POLLIN);
	CHECK_EQ(is_polled(set, pair.a, &events), 0);
}

TEST(interest_negative_descriptor_is_ignored)
{
	int set = set_open();
	short events;

	set_write(set, -1, POLLIN);
	set_write(set, INT32_MIN, POLLREMOVE);
	CHECK_EQ(set_statistics(set).ds_entries, 0);
	CHECK_EQ(is_polled(set, -1, &events), 0);
	set_poll_none(set, 0);
}

TEST(interest_length_must_be_whole_entries)
{
	int set = set_open();
	char bytes[24] = { 0 };

	for (size_t length = 1; length < sizeof(bytes); length++)
		if (length % sizeof(struct pollfd))
			CHECK_ERRNO(write(set, bytes, length), EINVAL);
	CHECK_EQ(write(set, bytes, 0), 0);
}

TEST(interest_pwrite)
{
	struct pair pair = tcp_pair();
	struct pollfd change = { pair.a, POLLOUT, 0 };
	int set = set_open();

	CHECK_EQ(pwrite(set, &change, sizeof(change), 0), sizeof(change));
	CHECK_EQ(pwrite(set, &change, sizeof(change), 1 << 20), sizeof(change));
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLOUT);
}

TEST(interest_writev_split_inside_an_entry)
{
	struct pair first = tcp_pair(), second = tcp_pair();
	struct pollfd changes[] = { { first.a, POLLOUT, 0 }, { second.a, POLLOUT, 0 } };
	struct iovec parts[] = {
		{ changes, 3 },
		{ (char *)changes + 3, 8 },
		{ (char *)changes + 11, sizeof(changes) - 11 },
	};
	struct pollfd results[4];
	int set = set_open();

	CHECK_EQ(writev(set, parts, 3), sizeof(changes));
	CHECK_EQ(set_poll(set, results, 4, 0), 2);
}

TEST(interest_batch_goes_on_behind_bad_entries)
{
	struct pair first = tcp_pair(), second = tcp_pair();
	int set = set_open(), other = set_open();
	struct pollfd changes[] = {
		{ first.a, POLLOUT, 0 },  { 4000, POLLREMOVE, 0 }, { -7, POLLIN, 0 },
		{ 4001, POLLREMOVE, 0 },  { second.a, POLLOUT, 0 },
	};
	struct pollfd loops[] = {
		{ first.a, POLLREMOVE, 0 }, { other, POLLIN, 0 }, { second.b, POLLOUT, 0 },
		{ set, POLLIN, 0 },	    { first.b, POLLOUT, 0 },
	};
	short events;

	CHECK_EQ(write(set, changes, sizeof(changes)), sizeof(changes));
	CHECK_EQ(is_polled(set, first.a, &events), 1);
	CHECK_EQ(is_polled(set, second.a, &events), 1);

	/* This must hold even if the write() fails. */
	CHECK_ERRNO(write(set, loops, sizeof(loops)), ELOOP);
	CHECK_EQ(is_polled(set, first.a, &events), 0);
	CHECK_EQ(is_polled(set, second.b, &events), 1);
	CHECK_EQ(is_polled(set, first.b, &events), 1);
	CHECK_EQ(is_polled(set, other, &events), 0);
	CHECK_EQ(is_polled(set, set, &events), 0);
}

TEST(interest_batch_larger_than_a_chunk)
{
	enum { COUNT = 1000 };
	static struct pollfd changes[COUNT], results[COUNT];
	int set = set_open();
	int fd = OK(open("/dev/null", O_RDWR | O_CLOEXEC));

	for (int i = 0; i < COUNT; i++)
		changes[i] = (struct pollfd){ OK(dup(fd)), POLLOUT, 0 };
	CHECK_EQ(write(set, changes, sizeof(changes)), sizeof(changes));
	CHECK_EQ(set_statistics(set).ds_entries, COUNT);
	CHECK_EQ(set_poll(set, results, COUNT, 0), COUNT);
}

TEST(interest_unreadable_batch)
{
	long page = sysconf(_SC_PAGESIZE);
	struct pair pair = tcp_pair();
	struct pollfd *edge;
	int set = set_open();
	char *pages;

	pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pages != MAP_FAILED);
	OK(munmap(pages + page, page));
	CHECK_ERRNO(write(set, pages + page, sizeof(struct pollfd)), EFAULT);
	edge = (struct pollfd *)(pages + page) - 1;
	*edge = (struct pollfd){ pair.a, POLLOUT, 0 };
	/* The entries that could be read are applied and counted. */
	CHECK_EQ(write(set, edge, 3 * sizeof(*edge)), sizeof(*edge));
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLOUT);
}

TEST(interest_descriptor_above_the_limit)
{
	struct pair pair = tcp_pair();
	struct rlimit limit = { 16, 0 };
	struct rlimit old;
	int set = set_open();
	int high = OK(fcntl(pair.a, F_DUPFD_CLOEXEC, 300));

	OK(getrlimit(RLIMIT_NOFILE, &old));
	limit.rlim_max = old.rlim_max;
	OK(setrlimit(RLIMIT_NOFILE, &limit));
	set_write(set, high, POLLOUT);
	CHECK_EQ(set_poll_one(set, high, 0), POLLOUT);
}

TEST(interest_is_polled)
{
	struct pair pair = tcp_pair();
	struct pollfd question = { pair.a, 0x7777, 0 };
	int set = set_open();
	short events = 0;

	CHECK_EQ(is_polled(set, pair.a, &events), 0);
	set_write(set, pair.a, POLLIN | POLLPRI);
	CHECK_EQ(is_polled(set, pair.a, &events), 1);
	CHECK_EQ(events, POLLIN | POLLPRI);
	CHECK_EQ(is_polled(set, pair.b, &events), 0);
	OK(ioctl(set, DP_ISPOLLED, &question));
	CHECK_EQ(question.events, 0x7777);
	CHECK_ERRNO(ioctl(set, DP_ISPOLLED, nowhere()), EFAULT);
}

TEST(interest_unknown_calls)
{
	int set = set_open();
	char byte;

	CHECK_ERRNO(ioctl(set, 0xD004, 0), EINVAL);
	CHECK_ERRNO(ioctl(set, 0xD0FF, 0), EINVAL);
	CHECK_ERRNO(ioctl(set, DP_SETOPTIONS, 0x10), EINVAL);
	CHECK_ERRNO(read(set, &byte, 1), EINVAL);
}

TEST(interest_options)
{
	int set = set_open(), other = set_open();

	for (int options = 0; options <= DP_OPTION_ALL; options++) {
		OK(ioctl(set, DP_SETOPTIONS, options));
		CHECK_EQ(OK(ioctl(set, DP_GETOPTIONS)), options);
		CHECK_EQ(OK(ioctl(other, DP_GETOPTIONS)), 0);
	}
	OK(ioctl(set, DP_SETOPTIONS, 0));
	set_write(set, 0, POLLIN);
	CHECK_ERRNO(ioctl(set, DP_SETOPTIONS, DP_OPTION_NOHINTS), EBUSY);
	OK(ioctl(set, DP_SETOPTIONS, DP_OPTION_TABLE | DP_OPTION_EXCLUSIVE | DP_OPTION_OR));
	set_remove(set, 0);
	OK(ioctl(set, DP_SETOPTIONS, DP_OPTION_NOHINTS));
}

/* The arguments are ints; a caller may leave anything in the upper half of a register. */
TEST(interest_upper_half_of_an_int_is_ignored)
{
	/* 0 in a 32-bit program. */
	const unsigned long upper = ~0UL << 16 << 16;
	int set = set_open();

	OK(ioctl(set, DP_SETOPTIONS, upper | DP_OPTION_OR));
	CHECK_EQ(OK(ioctl(set, DP_GETOPTIONS)), DP_OPTION_OR);
	OK(ioctl(set, DP_ALLOC, upper | 4));
	OK(ioctl(set, DP_FREE));
}

TEST(interest_options_by_module_default)
{
	int set;

	parameter_set("hints", "off");
	parameter_set("scan", "table");
	parameter_set("exclusive", "on");
	set = set_open();
	parameter_set("hints", "on");
	parameter_set("scan", "list");
	parameter_set("exclusive", "off");
	CHECK_EQ(OK(ioctl(set, DP_GETOPTIONS)),
		 DP_OPTION_NOHINTS | DP_OPTION_TABLE | DP_OPTION_EXCLUSIVE);
}
