// SPDX-License-Identifier: GPL-2.0
/*
 * Allocations and copies that fail, by the kernel's fault injection (failslab, fail_page_alloc,
 * fail_usercopy): the debug kernel has it, others skip. Whatever fails must fail cleanly, and the
 * set must go on working.
 */
#include "util.h"

static void put(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CLOEXEC);

	if (file < 0 || write(file, text, strlen(text)) < 0)
		test_skip("%s: %s", path, strerror(errno));
	close(file);
}

/* Whether `error` is what an allocation or a copy that fails leads to. */
static bool injected(int error)
{
	return error == ENOMEM || error == EFAULT;
}

/*
 * The n-th allocation, or copy from or to the program, of this thread from now on fails; 0 calls
 * it off. The file stays open: opening it anew could itself meet the fault.
 */
static void fail_nth(int file, int n)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", n);
	/* As may this write, if a fault is still to come; then it is behind us. */
	if (pwrite(file, text, strlen(text), 0) < 0 && injected(errno))
		OK(pwrite(file, text, strlen(text), 0));
}

static void set_up(void)
{
	if (access("/proc/thread-self/fail-nth", W_OK))
		test_skip("no fault injection here: CONFIG_FAULT_INJECTION is off");
	put("/sys/kernel/debug/failslab/ignore-gfp-wait", "N");
	put("/sys/kernel/debug/fail_page_alloc/ignore-gfp-wait", "N");
	put("/sys/kernel/debug/fail_page_alloc/min-order", "0");
}

static int attempts(void (*attempt)(int set), int set)
{
	int n, file = OK(open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC));

	/* Until an attempt runs to its end without the fault being met. */
	for (n = 1; n < 200; n++) {
		char left[16] = "";

		fail_nth(file, n);
		attempt(set);
		/* The read may be what meets the fault: then the attempt did not. */
		if (pread(file, left, sizeof(left) - 1, 0) < 0) {
			CHECK(injected(errno));
			break;
		}
		if (atoi(left) > 0)
			break;
	}
	fail_nth(file, 0);
	close(file);
	return n;
}

static struct pair pair;

static void attempt_write(int set)
{
	struct pollfd changes[] = { { pair.a, POLLREMOVE, 0 }, { pair.a, POLLOUT, 0 },
				    { 5000, POLLIN, 0 }, { 5000, POLLREMOVE, 0 } };

	if (write(set, changes, sizeof(changes)) < 0 && !injected(errno))
		test_fail(__FILE__, __LINE__, "write: %s", strerror(errno));
}

static void attempt_open(int set)
{
	int other = open("/dev/poll", O_RDWR | O_CLOEXEC);

	(void)set;
	if (other >= 0) {
		set_poll(other, NULL, 0, 0);
		close(other);
	} else if (!injected(errno) && errno != ENFILE) {
		test_fail(__FILE__, __LINE__, "open: %s", strerror(errno));
	}
}

static void attempt_area(int set)
{
	if (!ioctl(set, DP_ALLOC, 1000)) {
		void *mapping = mmap(NULL, 4096, PROT_READ, MAP_SHARED, set, 0);

		/* One fault at a time: what met it works when it is tried again. */
		if (mapping != MAP_FAILED && munmap(mapping, 4096) < 0)
			OK(munmap(mapping, 4096));
		if (ioctl(set, DP_FREE) < 0)
			OK(ioctl(set, DP_FREE));
	} else if (!injected(errno)) {
		test_fail(__FILE__, __LINE__, "DP_ALLOC: %s", strerror(errno));
	}
}

static void attempt_sleep(int set)
{
	struct pollfd result;

	if (set_poll(set, &result, 1, 1) < 0 && !injected(errno))
		test_fail(__FILE__, __LINE__, "DP_POLL: %s", strerror(errno));
}

static void attempt_hpoll(int set)
{
	struct pollfd fds[] = { { pair.a, POLLIN, 0 }, { pair.b, POLLIN, 0 } };
	struct dvpoll wait = { fds, 2, 0, NULL };
	int answer = ioctl(set, DP_HPOLL, &wait);

	if (answer < 0 && !injected(errno))
		test_fail(__FILE__, __LINE__, "DP_HPOLL: %s", strerror(errno));
	/* A hint that could not be placed costs time, not truth. */
	if (!answer)
		CHECK_EQ(fds[0].revents | fds[1].revents, 0);
}

TEST(memory_write)
{
	int set = set_open();

	set_up();
	pair = unix_pair(SOCK_STREAM);
	CHECK(attempts(attempt_write, set) > 1);
	set_write(set, pair.a, POLLOUT);
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLOUT);
}

TEST(memory_open)
{
	set_up();
	CHECK(attempts(attempt_open, -1) > 1);
}

TEST(memory_area)
{
	int set = set_open();

	set_up();
	CHECK(attempts(attempt_area, set) > 1);
	OK(ioctl(set, DP_ALLOC, 1000));
}

TEST(memory_sleep)
{
	int ends[2], set = set_open();

	set_up();
	/* More queues to wait in than poll_wqueues has room for by itself. */
	for (int i = 0; i < 40; i++) {
		OK(pipe2(ends, O_CLOEXEC));
		set_write(set, ends[0], POLLIN);
	}
	CHECK(attempts(attempt_sleep, set) > 1);
	make_readable(ends[1]);
	CHECK_EQ(set_poll_one(set, ends[0], LONG_MS), POLLIN);
}

TEST(memory_hpoll)
{
	int set = set_open();

	set_up();
	pair = unix_pair(SOCK_STREAM);
	CHECK(attempts(attempt_hpoll, set) > 1);
}
