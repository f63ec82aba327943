// SPDX-License-Identifier: GPL-2.0
/* DP_POLL: which descriptors it reports, how long it waits, and which events wake it. */
#include "util.h"

#include <sys/syscall.h>

TEST(waiting_result_has_all_members)
{
	struct pair pair = tcp_pair();
	struct pollfd result = { -5, 0, 0 };
	int set = set_open();

	set_write(set, pair.a, POLLIN | POLLOUT);
	CHECK_EQ(set_poll(set, &result, 1, 0), 1);
	CHECK_EQ(result.fd, pair.a);
	CHECK_EQ(result.events, POLLIN | POLLOUT);
	CHECK_EQ(result.revents, POLLOUT);
}

TEST(waiting_level_triggered)
{
	struct pair pair = tcp_pair();
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	make_readable(pair.b);
	for (int i = 0; i < 5; i++)
		CHECK_EQ(set_poll_one(set, pair.a, LONG_MS), POLLIN);
	drain(pair.a);
	set_poll_none(set, 0);
	make_readable(pair.b);
	CHECK_EQ(set_poll_one(set, pair.a, LONG_MS), POLLIN);
}

/*
 * At each wait another descriptor is ready; the previous one was read completely, read in part, or
 * ended.
 */
TEST(waiting_another_at_each_wait)
{
	enum { COUNT = 8 };
	struct pollfd results[COUNT];
	struct pair pairs[COUNT];
	int set = set_open();

	for (int i = 0; i < COUNT; i++) {
		pairs[i] = tcp_pair();
		set_write(set, pairs[i].a, POLLIN | POLLRDHUP);
	}
	for (int i = 0; i < 4 * COUNT; i++) {
		struct pair *pair = &pairs[i % COUNT];

		make_readable(pair->b);
		CHECK_EQ(set_poll_one(set, pair->a, LONG_MS), POLLIN);
		drain(pair->a);
	}
	/* It was not read, so it is reported together with the next one. */
	make_readable(pairs[0].b);
	CHECK_EQ(set_poll_one(set, pairs[0].a, LONG_MS), POLLIN);
	make_readable(pairs[1].b);
	CHECK_EQ(set_poll(set, results, COUNT, LONG_MS), 2);
	drain(pairs[0].a);
	drain(pairs[1].a);
	set_poll_none(set, 0);
	/* It was read, and then its peer ended: it is ready although no data is left. */
	make_readable(pairs[2].b);
	CHECK_EQ(set_poll_one(set, pairs[2].a, LONG_MS), POLLIN);
	drain(pairs[2].a);
	CHECK_EQ(shutdown(pairs[2].b, SHUT_WR), 0);
	make_readable(pairs[3].b);
	CHECK_EQ(set_poll(set, results, COUNT, LONG_MS), 2);
	CHECK_EQ(results[0].revents | results[1].revents, POLLIN | POLLRDHUP);
	set_write(set, pairs[2].a, POLLREMOVE);
	drain(pairs[3].a);
	set_poll_none(set, 0);
	/* It is closed while it is the only pending entry. */
	make_readable(pairs[4].b);
	CHECK_EQ(set_poll_one(set, pairs[4].a, LONG_MS), POLLIN);
	close(pairs[4].a);
	make_readable(pairs[5].b);
	CHECK_EQ(set_poll(set, results, COUNT, LONG_MS), 2);
	CHECK_EQ(results[0].revents ^ results[1].revents, POLLNVAL ^ POLLIN);
}

TEST(waiting_only_what_is_wanted)
{
	struct pair pair = tcp_pair();
	int set = set_open();

	set_write(set, pair.a, POLLPRI);
	make_readable(pair.b);
	set_poll_none(set, SHORT_MS);
	set_write(set, pair.a, POLLRDNORM);
	CHECK_EQ(set_poll_one(set, pair.a, LONG_MS), POLLRDNORM);
}

TEST(waiting_hang_up_and_error_are_always_reported)
{
	struct linger reset = { 1, 0 };
	struct pair pair = tcp_pair();
	int set = set_open();
	short events;

	set_write(set, pair.a, 0);
	set_poll_none(set, 0);
	OK(setsockopt(pair.b, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)));
	close(pair.b);
	events = set_poll_one(set, pair.a, LONG_MS);
	CHECK_EQ(events & ~(POLLERR | POLLHUP), 0);
	CHECK(events & POLLHUP);
}

