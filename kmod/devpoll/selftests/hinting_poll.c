// SPDX-License-Identifier: GPL-2.0
/* DP_HPOLL: poll(2) with hints. */
#include "util.h"

#include <sys/resource.h>
#include <sys/time.h>

static int set_hpoll(int set, struct pollfd *fds, int count, int timeout)
{
	struct dvpoll wait = { fds, count, timeout, NULL };

	return ioctl(set, DP_HPOLL, &wait);
}

/* Calls both with the same array; the results must be equal bit for bit. */
static void same_as_poll(int set, struct pollfd *fds, int count)
{
	struct pollfd *expected = malloc((count + 1) * sizeof(*fds));
	int by_poll, by_hints;

	memcpy(expected, fds, count * sizeof(*fds));
	for (int i = 0; i < count; i++)
		fds[i].revents = 0x5a5a;
	by_hints = OK(set_hpoll(set, fds, count, 0));
	by_poll = OK(poll(expected, count, 0));
	CHECK_EQ(by_hints, by_poll);
	for (int i = 0; i < count; i++) {
		CHECK_EQ(fds[i].fd, expected[i].fd);
		CHECK_EQ(fds[i].events, expected[i].events);
		CHECK_EQ(fds[i].revents, expected[i].revents);
	}
	free(expected);
}

TEST(hpoll_answers_as_poll)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	struct pollfd fds[8];
	int ends[2], set = set_open();

	OK(pipe2(ends, O_CLOEXEC));
	fds[0] = (struct pollfd){ pair.a, POLLIN, 0 };
	fds[1] = (struct pollfd){ pair.b, POLLIN | POLLOUT, 0 };
	fds[2] = (struct pollfd){ -1, POLLIN, 0 };
	fds[3] = (struct pollfd){ 199, POLLIN, 0 };
	fds[4] = (struct pollfd){ ends[0], POLLIN, 0 };
	fds[5] = (struct pollfd){ ends[1], POLLOUT, 0 };
	fds[6] = (struct pollfd){ pair.a, POLLOUT, 0 };
	fds[7] = (struct pollfd){ set, POLLIN, 0 };
	for (int i = 0; i < 3; i++)
		same_as_poll(set, fds, 8);
	make_readable(pair.b);
	make_readable(ends[1]);
	same_as_poll(set, fds, 8);
	drain(pair.a);
	same_as_poll(set, fds, 8);
	close(pair.b);
	same_as_poll(set, fds, 8);
	same_as_poll(set, fds, 0);
}

TEST(hpoll_asks_no_driver_in_vain)
{
	enum { COUNT = 100 };
	struct dvpoll_statistics before, after;
	struct pair pairs[COUNT];
	struct pollfd fds[COUNT];
	int set = set_open();

	for (int i = 0; i < COUNT; i++) {
		pairs[i] = unix_pair(SOCK_STREAM);
		fds[i] = (struct pollfd){ pairs[i].a, POLLIN, 0 };
	}
	CHECK_EQ(OK(set_hpoll(set, fds, COUNT, 0)), 0);
	before = set_statistics(set);
	CHECK_EQ(before.ds_hinted, COUNT);
	CHECK_EQ(before.ds_hook_polls, COUNT);
	CHECK_EQ(before.ds_driver_polls, 0);
	for (int i = 0; i < 10; i++)
		CHECK_EQ(OK(set_hpoll(set, fds, COUNT, 0)), 0);
	after = set_statistics(set);
	CHECK_EQ(after.ds_driver_polls, 0);
	CHECK_EQ(after.ds_skipped, 10 * COUNT);
	make_readable(pairs[7].b);
	CHECK_EQ(OK(set_hpoll(set, fds, COUNT, 0)), 1);
	CHECK_EQ(fds[7].revents, POLLIN);
	CHECK_EQ(OK(set_hpoll(set, fds, COUNT, 0)), 1);
	after = set_statistics(set);
	CHECK_EQ(after.ds_driver_polls, 2);
	drain(pairs[7].a);
	CHECK_EQ(OK(set_hpoll(set, fds, COUNT, 0)), 0);
	CHECK_EQ(OK(set_hpoll(set, fds, COUNT, 0)), 0);
	CHECK_EQ(set_statistics(set).ds_driver_polls, 3);
}

TEST(hpoll_forgets_what_is_not_named)
{
	struct pair first = unix_pair(SOCK_STREAM), second = unix_pair(SOCK_STREAM);
	struct pollfd fds[2] = { { first.a, POLLIN, 0 }, { second.a, POLLIN, 0 } };
	int set = set_open();

	CHECK_EQ(OK(set_hpoll(set, fds, 2, 0)), 0);
	CHECK_EQ(set_statistics(set).ds_entries, 2);
	CHECK_EQ(OK(set_hpoll(set, fds, 1, 0)), 0);
	CHECK_EQ(set_statistics(set).ds_entries, 1);
	close(first.a);
	CHECK_EQ(OK(set_hpoll(set, fds, 1, 0)), 1);
	CHECK_EQ(fds[0].revents, POLLNVAL);
	CHECK_EQ(set_statistics(set).ds_entries, 0);
}

