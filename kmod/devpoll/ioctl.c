// SPDX-License-Identifier: GPL-2.0
/*
 * ioctl(): checks the owner, dispatches the calls, and contains the fast path of a wait.
 */
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "scan.h"

/**
 * dp_claim_owner() - makes the caller's process the owner of a set that has none
 * @set: the set
 *
 * Return: 0; -EACCES if another process already owns the set.
 */
int dp_claim_owner(struct dp_set *set)
{
	struct pid *group = get_pid(task_tgid(current));
	struct pid *owner = cmpxchg(&set->owner, NULL, group);

	if (!owner)
		return 0;
	put_pid(group);
	/* Another thread of this process may have been faster. */
	return owner == group ? 0 : -EACCES;
}

/**
 * dp_wait_masked() - DP_PPOLL: waits with a temporary signal mask
 * @set: the set
 * @fds: as for dp_wait()
 * @nfds: as for dp_wait()
 * @timeout: as for dp_wait()
 * @mask: the signals to block during the wait; NULL keeps the current mask
 *
 * As on illumos, a pending signal that the mask does not block takes precedence over ready events.
 *
 * Return: as dp_wait().
 */
long dp_wait_masked(struct dp_set *set, struct pollfd __user *fds, int nfds, int timeout,
		    const sigset_t *mask)
{
	sigset_t blocked;
	long result;

	if (!mask)
		return dp_wait(set, fds, nfds, timeout);
	blocked = *mask;
	sigdelsetmask(&blocked, sigmask(SIGKILL) | sigmask(SIGSTOP));
	current->saved_sigmask = current->blocked;
	set_restore_sigmask();
	sigprocmask(SIG_SETMASK, &blocked, NULL);

	result = signal_pending(current) ? dp_signal_error(timeout) :
					   dp_wait(set, fds, nfds, timeout);

	/* After a signal the kernel restores the old mask, with or without a signal handler. */
	if (result != -EINTR && result != -ERESTARTNOHAND && test_and_clear_restore_sigmask())
		sigprocmask(SIG_SETMASK, &current->saved_sigmask, NULL);
	return result;
}

/**
 * dp_ispolled() - DP_ISPOLLED: looks up the interest in a descriptor
 * @set: the set
 * @user: its fd is read; the events of the interest are stored in its revents
 *
 * Return: 1 if the descriptor is in the set; 0 if not; -EFAULT; -EINTR if the caller is killed.
 */
long dp_ispolled(struct dp_set *set, struct pollfd __user *user)
{
	struct dp_entry *entry;
	bool found = false;
	u16 events = 0;
	int fd;

	if (get_user(fd, &user->fd))
		return -EFAULT;
	if (fd < 0)
		return 0;
	if (mutex_lock_killable(&set->lock))
		return -EINTR;
	entry = set->use == DP_USE_SET ? xa_load(&set->table, fd) : NULL;
	if (entry) {
		found = true;
		events = entry->events;
	}
	mutex_unlock(&set->lock);
	if (found && put_user(events, &user->revents))
		return -EFAULT;
	return found;
}

static long dp_ioctl_ppoll(struct dp_set *set, struct dp_wait_args __user *user)
{
	struct dp_wait_args args;
	sigset_t mask;

	if (copy_from_user(&args, user, sizeof(args)))
		return -EFAULT;
	if (args.sigmask && copy_from_user(&mask, args.sigmask, sizeof(mask)))
		return -EFAULT;
	return dp_wait_masked(set, args.fds, args.nfds, args.timeout,
			      args.sigmask ? &mask : NULL);
}

static long dp_ioctl_hpoll(struct dp_set *set, struct dp_wait_args __user *user)
{
	struct dp_wait_args args;

	if (copy_from_user(&args, user, offsetof(struct dp_wait_args, sigmask)))
		return -EFAULT;
	return dp_hpoll(set, args.fds, args.nfds, args.timeout);
}

/* Not inlined, so that the fast paths of dp_ioctl() save fewer registers and need less stack. */
static noinline long dp_ioctl_other(struct dp_set *set, unsigned int cmd, unsigned long arg)
{
	void __user *user = (void __user *)arg;
	int error;

	error = dp_check_owner(set);
	if (unlikely(error))
		return error;
	switch (cmd) {
	case DP_POLL:
		return dp_wait_slow(set, user);
	case DP_UPDATE_POLL:
		return dp_update_wait_user(set, user);
	case DP_PPOLL:
		return dp_ioctl_ppoll(set, user);
	case DP_HPOLL:
		return dp_ioctl_hpoll(set, user);
	case DP_ISPOLLED:
		return dp_ispolled(set, user);
	/*
	 * DP_ALLOC and DP_SETOPTIONS take an int. Callers pass an int in a register, whose upper
	 * half the ABI leaves undefined.
	 */
	case DP_ALLOC:
		return dp_area_alloc(set, (unsigned int)arg);
	case DP_SETOPTIONS:
		return dp_set_options(set, (unsigned int)arg);
	case DP_FREE:
		return dp_area_free(set);
	case DP_GETOPTIONS:
		return READ_ONCE(set->options);
	case DP_GETSTATISTICS:
		return dp_get_statistics(set, user);
	default:
		return -EINVAL;
	}
}

/*
 * DP_POLL: tries the fast path first, then works as dp_wait(). The arguments are read with the set
 * locked, and only after the entry was polled, so that fewer registers must be saved.
 * unsafe_get_user() is used because two loads cost less than a call of copy_from_user().
 */
static __always_inline long dp_wait_user(struct dp_set *set, struct dp_wait_args __user *user)
{
	struct pollfd __user *fds;
	struct dp_entry *entry;
	__poll_t mask;
	int nfds;

	if (mutex_lock_interruptible(&set->lock))
		return dp_wait_slow(set, user);
	mask = dp_poll_single(set, &entry);
	if (unlikely(!mask || !user_access_begin(user, offsetof(struct dp_wait_args, sigmask))))
		return dp_wait_scan(set, user);
	unsafe_get_user(fds, &user->fds, fault);
	unsafe_get_user(nfds, &user->nfds, fault);
	user_access_end();
	if (unlikely(!dp_report_single(set, entry, mask, fds, nfds)))
		return dp_wait_scan(set, user);
	mutex_unlock(&set->lock);
	return 1;

fault:
	user_access_end();
	return dp_wait_scan(set, user);
}

/**
 * dp_ioctl() - ioctl()
 * @file: an open /dev/poll
 * @cmd: DP_*
 * @arg: an address in user space or a number
 *
 * The fast path of DP_POLL is inlined here, and DP_UPDATE_POLL is a tail call, because a call with
 * its saved registers would cost more than the work itself.
 *
 * Return: the result of the call; -EACCES if the caller is not the owner; -EINVAL for unknown
 * calls.
 */
long dp_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct dp_set *set = file->private_data;

	if (likely(READ_ONCE(set->owner) == task_tgid(current))) {
		if (likely(cmd == DP_POLL))
			return dp_wait_user(set, (void __user *)arg);
		if (likely(cmd == DP_UPDATE_POLL))
			return dp_update_wait_user(set, (void __user *)arg);
	}
	return dp_ioctl_other(set, cmd, arg);
}
