/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * <sys/devpoll.h>, the header that programs written for Solaris and illumos include. It defines
 * struct pollfd, ioctl(), struct dvpoll, and DP_POLL and the other calls. See devpoll(4).
 */
#ifndef _SYS_DEVPOLL_H
#define _SYS_DEVPOLL_H

#include <poll.h>
#include <sys/ioctl.h>
#include <linux/devpoll.h>

/* glibc defines it only with _GNU_SOURCE. */
#ifndef POLLREMOVE
#define POLLREMOVE 0x1000
#endif

/* Type names of Solaris, which defines pollfd_t in <poll.h>. */
typedef struct pollfd pollfd_t;
typedef struct dvpoll dvpoll_t;

/* Number of bytes to mmap() after DP_ALLOC of n results. */
#define DP_MMAP_SIZE(n) (sizeof(struct pollfd) * (n))

#endif /* _SYS_DEVPOLL_H */