TEST(hpoll_closed_and_used_again)
{
	struct pair first = unix_pair(SOCK_STREAM), second = unix_pair(SOCK_STREAM);
	struct pollfd fds[1] = { { first.a, POLLIN, 0 } };
	int ends[2], set = set_open();

	OK(pipe2(ends, O_CLOEXEC));
	same_as_poll(set, fds, 1);
	make_readable(second.b);
	OK(dup2(second.a, first.a));
	same_as_poll(set, fds, 1);
	drain(second.a);
	same_as_poll(set, fds, 1);
	OK(dup2(ends[0], first.a));
	same_as_poll(set, fds, 1);
	make_readable(ends[1]);
	same_as_poll(set, fds, 1);
	OK(dup2(first.b, first.a));
	same_as_poll(set, fds, 1);
}

TEST(hpoll_events_that_change)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	struct pollfd fds[2] = { { pair.a, POLLIN, 0 }, { pair.a, 0, 0 } };
	static const short events[] = { POLLIN, POLLOUT, POLLIN | POLLOUT, 0, POLLPRI };
	int set = set_open();

	for (int i = 0; i < 5; i++) {
		for (int j = 0; j < 5; j++) {
			fds[0].events = events[i];
			fds[1].events = events[j];
			same_as_poll(set, fds, 2);
			make_readable(pair.b);
			same_as_poll(set, fds, 2);
			same_as_poll(set, fds, 1);
			drain(pair.a);
			same_as_poll(set, fds, 1);
			same_as_poll(set, fds, 2);
		}
	}
}

TEST(hpoll_sleeps_and_wakes)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	struct pollfd fds[2];
	long before;
	int ends[2], set = set_open();

	OK(pipe2(ends, O_CLOEXEC));
	fds[0] = (struct pollfd){ pair.a, POLLIN, 0 };
	fds[1] = (struct pollfd){ ends[0], POLLIN, 0 };
	before = now_ms();
	CHECK_EQ(OK(set_hpoll(set, fds, 2, SHORT_MS)), 0);
	CHECK(now_ms() - before >= SHORT_MS);
	for (int i = 0; i < 20; i++) {
		if (!OK(fork())) {
			sleep_ms(i);
			make_readable(i % 2 ? pair.b : ends[1]);
			_exit(0);
		}
		/* No timeout, because the kernel scans once more after a timeout. */
		CHECK_EQ(OK(set_hpoll(set, fds, 2, -1)), 1);
		CHECK_EQ(fds[i % 2 ? 0 : 1].revents, POLLIN);
		OK(wait4(-1, NULL, 0, NULL));
		drain(pair.a);
		if (i % 2 == 0)
			CHECK_EQ(read(ends[0], (char[1]){}, 1), 1);
	}
	before = now_ms();
	CHECK_EQ(OK(set_hpoll(set, NULL, 0, SHORT_MS)), 0);
	CHECK(now_ms() - before >= SHORT_MS);
}

/* Programs may read the array without a look at the result: a signal must leave no old events. */
TEST(hpoll_clears_events_after_a_signal_as_poll)
{
	/* The alarm repeats, because the first signal may arrive before the wait has begun. */
	struct itimerval often = { { 0, SHORT_MS * 1000 }, { 0, SHORT_MS * 1000 } };
	struct sigaction action = { .sa_handler = do_nothing };
	struct pair pair = unix_pair(SOCK_STREAM);
	struct pollfd fds[2];
	int set = set_open();

	OK(sigaction(SIGALRM, &action, NULL));
	OK(setitimer(ITIMER_REAL, &often, NULL));
	for (int by_hints = 0; by_hints < 2; by_hints++) {
		fds[0] = (struct pollfd){ pair.a, POLLIN, POLLIN };
		fds[1] = (struct pollfd){ -1, POLLIN, POLLIN };
		if (by_hints)
			CHECK_ERRNO(set_hpoll(set, fds, 2, LONG_MS), EINTR);
		else
			CHECK_ERRNO(poll(fds, 2, LONG_MS), EINTR);
		CHECK_EQ(fds[0].revents, 0);
		CHECK_EQ(fds[1].revents, 0);
	}
	CHECK_ERRNO(set_hpoll(set, nowhere(), 2, LONG_MS), EFAULT);
}

struct hpoller {
	int set, result, error, count;
	struct pollfd fds[2];
	pthread_t thread;
};

