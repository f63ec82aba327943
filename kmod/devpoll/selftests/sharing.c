// SPDX-License-Identifier: GPL-2.0
/* Several threads and processes: which may use a set, and which are woken. */
#include "util.h"

#include <grp.h>
#include <sched.h>
#include <sys/syscall.h>

static void is_refused(void *context)
{
	int set = *(int *)context;
	struct pollfd change = { 0, POLLIN, 0 };

	CHECK_ERRNO(write(set, &change, sizeof(change)), EACCES);
	CHECK_ERRNO(set_poll(set, &change, 1, 0), EACCES);
	CHECK_ERRNO(set_update_poll(set, NULL, 0, &change, 1, 0), EACCES);
	CHECK_ERRNO(ioctl(set, DP_ISPOLLED, &change), EACCES);
	CHECK_ERRNO(ioctl(set, DP_ALLOC, 1), EACCES);
	CHECK_ERRNO(ioctl(set, DP_GETOPTIONS), EACCES);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, set, 0) == MAP_FAILED && errno == EACCES);
}

static void may_use(void *context)
{
	set_write(*(int *)context, 0, POLLIN);
	set_poll(*(int *)context, NULL, 0, 0);
}

TEST(sharing_the_first_user_owns_the_set)
{
	int set = set_open();

	set_write(set, 0, POLLREMOVE);
	in_child(is_refused, &set);
	set_write(set, 0, POLLREMOVE);
}

TEST(sharing_a_parent_may_open_for_its_child)
{
	int set = set_open();

	in_child(may_use, &set);
	is_refused(&set);
}

static int receive(int from)
{
	char control[CMSG_SPACE(sizeof(int))], byte;
	struct iovec part = { &byte, 1 };
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	int fd;

	OK(recvmsg(from, &message, MSG_CMSG_CLOEXEC));
	CHECK(CMSG_FIRSTHDR(&message));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

static void pass(int to, int fd)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 }, byte = 0;
	struct iovec part = { &byte, 1 };
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	OK(sendmsg(to, &message, 0));
}

static void receives_and_is_refused(void *context)
{
	int set = receive(*(int *)context);

	is_refused(&set);
}

TEST(sharing_a_set_passed_in_a_message)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	int set = set_open();

	set_write(set, 0, POLLREMOVE);
	pass(pair.a, set);
	in_child(receives_and_is_refused, &pair.b);
}

/* The set is in a message in a socket, and the socket is in the set. */
TEST(sharing_a_set_passed_through_a_socket_in_it)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	set_write(set, pair.b, POLLIN);
	pass(pair.b, set);
	pass(pair.a, set);
	CHECK_EQ(set_poll(set, (struct pollfd[4]){}, 4, LONG_MS), 2);
	close(set);
	close(pair.a);
	close(pair.b);
	/* The harness checks that this cycle was collected. */
}

TEST(sharing_sockets_with_a_child)
{
	struct pair pair = tcp_pair();
	int set = set_open();
	pid_t pid;

	set_write(set, pair.a, POLLIN);
	pid = OK(fork());
	if (!pid) {
		/* Closing the child's copies must not remove entries from the parent's set. */
		close(pair.a);
		close(set);
		make_readable(pair.b);
		_exit(0);
	}
	OK(waitpid(pid, NULL, 0));
	CHECK_EQ(set_poll_one(set, pair.a, LONG_MS), POLLIN);
}

TEST(sharing_all_waiting_threads_are_woken)
{
	enum { THREADS = 4 };
	struct pair pair = unix_pair(SOCK_STREAM);
	struct waiter waiters[THREADS];
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	for (int i = 0; i < THREADS; i++)
		waiter_start(&waiters[i], set, LONG_MS);
	for (int i = 0; i < THREADS; i++)
		waiter_is_asleep(&waiters[i]);
	make_readable(pair.b);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(waiter_join(&waiters[i]), 1);
}

static int done(struct waiter *waiters, int count)
{
	int sum = 0;

	for (int i = 0; i < count; i++)
		sum += waiters[i].done;
	return sum;
}

