/* SPDX-License-Identifier: GPL-2.0 */
/* Helpers of most tests: sets, pairs of sockets, waits, counters, threads. */
#ifndef UTIL_H
#define UTIL_H

#include "harness.h"

/* Opens a set in which a write replaces events, with all options off. */
int set_open(void);
int set_open_with(int options);
void set_write(int set, int fd, short events);
void set_remove(int set, int fd);
int set_poll(int set, struct pollfd *results, int room, int timeout);
int set_update_poll(int set, const struct pollfd *changes, int nchanges, struct pollfd *results,
		    int room, int timeout);
/*
 * Waits and returns the revents of the only result, which must be for this descriptor and come
 * before the timeout.
 */
short set_poll_one(int set, int fd, int timeout);
void set_poll_none(int set, int timeout);
struct dvpoll_statistics set_statistics(int set);

struct pair {
	int a, b;
};
struct pair tcp_pair(void);
struct pair tcp6_pair(void);
struct pair unix_pair(int type);
int tcp_listen(int family, struct sockaddr_storage *address, socklen_t *length);
void pair_close(struct pair pair);
void make_readable(int peer);
void drain(int fd);
void fill(int fd);

/*
 * Returns an unmapped address. The compiler must not know the value, because some compilers report
 * its use as a fault of the program (-Wstringop-overread of GCC 14).
 */
static inline void *nowhere(void)
{
	void *volatile address = (void *)16;

	return address;
}

/* A handler for signals that only interrupt system calls. */
void do_nothing(int number);

long now_ms(void);
void sleep_ms(long ms);

/*
 * Raises RLIMIT_NOFILE to at least this for the rest of the test; skips the test without the right
 * to do so.
 */
void raise_descriptor_limit(unsigned long wanted);

/* A thread that waits on a set, and the result of its wait. */
struct waiter {
	pthread_t thread;
	int set, timeout;
	int room;
	struct pollfd results[16];
	int result, error;
	bool time_was_over;
	volatile int done;
	volatile pid_t tid;
};
void waiter_start(struct waiter *waiter, int set, int timeout);
void waiter_start_with_room(struct waiter *waiter, int set, int room, int timeout);
/* Returns when a thread of this process, a child, or a waiter's thread sleeps in the kernel. */
void thread_is_asleep(pid_t tid);
void process_is_asleep(pid_t pid);
void waiter_is_asleep(struct waiter *waiter);
/*
 * Joins the thread and returns the result of its wait. A wait with results must have ended before
 * its timeout.
 */
int waiter_join(struct waiter *waiter);

/*
 * Sets a module parameter for the rest of the test; skips the test without the right to write it.
 */
void parameter_set(const char *name, const char *value);
void parameter_get(const char *name, char *value, size_t size);

/* Runs a function in a child process, and fails if it fails. */
void in_child(void (*run)(void *), void *context);

#endif /* UTIL_H */