TEST(waiting_shutdown)
{
	struct pair pair = tcp_pair();
	int set = set_open();

	set_write(set, pair.a, POLLIN | POLLRDHUP);
	OK(shutdown(pair.b, SHUT_WR));
	CHECK_EQ(set_poll_one(set, pair.a, LONG_MS), POLLIN | POLLRDHUP);
}

TEST(waiting_listen_and_connect)
{
	struct sockaddr_storage address;
	struct pollfd results[4];
	socklen_t length;
	int listener = tcp_listen(AF_INET, &address, &length);
	int client = OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
	int set = set_open();
	int found = 0;

	set_write(set, listener, POLLIN);
	set_poll_none(set, 0);
	if (connect(client, (struct sockaddr *)&address, length))
		CHECK_EQ(errno, EINPROGRESS);
	set_write(set, client, POLLOUT);
	for (int i = 0; i < 100 && found < 2; i++)
		found = OK(set_poll(set, results, 4, LONG_MS));
	CHECK_EQ(found, 2);
	close(OK(accept(listener, NULL, NULL)));
}

TEST(waiting_becomes_writable)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	struct waiter waiter;
	int set = set_open();

	set_write(set, pair.a, POLLOUT);
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLOUT);
	fill(pair.a);
	set_poll_none(set, 0);
	waiter_start(&waiter, set, LONG_MS);
	waiter_is_asleep(&waiter);
	drain(pair.b);
	CHECK_EQ(waiter_join(&waiter), 1);
}

/* The change happens between two reports: the socket becomes unwritable and writable again. */
TEST(waiting_tcp_becomes_writable_after_filling_behind_the_sets_back)
{
	struct pair pair = tcp_pair();
	struct waiter waiter;
	int set = set_open();

	set_write(set, pair.a, POLLOUT);
	fill(pair.a);
	waiter_start(&waiter, set, LONG_MS);
	waiter_is_asleep(&waiter);
	for (int i = 0; i < 1000 && !waiter.done; i++) {
		drain(pair.b);
		sleep_ms(1);
	}
	CHECK_EQ(waiter_join(&waiter), 1);
}

TEST(waiting_unix_datagram_peer_makes_room)
{
	struct pair pair = unix_pair(SOCK_DGRAM);
	struct waiter waiter;
	int set = set_open();

	set_write(set, pair.a, POLLOUT);
	fill(pair.a);
	waiter_start(&waiter, set, LONG_MS);
	waiter_is_asleep(&waiter);
	drain(pair.b);
	CHECK_EQ(waiter_join(&waiter), 1);
}

TEST(waiting_room_may_exceed_the_set)
{
	struct pair pair = tcp_pair();
	struct pollfd result[8];
	int set = set_open();

	CHECK_EQ(set_poll(set, result, INT32_MAX, 0), 0);
	set_write(set, pair.a, POLLOUT);
	CHECK_EQ(set_poll(set, result, INT32_MAX, 0), 1);
}

TEST(waiting_room_is_kept_to)
{
	enum { COUNT = 10 };
	struct pollfd results[COUNT + 1];
	struct pair pairs[COUNT];
	int set = set_open();

	for (int i = 0; i < COUNT; i++) {
		pairs[i] = unix_pair(SOCK_STREAM);
		set_write(set, pairs[i].a, POLLOUT);
	}
	for (int room = 1; room <= COUNT; room++) {
		memset(results, 0x55, sizeof(results));
		CHECK_EQ(set_poll(set, results, room, 0), room);
		CHECK_EQ(results[room].fd, 0x55555555);
	}
}

TEST(waiting_bad_arguments)
{
	struct pollfd result;
	struct pair pair = tcp_pair();
	int set = set_open();

	CHECK_ERRNO(set_poll(set, &result, -1, 0), EINVAL);
	CHECK_ERRNO(ioctl(set, DP_POLL, NULL), EFAULT);
	CHECK_ERRNO(set_poll(set, NULL, 1, 0), EINVAL);
	set_write(set, pair.a, POLLOUT);
	CHECK_ERRNO(set_poll(set, nowhere(), 1, 0), EFAULT);
	/* No event was lost. */
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLOUT);
}

TEST(waiting_results_end_at_an_unmapped_page)
{
	long page = sysconf(_SC_PAGESIZE);
	struct pair first = unix_pair(SOCK_STREAM), second = unix_pair(SOCK_STREAM);
	struct pollfd results[4];
	int set = set_open();
	char *pages;

	pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pages != MAP_FAILED);
	OK(munmap(pages + page, page));
	set_write(set, first.a, POLLOUT);
	set_write(set, second.a, POLLOUT);
	CHECK_ERRNO(set_poll(set, (struct pollfd *)(pages + page) - 1, 4, 0), EFAULT);
	CHECK_EQ(set_poll(set, results, 4, 0), 2);
}

