/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Every way Linux offers to wait for I/O, behind one interface: pollux_event(3).
 *
 * Functions that return an int return a negated error number when they fail; pollux_message() then
 * gives the reason in a sentence. A set is used by one thread at a time, and one of rtsig, hybrid or
 * uring-poll:taskrun=defer only by the thread that opened it; wakers are used by any.
 */
#ifndef POLLUX_H
#define POLLUX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Interest: a read, a write would not block. */
#define POLLUX_READ 1
#define POLLUX_WRITE 2

/* Readiness. */
#define POLLUX_READABLE 1    /* data, an end of stream, or an error to collect */
#define POLLUX_WRITABLE 2    /* a write would not block */
#define POLLUX_READ_CLOSED 4 /* the peer shut down its writing half */
#define POLLUX_HANGUP 8      /* both directions are closed */
#define POLLUX_ERROR 16      /* an error is pending on the descriptor */
#define POLLUX_INVALID 32    /* the descriptor was closed without the set's knowledge */

/* Capabilities. */
#define POLLUX_EDGE 1                   /* once per arrival: read or write until EAGAIN */
#define POLLUX_BATCHED_CHANGES 2        /* changes go to the kernel with the next wait */
#define POLLUX_SCANS 4                  /* a wait costs what the set holds, not what is ready */
#define POLLUX_OVERFLOWS 8              /* the kernel's queue may overflow; it recovers */
#define POLLUX_CLOSE_REMOVES 16         /* close() takes it out of the kernel, not of the set */
#define POLLUX_SPURIOUS_WAKEUPS 32      /* waits may return for other events */
#define POLLUX_ONE_OWNER 64             /* an open file reports to one set, by one descriptor */
#define POLLUX_ERRORS_NEED_INTEREST 128 /* without interest no errors are reported */
#define POLLUX_TAKES_FILES 256          /* regular files can be added; always ready */
#define POLLUX_USES_RING 512            /* waits with io_uring, which seccomp must allow */

/* The most events of one wait where pollux_open() is given 0. */
#define POLLUX_DEFAULT_EVENTS 512

/* An interest set, and what makes its wait return. */
struct pollux_set;
struct pollux_waker;

/* One descriptor that is, or recently was, ready. */
struct pollux_event {
	uint64_t token; /* what pollux_add() gave for it */
	int fd;
	uint32_t readiness; /* POLLUX_READABLE and others */
};

/* The name of mechanism number index; NULL behind the last. */
const char *pollux_name(size_t index);

/* Tries a mechanism on this kernel: 0, or -ENOSYS where it is not available. */
int pollux_probe(const char *mechanism);

/* Opens an empty set of a mechanism: "name" or "name:key=value,key=value". */
int pollux_open(const char *mechanism, size_t max_events, struct pollux_set **set);

/* Closes the set; the descriptors in it stay open. NULL is allowed. */
void pollux_close(struct pollux_set *set);

/* POLLUX_EDGE and others. */
uint32_t pollux_capabilities(const struct pollux_set *set);

/* Adds a non-blocking descriptor; token gets what names this use of its number. The descriptor stays
 * open until pollux_remove() or pollux_close_fd(). After close() alone its number is still in the set,
 * and the next file with this number is refused (EEXIST). */
int pollux_add(struct pollux_set *set, int fd, uint32_t interest, uint64_t *token);

/* Replaces the interest in token. */
int pollux_modify(struct pollux_set *set, uint64_t token, uint32_t interest);

/* Takes token out of the set; its descriptor stays open. */
int pollux_remove(struct pollux_set *set, uint64_t token);

/* Takes token out of the set and closes its descriptor, with the fewest system calls. The descriptor
 * must have no copies (dup(), fork()); if it has, use pollux_remove() and close(). */
int pollux_close_fd(struct pollux_set *set, uint64_t token, int fd);

/* Waits for events, timeout_ms (negative: for ever), a waker or a signal: how many there may be. */
int pollux_wait(struct pollux_set *set, int timeout_ms);

/* The next event of the last wait: 1, or 0 when there is none left. */
int pollux_next(struct pollux_set *set, struct pollux_event *event);

/* After fork(), in the child: gives the set kernel objects of its own, with the same tokens. */
int pollux_reopen_after_fork(struct pollux_set *set);

int pollux_waker_open(struct pollux_set *set, struct pollux_waker **waker);

/* Makes the set's wait return: from any thread and from signal handlers. */
void pollux_wake(const struct pollux_waker *waker);

void pollux_waker_close(struct pollux_waker *waker);

/* Why this thread's last failed call failed; valid until its next failed call. */
const char *pollux_message(void);

#ifdef __cplusplus
}
#endif

#endif
