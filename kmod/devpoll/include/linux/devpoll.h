/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * /dev/poll: what the kernel module and its callers agree on.
 *
 * Programs include <sys/devpoll.h>, as on Solaris and illumos; this file has the numbers and
 * structures alone, so that it can be included beside either of <poll.h> and <linux/poll.h>, and
 * includes nothing: not every C library comes with the kernel's headers (musl-gcc does not).
 * The meaning of each is in devpoll(4).
 */
#ifndef _LINUX_DEVPOLL_H
#define _LINUX_DEVPOLL_H

struct pollfd;

/* 64 bits in every program, whatever its standard of C or C++. */
__extension__ typedef unsigned long long dvpoll_count_t;

/* The numbers of Solaris and illumos. */
#define DPIOC			(0xD0 << 8)
#define DP_POLL			(DPIOC | 1)	/* struct dvpoll *: wait */
#define DP_ISPOLLED		(DPIOC | 2)	/* struct pollfd *: is this in the set? */
#define DP_PPOLL		(DPIOC | 3)	/* struct dvpoll *: wait with a signal mask */
/* 4 is DP_EPOLLCOMPAT of illumos, which this system answers with EINVAL. */

/* Provos and Lever 2000, section 3.3: a mapping into which results are written. */
#define DP_ALLOC		(DPIOC | 0x10)	/* int: room for so many results */
#define DP_FREE			(DPIOC | 0x11)	/* no argument */

/* Provos and Lever 2000, section 6: "a single ioctl() that handles both operations at once". */
#define DP_UPDATE_POLL		(DPIOC | 0x12)	/* struct dvpoll_update *: change, then wait */

/* Provos 1999: poll() itself, helped by hints. */
#define DP_HPOLL		(DPIOC | 0x13)	/* struct dvpoll *: the whole array, each time */

/* This module's own. */
#define DP_SETOPTIONS		(DPIOC | 0x20)	/* int: DP_OPTION_* or'ed */
#define DP_GETOPTIONS		(DPIOC | 0x21)	/* no argument; returns DP_OPTION_* or'ed */
#define DP_GETSTATISTICS	(DPIOC | 0x22)	/* struct dvpoll_statistics * */

#define DP_OPTION_OR		0x1	/* write() adds to an interest's events (/dev/poll does) */
#define DP_OPTION_NOHINTS	0x2	/* poll every entry at every scan; empty sets only */
#define DP_OPTION_TABLE		0x4	/* walk the whole table at every scan, as the paper did */
#define DP_OPTION_EXCLUSIVE	0x8	/* a hint wakes one waiting thread, not all of them */
#define DP_OPTION_ALL		0xf

/**
 * struct dvpoll - the argument of DP_POLL, DP_PPOLL and DP_HPOLL
 * @dp_fds: where results go; NULL: into the mapping. DP_HPOLL: the array, in and out
 * @dp_nfds: room there, in results; 0 just sleeps
 * @dp_timeout: milliseconds; 0 does not wait, below 0 waits for ever
 * @dp_setp: DP_PPOLL only (DP_POLL does not read it): a sigset_t to wait with, or NULL
 */
struct dvpoll {
	struct pollfd *dp_fds;
	int dp_nfds;
	int dp_timeout;
	const void *dp_setp;
};

/**
 * struct dvpoll_update - the argument of DP_UPDATE_POLL
 * @du_changes: what would be written to the descriptor
 * @du_fds: as dp_fds
 * @du_setp: as dp_setp; NULL keeps the signal mask
 * @du_nchanges: entries in @du_changes; 0 only waits
 * @du_nfds: as dp_nfds
 * @du_timeout: as dp_timeout
 * @du_flags: 0
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
 * @ds_size: in: the size the caller knows, which is as much as is written; out: the kernel's
 * @ds_entries: interests now in the set
 * @ds_hinted: those of them that carry a hook in their socket
 * @ds_waits: calls that looked for events (DP_POLL, DP_PPOLL, DP_UPDATE_POLL, DP_HPOLL)
 * @ds_scans: passes over what is pending (several for a wait that slept)
 * @ds_driver_polls: entries examined by scans: calls of a driver's poll function, or looks that
 *		     found a TCP connection drained without one
 * @ds_hook_polls: calls of it by write(), to place a hook
 * @ds_hints: hints that drivers posted (an entry counts once until it is examined)
 * @ds_cached: entries examined only because they were ready the last time
 * @ds_skipped: entries that a table scan or DP_HPOLL passed over thanks to missing hints
 * @ds_results: results reported
 * @ds_sleeps: times that a caller went to sleep
 * @ds_wakeups: times that it was woken before its time was over
 * @ds_changes: entries of write() and DP_UPDATE_POLL applied
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