TEST(sharing_exclusive_wakes_one_thread)
{
	enum { THREADS = 4 };
	struct pair pairs[THREADS];
	struct waiter waiters[THREADS];
	int set = set_open_with(DP_OPTION_EXCLUSIVE);

	for (int i = 0; i < THREADS; i++) {
		pairs[i] = unix_pair(SOCK_STREAM);
		set_write(set, pairs[i].a, POLLIN);
	}
	for (int i = 0; i < THREADS; i++)
		waiter_start(&waiters[i], set, LONG_MS);
	for (int i = 0; i < THREADS; i++)
		waiter_is_asleep(&waiters[i]);
	for (int i = 0; i < THREADS; i++) {
		long end = now_ms() + LONG_MS;

		make_readable(pairs[i].b);
		while (done(waiters, THREADS) <= i && now_ms() < end)
			sleep_ms(1);
		sleep_ms(SHORT_MS);
		CHECK_EQ(done(waiters, THREADS), i + 1);
	}
	for (int i = 0; i < THREADS; i++)
		waiter_join(&waiters[i]);
}

static void start_and_sleep(struct waiter *waiters, int count, int set)
{
	for (int i = 0; i < count; i++)
		waiter_start(&waiters[i], set, LONG_MS);
	for (int i = 0; i < count; i++)
		waiter_is_asleep(&waiters[i]);
}

/* A thread that is asleep when the option changes is woken by the new option's rule. */
TEST(sharing_exclusive_changes_while_threads_sleep)
{
	enum { THREADS = 2 };
	struct pair pair = unix_pair(SOCK_STREAM);
	struct waiter waiters[THREADS];
	int set = set_open_with(DP_OPTION_EXCLUSIVE);
	uint64_t sleeps;
	long end;

	set_write(set, pair.a, POLLIN);
	start_and_sleep(waiters, THREADS, set);
	OK(ioctl(set, DP_SETOPTIONS, 0));
	make_readable(pair.b);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(waiter_join(&waiters[i]), 1);

	drain(pair.a);
	set_poll_none(set, 0);
	start_and_sleep(waiters, THREADS, set);
	sleeps = set_statistics(set).ds_sleeps;
	OK(ioctl(set, DP_SETOPTIONS, DP_OPTION_EXCLUSIVE));
	/* The change wakes the threads, and they sleep again. */
	for (end = now_ms() + LONG_MS; set_statistics(set).ds_sleeps < sleeps + THREADS;
	     sleep_ms(1))
		CHECK(now_ms() < end);
	for (int i = 0; i < THREADS; i++)
		waiter_is_asleep(&waiters[i]);
	for (int i = 0; i < THREADS; i++) {
		make_readable(pair.b);
		for (end = now_ms() + LONG_MS; done(waiters, THREADS) <= i; sleep_ms(1))
			CHECK(now_ms() < end);
		sleep_ms(SHORT_MS);
		CHECK_EQ(done(waiters, THREADS), i + 1);
	}
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(waiter_join(&waiters[i]), 1);
}

/*
 * The woken thread has room for one of two results, so another thread must be woken for the other.
 */
TEST(sharing_exclusive_hands_on_what_is_left)
{
	struct pair first = unix_pair(SOCK_STREAM), second = unix_pair(SOCK_STREAM);
	struct waiter waiters[2];
	struct pollfd results[4];
	int set = set_open_with(DP_OPTION_EXCLUSIVE);

	set_write(set, first.a, POLLIN);
	set_write(set, second.a, POLLIN);
	for (int round = 0; round < 50; round++) {
		for (int i = 0; i < 2; i++)
			waiter_start_with_room(&waiters[i], set, 1, LONG_MS);
		for (int i = 0; i < 2; i++)
			waiter_is_asleep(&waiters[i]);
		make_readable(first.b);
		make_readable(second.b);
		for (int i = 0; i < 2; i++)
			CHECK_EQ(waiter_join(&waiters[i]), 1);
		drain(first.a);
		drain(second.a);
		CHECK_EQ(OK(set_poll(set, results, 4, 0)), 0);
	}
}

