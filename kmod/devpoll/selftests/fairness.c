// SPDX-License-Identifier: GPL-2.0
/* Long calls let other tasks use the processor, and timers of real-time threads are on time. */
#include "util.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define DUPLICATES 60000
/* A skipped entry costs least. So these are nearly as many as a set may have in a guest with 1 GiB. */
#define SKIPPED 120000
/*
 * A real-time thread on the same processor wakes up this often. A call with so many entries takes
 * some milliseconds, and that thread gets 9 turns or more. If the module calls the scheduler nowhere
 * in the loop, it gets one turn, after the call; where a loop allocates or frees memory, up to 6.
 */
#define WAKE_UP_NS 500000
#define TURNS 8
/* If the host has no CPU time for the guest, a call may see fewer turns, so calls are repeated. */
#define CALLS 50

/* Opens the same file under many numbers. */
static struct pollfd *duplicates(int fd, int count)
{
	struct pollfd *fds = calloc(count, sizeof(*fds));

	for (int i = 0; i < count; i++)
		fds[i] = (struct pollfd){ OK(dup(fd)), POLLIN, 0 };
	return fds;
}

static volatile int competing;

static void *wake_up_often(void *unused)
{
	struct sched_param priority = { .sched_priority = 1 };
	struct timespec pause = { .tv_nsec = WAKE_UP_NS };

	(void)unused;
	OK(sched_setscheduler(0, SCHED_FIFO, &priority));
	competing = 1;
	while (competing)
		nanosleep(&pause, NULL);
	return NULL;
}

/* Starts another thread that often wants this thread's processor, and gets it at once if it can. */
static pthread_t compete(void)
{
	pthread_t thread;
	cpu_set_t first;

	CPU_ZERO(&first);
	CPU_SET(0, &first);
	OK(sched_setaffinity(0, sizeof(first), &first));
	CHECK_EQ(pthread_create(&thread, NULL, wake_up_often, NULL), 0);
	while (!competing)
		sched_yield();
	return thread;
}

static void compete_no_more(pthread_t thread)
{
	competing = 0;
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

static long preemptions(void)
{
	struct rusage usage;

	OK(getrusage(RUSAGE_THREAD, &usage));
	return usage.ru_nivcsw;
}

/* Returns how often the thread gave up its processor within one call. */
static long turns_given(int set, unsigned int call, struct pollfd *fds, int nfds, int expected)
{
	struct dvpoll wait = { fds, nfds, 0, NULL };
	long before = preemptions();

	CHECK_EQ(OK(ioctl(set, call, &wait)), expected);
	return preemptions() - before;
}

TEST(fairness_of_a_wait_that_finds_much)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	struct pollfd *fds;
	pthread_t rival;
	int set = set_open();
	long turns = 0;

	raise_descriptor_limit(DUPLICATES + 1000);
	fds = duplicates(pair.a, DUPLICATES);
	CHECK_EQ(write(set, fds, DUPLICATES * sizeof(*fds)), DUPLICATES * sizeof(*fds));
	make_readable(pair.b);
	/*
	 * This touches the pages of the array, because a page fault would also let other tasks run.
	 */
	CHECK_EQ(OK(set_poll(set, fds, DUPLICATES, 0)), DUPLICATES);
	rival = compete();
	for (int call = 0; call < CALLS && turns < TURNS; call++)
		turns = turns_given(set, DP_POLL, fds, DUPLICATES, DUPLICATES);
	compete_no_more(rival);
	if (turns < TURNS)
		test_fail(__FILE__, __LINE__, "others had %ld turns during the call", turns);
}