TEST(waiting_no_room_sleeps)
{
	struct pair pair = tcp_pair();
	long before = now_ms();
	int set = set_open();

	set_write(set, pair.a, POLLOUT);
	CHECK_EQ(set_poll(set, NULL, 0, SHORT_MS), 0);
	CHECK(now_ms() - before >= SHORT_MS);
	CHECK_EQ(set_poll(set, NULL, 0, 0), 0);
}

TEST(waiting_time_is_never_cut_short)
{
	struct pair pair = tcp_pair();
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	for (int timeout = 1; timeout < 100; timeout += 13) {
		struct timespec before, after;
		long long ns;

		clock_gettime(CLOCK_MONOTONIC, &before);
		set_poll_none(set, timeout);
		clock_gettime(CLOCK_MONOTONIC, &after);
		ns = (after.tv_sec - before.tv_sec) * 1000000000LL + after.tv_nsec - before.tv_nsec;
		CHECK(ns >= timeout * 1000000LL);
	}
}

TEST(waiting_for_ever_until_ready)
{
	struct pair pair = tcp_pair();
	struct waiter waiter;
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	waiter_start(&waiter, set, -1);
	waiter_is_asleep(&waiter);
	make_readable(pair.b);
	CHECK_EQ(waiter_join(&waiter), 1);
	CHECK_EQ(waiter.results[0].fd, pair.a);
}

TEST(waiting_any_negative_timeout_is_for_ever)
{
	struct pair pair = tcp_pair();
	struct waiter waiter;
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	waiter_start(&waiter, set, INT32_MIN);
	waiter_is_asleep(&waiter);
	make_readable(pair.b);
	CHECK_EQ(waiter_join(&waiter), 1);
}

TEST(waiting_is_woken_by_an_addition)
{
	struct pair pair = tcp_pair();
	struct waiter waiter;
	int set = set_open();

	make_readable(pair.b);
	waiter_start(&waiter, set, LONG_MS);
	waiter_is_asleep(&waiter);
	set_write(set, pair.a, POLLIN);
	CHECK_EQ(waiter_join(&waiter), 1);
}

TEST(waiting_is_woken_by_a_modification)
{
	struct pair pair = tcp_pair();
	struct waiter waiter;
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	waiter_start(&waiter, set, LONG_MS);
	waiter_is_asleep(&waiter);
	set_write(set, pair.a, POLLOUT);
	CHECK_EQ(waiter_join(&waiter), 1);
}

/*
 * A pipe gives no hints, so a sleeping thread must learn that there is another wait queue to join.
 */
TEST(waiting_unhinted_added_while_asleep)
{
	struct pair pair = tcp_pair();
	struct waiter waiter;
	int ends[2];
	int set = set_open();

	OK(pipe2(ends, O_CLOEXEC));
	set_write(set, pair.a, POLLIN);
	waiter_start(&waiter, set, LONG_MS);
	waiter_is_asleep(&waiter);
	set_write(set, ends[0], POLLIN);
	waiter_is_asleep(&waiter);
	make_readable(ends[1]);
	CHECK_EQ(waiter_join(&waiter), 1);
	CHECK_EQ(waiter.results[0].fd, ends[0]);
}

TEST(waiting_removed_while_asleep)
{
	struct pair pair = tcp_pair(), other = tcp_pair();
	struct waiter waiter;
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	set_write(set, other.a, POLLIN);
	waiter_start(&waiter, set, LONG_MS);
	waiter_is_asleep(&waiter);
	set_remove(set, pair.a);
	make_readable(pair.b);
	sleep_ms(SHORT_MS);
	waiter_is_asleep(&waiter);
	make_readable(other.b);
	CHECK_EQ(waiter_join(&waiter), 1);
	CHECK_EQ(waiter.results[0].fd, other.a);
}

TEST(waiting_no_hint_is_lost_between_scan_and_sleep)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	struct pair back = unix_pair(SOCK_STREAM);
	int set = set_open();
	pid_t pid;

	set_write(set, pair.a, POLLIN);
	pid = OK(fork());
	if (!pid) {
		char byte;

		while (read(back.b, &byte, 1) == 1 && byte != 'q')
			make_readable(pair.b);
		_exit(0);
	}
	for (int i = 0; i < 3000; i++) {
		make_readable(back.a);
		CHECK_EQ(set_poll_one(set, pair.a, LONG_MS), POLLIN);
		drain(pair.a);
	}
	CHECK_EQ(write(back.a, "q", 1), 1);
	OK(waitpid(pid, NULL, 0));
}

