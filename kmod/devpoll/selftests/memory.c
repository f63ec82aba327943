// SPDX-License-Identifier: GPL-2.0
/*
 * Allocations and copies that fail through the kernel's fault injection (failslab, fail_page_alloc,
 * fail_usercopy). The debug kernel has it; on other kernels the tests are skipped. Each failure
 * must be clean, and the set must continue to work.
 */
#include "util.h"

static void put(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CLOEXEC);

	if (file < 0 || write(file, text, strlen(text)) < 0)
		test_skip("%s: %s", path, strerror(errno));
	close(file);
}

/* Returns whether `error` is the result of a failed allocation or copy. */
static bool injected(int error)
{
	return error == ENOMEM || error == EFAULT;
}

/*
 * Makes the n-th allocation, or copy from or to user space, of this thread fail; 0 turns this off.
 * The file stays open, because opening it again could itself hit the fault.
 */
static void fail_nth(int file, int n)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", n);
	/* This write may also hit a fault that is still pending; then the fault is over. */
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

	/* Repeat until an attempt ends without hitting the fault. */
	for (n = 1; n < 200; n++) {
		char left[16] = "";

		fail_nth(file, n);
		attempt(set);
		/* If the read hits the fault, the attempt has not hit it. */
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

		/* Only one call fails; a second call must succeed. */
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
	/* If a hook cannot be placed, calls are slower but still correct. */
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
	/* More wait queues than poll_wqueues has inline room for. */
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
