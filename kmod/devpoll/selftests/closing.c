// SPDX-License-Identifier: GPL-2.0
/* Descriptors that are closed, duplicated, reused, or opened late. */
#include "util.h"

TEST(closing_closes_the_connection)
{
	struct pair pair = tcp_pair();
	int set = set_open();
	char byte;

	set_write(set, pair.a, POLLIN);
	/* Close without a reset, because an end of file must arrive. */
	struct linger off = { 0, 0 };

	OK(setsockopt(pair.a, SOL_SOCKET, SO_LINGER, &off, sizeof(off)));
	close(pair.a);
	CHECK_EQ(read(pair.b, &byte, 1), 0);
	close(pair.b);
}

TEST(closing_of_what_was_not_ready_is_silent_until_removed)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	int set = set_open();
	struct pollfd question = { pair.a, 0, 0 };

	set_write(set, pair.a, POLLIN);
	set_poll_none(set, 0);
	close(pair.a);
	set_poll_none(set, SHORT_MS);
	CHECK_EQ(ioctl(set, DP_ISPOLLED, &question), 1);
	CHECK_EQ(set_statistics(set).ds_entries, 1);
	set_remove(set, pair.a);
	CHECK_EQ(set_statistics(set).ds_entries, 0);
}

TEST(closing_is_reported_once_examined)
{
	struct pair pair = tcp_pair();
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	close(pair.a);
	/* A modification that adds events makes the kernel examine the entry. */
	set_write(set, pair.a, POLLIN | POLLOUT);
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLNVAL);
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLNVAL);
	set_remove(set, pair.a);
	set_poll_none(set, 0);
}

TEST(closing_of_a_ready_socket_is_reported)
{
	struct pair pair = tcp_pair();
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	make_readable(pair.b);
	CHECK_EQ(set_poll_one(set, pair.a, LONG_MS), POLLIN);
	close(pair.a);
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLNVAL);
	CHECK_EQ(set_poll_one(set, pair.a, LONG_MS), POLLNVAL);
	set_remove(set, pair.a);
	set_poll_none(set, 0);
}

TEST(closing_of_unhinted_is_reported_at_once)
{
	int ends[2];
	int set = set_open();

	OK(pipe2(ends, O_CLOEXEC));
	set_write(set, ends[0], POLLIN);
	set_poll_none(set, 0);
	close(ends[0]);
	CHECK_EQ(set_poll_one(set, ends[0], 0), POLLNVAL);
}

TEST(closing_before_adding)
{
	struct pollfd change = { 150, POLLIN, 0 };
	struct pair pair;
	int set = set_open();

	CHECK_EQ(write(set, &change, sizeof(change)), sizeof(change));
	CHECK_EQ(set_poll_one(set, 150, 0), POLLNVAL);
	/* The number now refers to a file that was opened later, which counts, as for poll(2). */
	pair = tcp_pair();
	OK(dup2(pair.a, 150));
	set_poll_none(set, 0);
	make_readable(pair.b);
	CHECK_EQ(set_poll_one(set, 150, LONG_MS), POLLIN);
	/* After another write the entry has hints like any other. */
	CHECK_EQ(set_statistics(set).ds_hinted, 0);
	set_write(set, 150, POLLIN);
	CHECK_EQ(set_statistics(set).ds_hinted, 1);
	CHECK_EQ(set_poll_one(set, 150, 0), POLLIN);
}

TEST(closing_and_using_the_number_again_with_write)
{
	struct pair first = tcp_pair(), second = tcp_pair();
	int set = set_open();

	set_write(set, first.a, POLLIN);
	make_readable(first.b);
	CHECK_EQ(set_poll_one(set, first.a, LONG_MS), POLLIN);
	OK(dup2(second.a, first.a));
	set_write(set, first.a, POLLIN);
	set_poll_none(set, 0);
	make_readable(second.b);
	CHECK_EQ(set_poll_one(set, first.a, LONG_MS), POLLIN);
	CHECK_EQ(set_statistics(set).ds_entries, 1);
}

