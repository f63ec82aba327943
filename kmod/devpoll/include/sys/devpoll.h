/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * <sys/devpoll.h>, as programs written for Solaris and illumos include it: struct pollfd,
 * ioctl(), struct dvpoll, DP_POLL and its like. See devpoll(4).
 */
#ifndef _SYS_DEVPOLL_H
#define _SYS_DEVPOLL_H

#include <poll.h>
#include <sys/ioctl.h>
#include <linux/devpoll.h>

/* glibc has it under _GNU_SOURCE only. */
#ifndef POLLREMOVE
#define POLLREMOVE 0x1000
#endif

/* The names of Solaris: the first is in its <poll.h>. */
typedef struct pollfd pollfd_t;
typedef struct dvpoll dvpoll_t;

/* Bytes to mmap() after DP_ALLOC of n results. */
#define DP_MMAP_SIZE(n) ((size_t)(n) * sizeof(struct pollfd))

#endif /* _SYS_DEVPOLL_H */
