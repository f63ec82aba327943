// SPDX-License-Identifier: GPL-2.0
/*
 * ioctl() of 32-bit programs on a 64-bit kernel. Structures that contain addresses have another
 * layout there; struct pollfd, the statistics and the ioctl numbers are the same.
 */
#include <linux/compat.h>
#include <linux/uaccess.h>

#include "internal.h"

struct dp_wait_args32 {
	compat_uptr_t fds;
	compat_int_t nfds;
	compat_int_t timeout;
	compat_uptr_t sigmask;
};

struct dp_update_args32 {
	compat_uptr_t changes;
	compat_uptr_t fds;
	compat_uptr_t sigmask;
	compat_int_t nchanges;
	compat_int_t nfds;
	compat_int_t timeout;
	compat_int_t flags;
};

static long dp_compat_wait(struct dp_set *set, unsigned int cmd,
			   const struct dp_wait_args32 __user *user)
{
	/* Only DP_PPOLL reads the last member; other callers may pass a shorter structure. */
	size_t size = cmd == DP_PPOLL ? sizeof(*user) : offsetof(struct dp_wait_args32, sigmask);
	struct dp_wait_args32 args = {};
	sigset_t mask;

	if (copy_from_user(&args, user, size))
		return -EFAULT;
	if (cmd == DP_HPOLL)
		return dp_hpoll(set, compat_ptr(args.fds), args.nfds, args.timeout);
	if (args.sigmask && get_compat_sigset(&mask, compat_ptr(args.sigmask)))
		return -EFAULT;
	return dp_wait_masked(set, compat_ptr(args.fds), args.nfds, args.timeout,
			      args.sigmask ? &mask : NULL);
}

static long dp_compat_update_poll(struct dp_set *set, const struct dp_update_args32 __user *user)
{
	struct dp_update_args32 args;
	sigset_t mask;
	long result;

	if (copy_from_user(&args, user, sizeof(args)))
		return -EFAULT;
	if (args.flags || args.nfds < 0)
		return -EINVAL;
	if (args.sigmask && get_compat_sigset(&mask, compat_ptr(args.sigmask)))
		return -EFAULT;
	result = dp_apply(set, compat_ptr(args.changes), args.nchanges);
	if (result)
		return result;
	return dp_wait_masked(set, compat_ptr(args.fds), args.nfds, args.timeout,
			      args.sigmask ? &mask : NULL);
}

/**
 * dp_compat_ioctl() - ioctl() of a 32-bit program
 * @file: an open /dev/poll
 * @cmd: DP_*
 * @arg: an address in user space or a number
 *
 * Return: as dp_ioctl().
 */
long dp_compat_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct dp_set *set = file->private_data;
	int error;

	switch (cmd) {
	case DP_POLL:
	case DP_PPOLL:
	case DP_HPOLL:
	case DP_UPDATE_POLL:
		break;
	case DP_ISPOLLED:
	case DP_GETSTATISTICS:
		return dp_ioctl(file, cmd, (unsigned long)compat_ptr(arg));
	default:
		return dp_ioctl(file, cmd, arg);
	}
	error = dp_check_owner(set);
	if (error)
		return error;
	if (cmd == DP_UPDATE_POLL)
		return dp_no_restart(dp_compat_update_poll(set, compat_ptr(arg)));
	return dp_compat_wait(set, cmd, compat_ptr(arg));
}