TEST(closing_and_using_the_number_again_ends_old_events_even_with_or)
{
	struct pair first = tcp_pair(), second = tcp_pair();
	int set = set_open_with(DP_OPTION_OR);
	struct pollfd question = { first.a, 0, 0 };

	set_write(set, first.a, POLLOUT);
	OK(dup2(second.a, first.a));
	set_write(set, first.a, POLLIN);
	OK(ioctl(set, DP_ISPOLLED, &question));
	CHECK_EQ(question.revents, POLLIN);
	set_poll_none(set, 0);
}

/*
 * Without hints the interest belongs to the number: in a set where writes add, the old events stay.
 */
TEST(closing_and_using_a_pipes_number_again_keeps_old_events_with_or)
{
	int first[2], second[2], set = set_open_with(DP_OPTION_OR);
	struct pollfd question;

	OK(pipe2(first, O_CLOEXEC));
	OK(pipe2(second, O_CLOEXEC));
	question = (struct pollfd){ first[1], 0, 0 };
	set_write(set, first[1], POLLOUT);
	OK(dup2(second[1], first[1]));
	set_write(set, first[1], POLLPRI);
	OK(ioctl(set, DP_ISPOLLED, &question));
	CHECK_EQ(question.revents, POLLOUT | POLLPRI);
	CHECK_EQ(set_poll_one(set, first[1], 0), POLLOUT);
}

TEST(closing_and_using_the_number_again_without_write)
{
	struct pair first = tcp_pair(), second = tcp_pair();
	int set = set_open();

	set_write(set, first.a, POLLIN);
	make_readable(first.b);
	CHECK_EQ(set_poll_one(set, first.a, LONG_MS), POLLIN);
	OK(dup2(second.a, first.a));
	make_readable(second.b);
	sleep_ms(1);
	/* The events of a file that the interest is not in must never be reported. */
	CHECK_EQ(set_poll_one(set, first.a, 0), POLLNVAL);
}

TEST(closing_and_using_the_number_again_for_another_kind)
{
	struct pair pair = tcp_pair();
	int ends[2];
	int set = set_open();

	OK(pipe2(ends, O_CLOEXEC));
	set_write(set, pair.a, POLLIN);
	OK(dup2(ends[1], pair.a));
	set_write(set, pair.a, POLLOUT);
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLOUT);
	CHECK_EQ(set_statistics(set).ds_hinted, 0);
	pair = unix_pair(SOCK_STREAM);
	OK(dup2(pair.a, ends[0]));
	set_write(set, ends[0], POLLOUT);
	CHECK_EQ(set_statistics(set).ds_hinted, 1);
}

/* The socket stays open under another number, and later gets its old number back. */
TEST(closing_one_of_two_numbers)
{
	struct pair pair = tcp_pair();
	int other = OK(dup(pair.a));
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	close(pair.a);
	make_readable(pair.b);
	CHECK_EQ(set_poll_one(set, pair.a, LONG_MS), POLLNVAL);
	OK(dup2(other, pair.a));
	CHECK_EQ(set_poll_one(set, pair.a, LONG_MS), POLLIN);
}

TEST(closing_two_numbers_of_one_socket_are_two_entries)
{
	struct pair pair = tcp_pair();
	struct pollfd results[4];
	int other = OK(dup(pair.a));
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	set_write(set, other, POLLIN);
	make_readable(pair.b);
	while (OK(set_poll(set, results, 4, LONG_MS)) < 2)
		sleep_ms(1);
	set_remove(set, pair.a);
	CHECK_EQ(set_poll_one(set, other, 0), POLLIN);
}

TEST(closing_the_set_and_its_duplicates)
{
	struct pair pair = tcp_pair();
	int set = set_open();
	int other = OK(dup(set));

	set_write(set, pair.a, POLLOUT);
	close(set);
	CHECK_EQ(set_poll_one(other, pair.a, 0), POLLOUT);
	set_remove(other, pair.a);
	set_poll_none(other, 0);
	close(other);
}