static void *hpoll_run(void *context)
{
	struct hpoller *hpoller = context;

	hpoller->result = set_hpoll(hpoller->set, hpoller->fds, hpoller->count, -1);
	hpoller->error = errno;
	return NULL;
}

/* Returns when the call sleeps. */
static void hpoller_start(struct hpoller *hpoller)
{
	CHECK_EQ(pthread_create(&hpoller->thread, NULL, hpoll_run, hpoller), 0);
	while (set_statistics(hpoller->set).ds_sleeps == 0)
		sleep_ms(1);
}

static int hpoller_join(struct hpoller *hpoller)
{
	CHECK_EQ(pthread_join(hpoller->thread, NULL), 0);
	errno = hpoller->error;
	return hpoller->result;
}

TEST(hpoll_one_call_at_a_time)
{
	struct pair pair = unix_pair(SOCK_STREAM), other = unix_pair(SOCK_STREAM);
	struct hpoller hpoller = { .set = set_open(), .count = 1 };
	struct pollfd fds[1] = { { other.a, POLLIN, 0 } };

	hpoller.fds[0] = (struct pollfd){ pair.a, POLLIN, 0 };
	hpoller_start(&hpoller);
	CHECK_ERRNO(set_hpoll(hpoller.set, fds, 1, 0), EBUSY);
	make_readable(pair.b);
	CHECK_EQ(OK(hpoller_join(&hpoller)), 1);
	CHECK_EQ(OK(set_hpoll(hpoller.set, fds, 1, 0)), 0);
}

/*
 * Another thread sends data while DP_HPOLL walks its array: first for a socket that the walk has
 * already passed, then for one that was in the array of the previous call and is not in this one.
 */
enum { WALK = 20000 };

struct intruder {
	pthread_t thread;
	int set, passed_peer, forgotten_peer;
	long polls;
	bool in_time;
};

/* Reads the current value. DP_GETSTATISTICS would wait until the walk is over. */
static long driver_polls(int set)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", set);
	return number_after(path, "driver_polls:");
}

static void *intrude(void *context)
{
	struct intruder *intruder = context;

	while (driver_polls(intruder->set) < intruder->polls + WALK / 100)
		;
	make_readable(intruder->passed_peer);
	make_readable(intruder->forgotten_peer);
	intruder->in_time = driver_polls(intruder->set) < intruder->polls + WALK;
	return NULL;
}

/* @used_again: the array contains the other socket's number, which now refers to another file. */
static void check_event_during_walk(bool used_again)
{
	struct pair passed = unix_pair(SOCK_STREAM), forgotten = unix_pair(SOCK_STREAM);
	struct pair other = unix_pair(SOCK_STREAM);
	struct pollfd *fds = calloc(WALK + 2, sizeof(*fds));
	const long end = now_ms() + LONG_MS;
	int number = OK(dup(forgotten.a));
	int ends[2], set = set_open(), in_time = 0;

	OK(pipe2(ends, O_CLOEXEC));
	while (in_time < 3) {
		struct intruder intruder = { .set = set, .passed_peer = passed.b,
					     .forgotten_peer = forgotten.b };
		long begun;

		if (now_ms() > end)
			test_fail(__FILE__, __LINE__, "%d writes fell into a walk", in_time);
		OK(dup2(forgotten.a, number));
		fds[0] = (struct pollfd){ passed.a, POLLIN, 0 };
		fds[1] = (struct pollfd){ number, POLLIN, 0 };
		CHECK_EQ(OK(set_hpoll(set, fds, 2, 0)), 0);

		for (int i = 1; i <= WALK; i++)
			fds[i] = (struct pollfd){ ends[0], POLLIN, 0 };
		fds[WALK + 1] = (struct pollfd){ number, POLLIN, 0 };
		if (used_again)
			OK(dup2(other.a, number));
		intruder.polls = driver_polls(set);
		CHECK_EQ(pthread_create(&intruder.thread, NULL, intrude, &intruder), 0);
		begun = now_ms();
		CHECK_EQ(OK(set_hpoll(set, fds, WALK + 1 + used_again, 2 * LONG_MS)), 1);
		CHECK_EQ(fds[0].revents, POLLIN);
		/*
		 * The event must arrive before the timeout, after which the kernel scans once more.
		 */
		CHECK(now_ms() - begun < LONG_MS);
		CHECK_EQ(pthread_join(intruder.thread, NULL), 0);
		in_time += intruder.in_time;
		drain(passed.a);
		drain(forgotten.a);
	}
	free(fds);
}

TEST(hpoll_sees_what_came_while_it_forgot_another)
{
	raise_descriptor_limit(WALK + 100);
	check_event_during_walk(false);
}

