// SPDX-License-Identifier: GPL-2.0
/* DP_UPDATE_POLL: changes and a wait in one call. */
#include "util.h"

TEST(updating_applies_then_waits)
{
	struct pair first = tcp_pair(), second = tcp_pair();
	struct pollfd changes[] = { { first.a, POLLOUT, 0 }, { second.a, POLLIN, 0 } };
	struct pollfd results[4];
	int set = set_open();

	CHECK_EQ(set_update_poll(set, changes, 2, results, 4, LONG_MS), 1);
	CHECK_EQ(results[0].fd, first.a);
	CHECK_EQ(results[0].revents, POLLOUT);
	changes[0].events = POLLREMOVE;
	make_readable(second.b);
	CHECK_EQ(set_update_poll(set, changes, 1, results, 4, LONG_MS), 1);
	CHECK_EQ(results[0].fd, second.a);
	CHECK_EQ(set_update_poll(set, NULL, 0, results, 4, 0), 1);
}

TEST(updating_errors)
{
	struct pair pair = tcp_pair();
	int set = set_open();
	struct pollfd changes[] = { { set, POLLIN, 0 }, { pair.a, POLLOUT, 0 } };
	struct dvpoll_update update = { .du_flags = 1 };
	struct pollfd results[4];

	/* The rest of the batch is applied, and there is no wait. */
	CHECK_ERRNO(set_update_poll(set, changes, 2, results, 4, -1), ELOOP);
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLOUT);
	CHECK_ERRNO(set_update_poll(set, changes, -1, results, 4, 0), EINVAL);
	CHECK_ERRNO(set_update_poll(set, (void *)16, 1, results, 4, 0), EFAULT);
	CHECK_ERRNO(ioctl(set, DP_UPDATE_POLL, &update), EINVAL);
	CHECK_ERRNO(ioctl(set, DP_UPDATE_POLL, NULL), EFAULT);
	CHECK_ERRNO(set_update_poll(set, NULL, 0, results, -1, 0), EINVAL);
}

TEST(updating_with_a_large_batch)
{
	enum { COUNT = 500 };
	static struct pollfd changes[COUNT], results[COUNT];
	int fd = OK(open("/dev/null", O_RDWR | O_CLOEXEC));
	int set = set_open();

	for (int i = 0; i < COUNT; i++)
		changes[i] = (struct pollfd){ OK(dup(fd)), POLLOUT, 0 };
	CHECK_EQ(set_update_poll(set, changes, COUNT, results, COUNT, 0), COUNT);
}

TEST(updating_asks_the_driver_once)
{
	struct pair pair = tcp_pair();
	struct pollfd change = { pair.a, POLLIN, 0 }, result;
	struct dvpoll_statistics before, after;
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	before = set_statistics(set);
	change.events = POLLOUT;
	CHECK_EQ(set_update_poll(set, &change, 1, &result, 1, 0), 1);
	after = set_statistics(set);
	CHECK_EQ(after.ds_driver_polls + after.ds_hook_polls -
			 before.ds_driver_polls - before.ds_hook_polls, 1);
}

TEST(updating_with_a_signal_mask)
{
	struct dvpoll_update update = { .du_timeout = SHORT_MS, .du_nfds = 1 };
	struct pollfd result;
	sigset_t mask;
	int set = set_open();

	signal(SIGUSR1, SIG_DFL);
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	OK(sigprocmask(SIG_SETMASK, &mask, NULL));
	raise(SIGUSR1);
	update.du_fds = &result;
	update.du_setp = &mask;
	CHECK_EQ(ioctl(set, DP_UPDATE_POLL, &update), 0);
}