static void close_in_order(const int sequence[4])
{
	struct pair pair = tcp_pair();
	int set = set_open();
	int fds[4] = { pair.a, OK(dup(pair.a)), set, OK(dup(set)) };
	struct pollfd results[4];

	set_write(set, fds[0], POLLIN | POLLOUT);
	set_write(set, fds[1], POLLIN);
	for (int i = 0; i < 4; i++) {
		close(fds[sequence[i]]);
		/* This fails when both numbers of the socket are closed. */
		(void)!write(pair.b, "x", 1);
		for (int j = 2; j < 4; j++)
			if (set_poll(fds[j], results, 4, 0) < 0)
				CHECK_EQ(errno, EBADF);
	}
	close(pair.b);
}

/* The descriptors are a socket, its duplicate, the set and its duplicate. */
TEST(closing_in_every_order)
{
	int orders = 0;

	for (int code = 0; code < 256; code++) {
		int sequence[4] = { code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6 };
		int used = 0;

		for (int i = 0; i < 4; i++)
			used |= 1 << sequence[i];
		if (used != 15)
			continue;
		close_in_order(sequence);
		orders++;
	}
	CHECK_EQ(orders, 24);
}

TEST(closing_a_set_while_a_thread_waits)
{
	struct pair pair = tcp_pair();
	struct waiter waiter;
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	waiter_start(&waiter, set, LONG_MS);
	waiter_is_asleep(&waiter);
	close(set);
	/* The wait continues, as a read() from a closed descriptor would. */
	make_readable(pair.b);
	CHECK_EQ(waiter_join(&waiter), 1);
}

/* The waits of a thread, and the descriptor whose result ends them. */
struct waits {
	int set, stop;
};

static void *wait_until_stopped(void *context)
{
	const struct waits *waits = context;
	struct pollfd results[4];

	for (;;) {
		int found = OK(set_poll(waits->set, results, 4, -1));

		for (int i = 0; i < found; i++)
			if (results[i].fd == waits->stop)
				return NULL;
	}
}

/*
 * A thread may examine an entry while another one closes the descriptor. The first one then drops
 * the last reference to the file, finds nothing and sleeps; the peer must see the close
 * nevertheless.
 */
TEST(closing_while_a_thread_examines_closes)
{
	enum { ROUNDS = 2000, SPINS = 40000 };
	struct pair stop = unix_pair(SOCK_STREAM);
	struct waits waits = { set_open(), stop.a };
	pthread_t thread;

	set_write(waits.set, stop.a, POLLIN);
	CHECK_EQ(pthread_create(&thread, NULL, wait_until_stopped, &waits), 0);
	for (int round = 0; round < ROUNDS; round++) {
		struct pair pair = unix_pair(SOCK_STREAM);
		struct pollfd peer = { pair.b, POLLIN, 0 };

		set_write(waits.set, pair.a, 0);
		/* A further event wakes the thread, which examines the entry a little later. */
		set_write(waits.set, pair.a, POLLPRI);
		for (volatile int spin = round * 7919 % SPINS; spin > 0; spin--)
			;
		close(pair.a);
		if (OK(poll(&peer, 1, LONG_MS)) != 1)
			test_fail(__FILE__, __LINE__, "round %d: the peer sees no close", round);
		set_remove(waits.set, pair.a);
		close(pair.b);
	}
	make_readable(stop.b);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

TEST(closing_a_socket_while_a_thread_waits)
{
	struct pair pair = unix_pair(SOCK_STREAM), other = unix_pair(SOCK_STREAM);
	struct waiter waiter;
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	set_write(set, other.a, POLLIN);
	waiter_start(&waiter, set, LONG_MS);
	waiter_is_asleep(&waiter);
	close(pair.a);
	sleep_ms(SHORT_MS);
	waiter_is_asleep(&waiter);
	make_readable(other.b);
	CHECK_EQ(waiter_join(&waiter), 1);
	CHECK_EQ(waiter.results[0].fd, other.a);
}
