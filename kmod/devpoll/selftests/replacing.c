// SPDX-License-Identifier: GPL-2.0
/* Descriptors without hints whose file changes, or that leave the set, while a thread sleeps. */
#include "util.h"

/* A thread waits while its descriptor gets another file and the same events are written again. */
static void wakes_for_the_new_file(int set, int fd, int new_fd, int new_peer)
{
	struct waiter waiter;

	set_write(set, fd, POLLIN);
	/*
	 * The timeout is longer than the test waits, so a thread that is not woken has not ended by
	 * then.
	 */
	waiter_start(&waiter, set, 3 * LONG_MS);
	waiter_is_asleep(&waiter);
	OK(dup3(new_fd, fd, O_CLOEXEC));
	set_write(set, fd, POLLIN);
	/* When the thread sleeps again, all effects of a wake-up have happened. */
	sleep_ms(SHORT_MS);
	waiter_is_asleep(&waiter);
	make_readable(new_peer);
	for (long end = now_ms() + LONG_MS; !waiter.done; sleep_ms(1))
		CHECK(now_ms() < end);
	CHECK_EQ(waiter_join(&waiter), 1);
	CHECK_EQ(waiter.results[0].fd, fd);
	CHECK_EQ(waiter.results[0].revents, POLLIN);
}

TEST(replacing_a_pipe_by_a_pipe_while_a_thread_waits)
{
	int old[2], new[2];

	OK(pipe2(old, O_CLOEXEC));
	OK(pipe2(new, O_CLOEXEC));
	wakes_for_the_new_file(set_open(), old[0], new[0], new[1]);
}

TEST(replacing_a_socket_without_hints_while_a_thread_waits)
{
	struct pair old = tcp_pair(), new = tcp_pair();

	wakes_for_the_new_file(set_open_with(DP_OPTION_NOHINTS), old.a, new.a, new.b);
}

static void *read_one(void *context)
{
	char byte;

	return (void *)read(*(int *)context, &byte, 1);
}

/*
 * If a descriptor is removed and closed, its peer must see that at once, as with epoll, and not
 * only when the wait ends. The wait is longer than the test waits for the peer.
 */
static void closes_at_once(bool remove_first)
{
	struct pair pair = tcp_pair();
	struct waiter waiter;
	struct timespec end;
	pthread_t reader;
	int ends[2], set = set_open();
	void *got = (void *)-1;

	OK(pipe2(ends, O_CLOEXEC));
	set_write(set, pair.a, POLLIN);
	set_write(set, ends[1], 0);
	waiter_start(&waiter, set, 3 * LONG_MS);
	waiter_is_asleep(&waiter);
	CHECK_EQ(pthread_create(&reader, NULL, read_one, &ends[0]), 0);
	if (remove_first)
		set_remove(set, ends[1]);
	close(ends[1]);
	if (!remove_first)
		set_remove(set, ends[1]);
	OK(clock_gettime(CLOCK_REALTIME, &end));
	end.tv_sec += LONG_MS / 1000;
	CHECK_EQ(pthread_timedjoin_np(reader, &got, &end), 0);
	CHECK_EQ((long)got, 0);
	CHECK(!waiter.done);
	make_readable(pair.b);
	CHECK_EQ(waiter_join(&waiter), 1);
	CHECK_EQ(waiter.results[0].fd, pair.a);
}

TEST(replacing_by_nothing_then_closing_closes)
{
	closes_at_once(true);
}

TEST(replacing_by_nothing_after_closing_closes)
{
	closes_at_once(false);
}
