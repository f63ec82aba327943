/* SPDX-License-Identifier: GPL-2.0 */
/* What most tests need: sets, pairs of sockets, waits, counters, threads. */
#ifndef UTIL_H
#define UTIL_H

#include "harness.h"

/* Where a write replaces: all options off. */
int set_open(void);
int set_open_with(int options);
void set_write(int set, int fd, short events);
void set_remove(int set, int fd);
int set_poll(int set, struct pollfd *results, int room, int timeout);
int set_update_poll(int set, const struct pollfd *changes, int nchanges, struct pollfd *results,
		    int room, int timeout);
/* The one result of a wait that must give exactly one, for this descriptor, in its time. */
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
 * An address where no memory is. The compiler does not see which: some take its use for a fault
 * of the program's (-Wstringop-overread of GCC 14).
 */
static inline void *nowhere(void)
{
	void *volatile address = (void *)16;

	return address;
}

long now_ms(void);
void sleep_ms(long ms);

/* RLIMIT_NOFILE of at least this for the length of a test; skips without the right to raise it. */
void raise_descriptor_limit(unsigned long wanted);

/* A thread that waits on a set, and what came of it. */
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
/* Returns once a thread of this process, a child, or a waiter's thread sleeps in the kernel. */
void thread_is_asleep(pid_t tid);
void process_is_asleep(pid_t pid);
void waiter_is_asleep(struct waiter *waiter);
/* What the wait returned; with results, it must have done so before its time was over. */
int waiter_join(struct waiter *waiter);

/* A module parameter for the length of a test; skips without the right to write it. */
void parameter_set(const char *name, const char *value);
void parameter_get(const char *name, char *value, size_t size);

/* Runs a function in a child and fails if that fails. */
void in_child(void (*run)(void *), void *context);

#endif /* UTIL_H */