/*
 * More descriptors are ready than there is room for; each must be reported in turn, in every kind
 * of set.
 */
static void check_fairness(int options, bool mixed)
{
	enum { COUNT = 12, ROOM = 5, WAITS = 8 };
	int seen[COUNT] = { 0 }, fds[COUNT];
	struct pollfd results[ROOM];
	int set = set_open_with(options);

	for (int i = 0; i < COUNT; i++) {
		int ends[2];

		if (mixed && i % 2) {
			OK(pipe2(ends, O_CLOEXEC));
			fds[i] = ends[1];
		} else {
			fds[i] = unix_pair(SOCK_STREAM).a;
		}
		set_write(set, fds[i], POLLOUT);
	}
	for (int wait = 0; wait < WAITS; wait++) {
		CHECK_EQ(set_poll(set, results, ROOM, 0), ROOM);
		for (int i = 0; i < ROOM; i++)
			for (int j = 0; j < COUNT; j++)
				seen[j] += results[i].fd == fds[j];
	}
	for (int i = 0; i < COUNT; i++)
		CHECK(seen[i] >= 2);
}

TEST(waiting_nobody_starves)
{
	for (int options = 0; options <= DP_OPTION_ALL; options++) {
		check_fairness(options, false);
		check_fairness(options, true);
	}
}

TEST(waiting_pending_comes_before_unhinted)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	struct pollfd results[2];
	int ends[2];
	int set = set_open();

	OK(pipe2(ends, O_CLOEXEC));
	set_write(set, ends[1], POLLOUT);
	set_write(set, pair.a, POLLOUT);
	CHECK_EQ(set_poll(set, results, 2, 0), 2);
	CHECK_EQ(results[0].fd, pair.a);
	CHECK_EQ(results[1].fd, ends[1]);
}

/* Neither O_NONBLOCK nor the file offset has an effect on a wait. */
TEST(waiting_nonblocking_open_waits)
{
	struct pair pair = tcp_pair();
	struct pollfd change = { pair.a, POLLIN, 0 }, result;
	int set = OK(open("/dev/poll", O_RDWR | O_NONBLOCK | O_CLOEXEC));
	struct waiter waiter;
	long before;

	CHECK_EQ(write(set, &change, sizeof(change)), sizeof(change));
	CHECK_EQ(lseek(set, 0, SEEK_CUR), 0);
	CHECK(lseek(set, 4096, SEEK_SET) >= 0);
	before = now_ms();
	CHECK_EQ(set_poll(set, &result, 1, SHORT_MS), 0);
	CHECK(now_ms() - before >= SHORT_MS);
	waiter_start(&waiter, set, LONG_MS);
	waiter_is_asleep(&waiter);
	make_readable(pair.b);
	CHECK_EQ(waiter_join(&waiter), 1);
	CHECK_EQ(waiter.results[0].fd, pair.a);
}

static void *sets_the_clock_and_forks(void *over)
{
	while (!__atomic_load_n((int *)over, __ATOMIC_ACQUIRE)) {
		struct timespec now;
		pid_t child;

		OK(clock_gettime(CLOCK_REALTIME, &now));
		if (clock_settime(CLOCK_REALTIME, &now) < 0)
			break;
		/*
		 * Not fork() of the C library: a later glibc blocks signals while it forks, so the
		 * SIGCHLD of a child that ends meanwhile wakes the waiting thread. The signal has
		 * no handler, but a wait with a timeout does not continue then, as with
		 * epoll_wait(2).
		 */
		child = OK(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
		if (!child)
			_exit(0);
		OK(waitpid(child, NULL, 0));
		sleep_ms(SHORT_MS / 10);
	}
	return NULL;
}

/* As in illumos' own test: setting the clock does not end a wait, nor do children that exit. */
TEST(waiting_goes_on_while_the_clock_is_set_and_the_process_forks)
{
	struct pair pair = tcp_pair();
	int set = set_open(), over = 0;
	struct pollfd result;
	pthread_t thread;

	set_write(set, pair.a, POLLIN);
	CHECK(!pthread_create(&thread, NULL, sets_the_clock_and_forks, &over));
	for (int room = 0; room < 2; room++) {
		long before = now_ms();

		CHECK_EQ(set_poll(set, &result, room, 8 * SHORT_MS), 0);
		CHECK(now_ms() - before >= 8 * SHORT_MS);
	}
	__atomic_store_n(&over, 1, __ATOMIC_RELEASE);
	CHECK(!pthread_join(thread, NULL));
}