TEST(hpoll_sees_what_came_while_it_met_a_number_used_again)
{
	raise_descriptor_limit(WALK + 100);
	check_event_during_walk(true);
}

TEST(hpoll_does_not_mix_with_write)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	struct pollfd fds[1] = { { pair.a, POLLIN, 0 } };
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	CHECK_ERRNO(set_hpoll(set, fds, 1, 0), EBUSY);
	set_remove(set, pair.a);
	CHECK_EQ(OK(set_hpoll(set, fds, 1, 0)), 0);
	CHECK_ERRNO(write(set, fds, sizeof(fds)), EBUSY);
	CHECK_ERRNO(set_poll(set, fds, 1, 0), EBUSY);
	CHECK_EQ(OK(ioctl(set, DP_ISPOLLED, fds)), 0);
	CHECK_EQ(OK(set_hpoll(set, fds, 0, 0)), 0);
	set_write(set, pair.a, POLLIN);
}

TEST(hpoll_errors)
{
	struct rlimit limit;
	int set = set_open();

	OK(getrlimit(RLIMIT_NOFILE, &limit));
	CHECK_ERRNO(set_hpoll(set, NULL, -1, 0), EINVAL);
	CHECK_ERRNO(set_hpoll(set, NULL, limit.rlim_cur + 1, 0), EINVAL);
	CHECK_ERRNO(set_hpoll(set, nowhere(), 1, 0), EFAULT);
	CHECK_ERRNO(ioctl(set, DP_HPOLL, NULL), EFAULT);
}

#define NR_OPEN "/proc/sys/fs/nr_open"

static bool set_nr_open(const char *value)
{
	FILE *file = fopen(NR_OPEN, "we");
	bool done = file && fputs(value, file) >= 0;

	return file && fclose(file) == 0 && done;
}

/*
 * If descriptors are not limited, the array is not limited either. Too little memory must give an
 * error without a kernel warning.
 */
TEST(hpoll_array_beyond_memory)
{
	const int count = 1 << 29;
	struct rlimit limit = { count, count };
	FILE *file = fopen(NR_OPEN, "re");
	int set = set_open();
	char before[32];
	bool raised;

	if (!file || !fgets(before, sizeof(before), file))
		test_skip("cannot read " NR_OPEN);
	fclose(file);
	raised = set_nr_open("536870912") && setrlimit(RLIMIT_NOFILE, &limit) == 0;
	set_nr_open(before);
	if (!raised)
		test_skip("needs the right to raise " NR_OPEN " and RLIMIT_NOFILE");
	CHECK_ERRNO(set_hpoll(set, nowhere(), count, 0), ENOMEM);
}

TEST(hpoll_without_hints)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	struct pollfd fds[1] = { { pair.a, POLLIN, 0 } };
	int set = set_open_with(DP_OPTION_NOHINTS);

	same_as_poll(set, fds, 1);
	make_readable(pair.b);
	same_as_poll(set, fds, 1);
	CHECK_EQ(set_statistics(set).ds_entries, 0);
	CHECK_EQ(set_statistics(set).ds_driver_polls, 2);
}

/*
 * A sleeping DP_HPOLL may have no entry in the set (here it has only pipes). At its next scan it
 * must not find entries of write(), because it would reduce their events to its own.
 */
TEST(hpoll_keeps_write_away_while_it_sleeps)
{
	struct hpoller hpoller = { .set = set_open(), .count = 2 };
	struct pair pair = tcp_pair();
	struct pollfd change;
	int watched[2], waking[2];

	OK(pipe2(watched, O_CLOEXEC));
	OK(pipe2(waking, O_CLOEXEC));
	hpoller.fds[0] = (struct pollfd){ watched[0], 0, 0 };
	hpoller.fds[1] = (struct pollfd){ waking[0], POLLIN, 0 };
	hpoller_start(&hpoller);
	CHECK_EQ(set_statistics(hpoller.set).ds_entries, 0);
	/* The number now refers to a socket. */
	OK(dup3(pair.a, watched[0], O_CLOEXEC));
	change = (struct pollfd){ watched[0], POLLIN, 0 };
	CHECK_ERRNO(write(hpoller.set, &change, sizeof(change)), EBUSY);
	CHECK_ERRNO(set_poll(hpoller.set, &change, 1, 0), EBUSY);
	make_readable(waking[1]);
	CHECK_EQ(OK(hpoller_join(&hpoller)), 1);
	/*
	 * The second scan found the socket. A call with an empty array frees the set for other use.
	 */
	CHECK_EQ(OK(set_hpoll(hpoller.set, &change, 0, 0)), 0);
	set_write(hpoller.set, watched[0], POLLIN);
	make_readable(pair.b);
	CHECK_EQ(set_poll_one(hpoller.set, watched[0], LONG_MS), POLLIN);
}
