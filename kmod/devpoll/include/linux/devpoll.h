/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * /dev/poll: the interface between the kernel module and its callers, described in devpoll(4).
 *
 * Programs include <sys/devpoll.h>, as on Solaris and illumos. This file contains only numbers and
 * structures and includes no other header. It can therefore be used together with either <poll.h>
 * or <linux/poll.h>, and with C libraries that lack the kernel's headers (musl-gcc).
 */
#ifndef _LINUX_DEVPOLL_H
#define _LINUX_DEVPOLL_H

struct pollfd;

/* 64 bits in every program, under every C and C++ standard. */
__extension__ typedef unsigned long long dvpoll_count_t;

/* The numbers of Solaris and illumos. */
#define DPIOC			(0xD0 << 8)
#define DP_POLL			(DPIOC | 1)	/* struct dvpoll *: wait */
#define DP_ISPOLLED		(DPIOC | 2)	/* struct pollfd *: is this fd in the set? */
#define DP_PPOLL		(DPIOC | 3)	/* struct dvpoll *: wait with a signal mask */
/* 4 is DP_EPOLLCOMPAT of illumos; this module returns EINVAL for it. */

/* Provos and Lever 2000, section 3.3: the kernel writes results into a mapping. */
#define DP_ALLOC		(DPIOC | 0x10)	/* int: capacity of the mapping in results */
#define DP_FREE			(DPIOC | 0x11)	/* no argument */

/* Provos and Lever 2000, section 6: "a single ioctl() that handles both operations at once". */
#define DP_UPDATE_POLL		(DPIOC | 0x12)	/* struct dvpoll_update *: change, then wait */

/* Provos 1999: poll() that uses hints. */
#define DP_HPOLL		(DPIOC | 0x13)	/* struct dvpoll *: takes the whole array */

/* This module's own. */
#define DP_SETOPTIONS		(DPIOC | 0x20)	/* int: DP_OPTION_* or'ed; others are off */
#define DP_GETOPTIONS		(DPIOC | 0x21)	/* no argument; returns DP_OPTION_* or'ed */
#define DP_GETSTATISTICS	(DPIOC | 0x22)	/* struct dvpoll_statistics * */

#define DP_OPTION_OR		0x1	/* write() adds to events (the default of /dev/poll) */
#define DP_OPTION_NOHINTS	0x2	/* poll every entry at every scan; empty sets only */
#define DP_OPTION_TABLE		0x4	/* walk the whole table at every scan, as the paper did */
#define DP_OPTION_EXCLUSIVE	0x8	/* a hint wakes one waiting thread, not all of them */
#define DP_OPTION_ALL		0xf

/**
 * struct dvpoll - the argument of DP_POLL, DP_PPOLL and DP_HPOLL
 * @dp_fds: destination of the results; NULL: the mapping. DP_HPOLL: the array, read and written
 * @dp_nfds: capacity of @dp_fds in results; 0: only sleep
 * @dp_timeout: milliseconds; 0: do not wait; negative: no timeout
 * @dp_setp: DP_PPOLL: a sigset_t, the signal mask during the wait, or NULL; DP_POLL does not read
 *	  it
 */
struct dvpoll {
	struct pollfd *dp_fds;
	int dp_nfds;
	int dp_timeout;
	const void *dp_setp;
};

/**
 * struct dvpoll_update - the argument of DP_UPDATE_POLL
 * @du_changes: the changes, as write() takes them
 * @du_fds: as dp_fds
 * @du_setp: as dp_setp; NULL keeps the signal mask
 * @du_nchanges: number of entries in @du_changes; 0: only wait
 * @du_nfds: as dp_nfds
 * @du_timeout: as dp_timeout
 * @du_flags: must be 0
 */
struct dvpoll_update {
	const struct pollfd *du_changes;
	struct pollfd *du_fds;
	const void *du_setp;
	int du_nchanges;
	int du_nfds;
	int du_timeout;
	int du_flags;
};

/**
 * struct dvpoll_statistics - the argument of DP_GETSTATISTICS
 * @ds_size: in: size of the caller's structure, at most this much is written; out: the kernel's
 *	  size
 * @ds_entries: current number of interests in the set
 * @ds_hinted: number of those that have a hook in their socket
 * @ds_waits: waits that scanned (DP_POLL, DP_PPOLL, DP_UPDATE_POLL, DP_HPOLL)
 * @ds_scans: scans of the pending entries (several for a wait that slept)
 * @ds_driver_polls: entries examined by scans, by a call of the driver's poll function or, for a
 *		     TCP connection, by a check that found it drained
 * @ds_hook_polls: calls of a driver's poll function by write(), to place a hook
 * @ds_hints: hints posted by drivers (an entry counts once until it is examined)
 * @ds_cached: entries examined only because they were ready at the last scan
 * @ds_skipped: entries that a table scan or DP_HPOLL skipped because they had no hint
 * @ds_results: results reported
 * @ds_sleeps: number of times that a caller went to sleep
 * @ds_wakeups: number of times that a caller was woken before its timeout
 * @ds_changes: changes applied by write() and DP_UPDATE_POLL
 */
struct dvpoll_statistics {
	dvpoll_count_t ds_size;
	dvpoll_count_t ds_entries;
	dvpoll_count_t ds_hinted;
	dvpoll_count_t ds_waits;
	dvpoll_count_t ds_scans;
	dvpoll_count_t ds_driver_polls;
	dvpoll_count_t ds_hook_polls;
	dvpoll_count_t ds_hints;
	dvpoll_count_t ds_cached;
	dvpoll_count_t ds_skipped;
	dvpoll_count_t ds_results;
	dvpoll_count_t ds_sleeps;
	dvpoll_count_t ds_wakeups;
	dvpoll_count_t ds_changes;
};

#endif /* _LINUX_DEVPOLL_H */