/* Regression: a scan of the table called the scheduler only behind entries that it examined. */
TEST(fairness_of_a_table_scan_that_skips_much)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	struct pollfd *fds, found;
	struct dvpoll_statistics before;
	pthread_t rival;
	int set = set_open_with(DP_OPTION_TABLE);
	long turns = 0;

	raise_descriptor_limit(SKIPPED + 1000);
	fds = duplicates(pair.a, SKIPPED);
	CHECK_EQ(write(set, fds, SKIPPED * sizeof(*fds)), SKIPPED * sizeof(*fds));
	/* New entries are examined once. */
	CHECK_EQ(OK(set_poll(set, &found, 1, 0)), 0);
	before = set_statistics(set);
	CHECK_EQ(OK(set_poll(set, &found, 1, 0)), 0);
	CHECK_EQ(set_statistics(set).ds_skipped - before.ds_skipped, SKIPPED);
	rival = compete();
	for (int call = 0; call < CALLS && turns < TURNS; call++)
		turns = turns_given(set, DP_POLL, &found, 1, 0);
	compete_no_more(rival);
	if (turns < TURNS)
		test_fail(__FILE__, __LINE__, "others had %ld turns during the call", turns);
}

TEST(fairness_of_a_hinting_poll_that_forgets_much)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	struct dvpoll wait = { NULL, DUPLICATES, 0, NULL };
	struct pollfd *fds;
	pthread_t rival;
	int set = set_open();
	long turns = 0;

	raise_descriptor_limit(DUPLICATES + 1000);
	fds = duplicates(pair.a, DUPLICATES);
	wait.dp_fds = fds;
	rival = compete();
	for (int call = 0; call < CALLS && turns < TURNS; call++) {
		CHECK_EQ(OK(ioctl(set, DP_HPOLL, &wait)), 0);
		CHECK_EQ(set_statistics(set).ds_entries, DUPLICATES);
		turns = turns_given(set, DP_HPOLL, fds, 0, 0);
	}
	compete_no_more(rival);
	CHECK_EQ(set_statistics(set).ds_entries, 0);
	if (turns < TURNS)
		test_fail(__FILE__, __LINE__, "others had %ld turns during the call", turns);
}

/*
 * Returns by how much the timer of a sleeping wait of so many seconds may be late; a negative
 * number if there is no such timer.
 */
static long long slack_of_timer(long seconds)
{
	FILE *file = fopen("/proc/timer_list", "re");
	long long first, last, left, slack = -1;
	char line[512];

	if (!file)
		test_skip("/proc/timer_list: %s", strerror(errno));
	while (fgets(line, sizeof(line), file)) {
		char *range = strstr(line, "expires at ");

		if (!range || sscanf(range, "expires at %lld-%lld nsecs [in %lld", &first, &last,
				     &left) != 3)
			continue;
		/* Other threads that wait for about as long, such as a watchdog, have no slack. */
		if (left / 1000000000 >= seconds / 2 && left / 1000000000 <= seconds &&
		    last - first > slack)
			slack = last - first;
	}
	fclose(file);
	return slack;
}

static long long slack_of_wait(long seconds)
{
	struct waiter waiter;
	long long slack;
	int set = set_open();

	waiter_start(&waiter, set, seconds * 1000);
	waiter_is_asleep(&waiter);
	slack = slack_of_timer(seconds);
	/* Adding a closed descriptor ends the wait. */
	set_write(set, 199, POLLIN);
	CHECK_EQ(waiter_join(&waiter), 1);
	close(set);
	return slack;
}

/*
 * As for poll(2), the slack is a thousandth of the timeout, or five thousandths below normal
 * priority, or none.
 */
TEST(fairness_of_timers)
{
	struct sched_param parameter = { .sched_priority = 1 };

	CHECK_EQ(slack_of_wait(50), 50 * 1000000LL);
	OK(setpriority(PRIO_PROCESS, syscall(SYS_gettid), 5));
	CHECK_EQ(slack_of_wait(14), 70 * 1000000LL);
	OK(setpriority(PRIO_PROCESS, syscall(SYS_gettid), 0));
	if (sched_setscheduler(0, SCHED_FIFO, &parameter))
		test_skip("SCHED_FIFO: %s", strerror(errno));
	CHECK_EQ(slack_of_wait(50), 0);
}