/* The woken thread may return with EINTR; then another thread must be woken. */
TEST(sharing_exclusive_survives_signals)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	struct sigaction action = { .sa_handler = do_nothing };
	int set = set_open_with(DP_OPTION_EXCLUSIVE);

	OK(sigaction(SIGUSR1, &action, NULL));
	set_write(set, pair.a, POLLIN);
	for (int round = 0; round < 100; round++) {
		struct waiter waiters[2];
		int results[2];

		for (int i = 0; i < 2; i++)
			waiter_start(&waiters[i], set, LONG_MS);
		for (int i = 0; i < 2; i++)
			waiter_is_asleep(&waiters[i]);
		if (round % 2)
			make_readable(pair.b);
		CHECK_EQ(pthread_kill(waiters[0].thread, SIGUSR1), 0);
		if (round % 2 == 0)
			make_readable(pair.b);
		for (int i = 0; i < 2; i++)
			results[i] = 0;
		while (!waiters[0].done && !waiters[1].done)
			sleep_ms(1);
		/* If the first thread reported the event, the second keeps sleeping. */
		if (waiters[0].done && waiter_join(&waiters[0]) == 1) {
			results[0] = 1;
			make_readable(pair.b);
		} else if (!waiters[0].done) {
			results[0] = waiter_join(&waiters[0]) == 1;
		}
		results[1] = waiter_join(&waiters[1]);
		CHECK_EQ(results[1], 1);
		drain(pair.a);
		set_poll_none(set, 0);
	}
}

static void *wait_without_memory(void *context)
{
	struct waiter *waiter = context;

	waiter->tid = syscall(SYS_gettid);
	waiter->result = set_poll(waiter->set, (struct pollfd *)16, 1, waiter->timeout);
	waiter->error = errno;
	waiter->done = 1;
	return NULL;
}

/* The woken thread cannot store its results; then another thread must be woken. */
TEST(sharing_exclusive_survives_bad_memory)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	struct waiter waiters[2] = { 0 };
	int set = set_open_with(DP_OPTION_EXCLUSIVE);
	long end = now_ms() + LONG_MS;

	set_write(set, pair.a, POLLIN);
	waiters[0].set = set;
	waiters[0].timeout = LONG_MS;
	CHECK_EQ(pthread_create(&waiters[0].thread, NULL, wait_without_memory, &waiters[0]), 0);
	waiter_is_asleep(&waiters[0]);
	/* No timeout, because the kernel scans once more after a timeout and would find it too. */
	waiter_start(&waiters[1], set, -1);
	waiter_is_asleep(&waiters[1]);
	make_readable(pair.b);
	CHECK_ERRNO(waiter_join(&waiters[0]), EFAULT);
	while (!waiters[1].done && now_ms() < end)
		sleep_ms(1);
	CHECK(waiters[1].done);
	CHECK_EQ(waiter_join(&waiters[1]), 1);
	CHECK_EQ(waiters[1].results[0].fd, pair.a);
}

struct other_table {
	int set, fd;
	volatile int answer;
};

static void *other_table_run(void *context)
{
	struct other_table *table = context;
	struct pollfd results[4];

	if (unshare(CLONE_FILES))
		return NULL;
	close(table->fd);
	if (set_poll(table->set, results, 4, 0) == 1)
		table->answer = results[0].revents;
	return NULL;
}

/*
 * In a thread with a separate descriptor table, numbers refer to that table and must not affect
 * other threads.
 */
TEST(sharing_between_descriptor_tables)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	struct other_table table = { set_open(), pair.a, 0 };
	pthread_t thread;

	set_write(table.set, pair.a, POLLIN);
	make_readable(pair.b);
	CHECK_EQ(set_poll_one(table.set, pair.a, 0), POLLIN);
	CHECK_EQ(pthread_create(&thread, NULL, other_table_run, &table), 0);
	pthread_join(thread, NULL);
	CHECK_EQ(table.answer, POLLNVAL);
	CHECK_EQ(set_poll_one(table.set, pair.a, 0), POLLIN);
}
