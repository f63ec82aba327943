/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A small test harness: prints TAP on standard output and runs each test in a separate process.
 *
 * A test is a function declared with TEST(name). It fails if a CHECK does not hold, if its process
 * dies, or if it takes longer than TEST_SECONDS. After each test the harness checks the kernel's
 * log and looks for resources that the test left behind (see leaks.c).
 */
#ifndef HARNESS_H
#define HARNESS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <sys/devpoll.h>

#define TEST_SECONDS 90
#define EXIT_SKIP 77
/* Long enough to be a sleep, short enough to wait for it in a test. */
#define SHORT_MS 50
/* An operation that must finish takes less than this, even on a busy machine under emulation. */
#define LONG_MS 20000

struct test {
	const char *name;
	void (*run)(void);
	struct test *next;
};

void test_register(struct test *test);

#define TEST(function)                                                                  \
	static void function(void);                                                     \
	static struct test test_##function = { #function, function, NULL };             \
	__attribute__((constructor)) static void register_##function(void)              \
	{                                                                               \
		test_register(&test_##function);                                        \
	}                                                                               \
	static void function(void)

__attribute__((noreturn, format(printf, 3, 4))) void test_fail(const char *file, int line,
							       const char *format, ...);
__attribute__((noreturn, format(printf, 1, 2))) void test_skip(const char *format, ...);

#define CHECK(condition)                                                                \
	do {                                                                            \
		if (!(condition))                                                       \
			test_fail(__FILE__, __LINE__, "%s", #condition);                \
	} while (0)

#define CHECK_EQ(left, right)                                                           \
	do {                                                                            \
		long long left_ = (left), right_ = (right);                             \
		if (left_ != right_)                                                    \
			test_fail(__FILE__, __LINE__, "%s is %lld, not %s (%lld)",      \
				  #left, left_, #right, right_);                        \
	} while (0)

/* A system call that must succeed; evaluates to its result. */
#define OK(call)                                                                        \
	({                                                                              \
		long long result_ = (call);                                             \
		if (result_ < 0)                                                        \
			test_fail(__FILE__, __LINE__, "%s: %s", #call, strerror(errno)); \
		result_;                                                                \
	})

/* A system call that must fail with this errno. */
#define CHECK_ERRNO(call, number)                                                       \
	do {                                                                            \
		errno = 0;                                                              \
		long long result_ = (call);                                             \
		if (result_ != -1 || errno != (number))                                 \
			test_fail(__FILE__, __LINE__, "%s gave %lld, errno %s, not %s", \
				  #call, result_, strerrorname_np(errno), #number);     \
	} while (0)

/* leaks.c */
struct snapshot {
	long sets, entries, sockets;
};
/* The number after a label at the beginning of a line of a file; -1 if there is no such line. */
long number_after(const char *path, const char *label);
void snapshot_take(struct snapshot *snapshot);
bool snapshot_settles(const struct snapshot *before, char *why, size_t size);
bool kernel_log_is_clean(char *line, size_t size);
void kernel_log_skip(void);
/* Names the checks after each test that cannot be made here; returns their number. */
int leaks_unchecked(void);

#endif /* HARNESS_H */
