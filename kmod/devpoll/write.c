// SPDX-License-Identifier: GPL-2.0
/*
 * Changes to the set: write(), pwrite(), writev(), and the first half of DP_UPDATE_POLL.
 */
#include <linux/sched/signal.h>
#include <linux/uio.h>

#include "scan.h"

/*
 * Fast path of a change: it modifies the events of a socket that is already in the set, and no
 * other thread shares the descriptor table. Returns false, and has changed nothing, in all other
 * cases.
 */
static __always_inline bool dp_modify_fast(struct dp_set *set, int fd, u16 events, bool *rescan)
{
	struct dp_entry *entry = set->recent[fd & set->recent_mask];
	struct files_struct *files = current->files;
	struct file *file;

	if (unlikely(!entry || entry->fd != fd || !entry->hooked || events & POLLREMOVE ||
		     !dp_fd_table_unshared(files)))
		return false;
	file = files_lookup_fd_raw(files, fd);
	if (unlikely(!file || !dp_is_socket(file, entry->socket)))
		return false;
	set->statistics.ds_changes++;
	*rescan |= dp_entry_modify(set, entry, events);
	return true;
}

/*
 * Applies a change that the fast path cannot. Not inlined, because variables whose address is taken
 * would occupy the caller's stack. Returns whether sleepers must scan again.
 */
static noinline_for_stack bool dp_change_slow(struct dp_set *set, int fd, u16 events, int *result)
{
	const struct pollfd change = { fd, events, 0 };
	bool rescan = false;
	int error;

	error = dp_set_change(set, &change, &rescan);
	if (unlikely(error) && !*result)
		*result = error;
	return rescan;
}

/*
 * Applies one change of a batch. If it fails, the rest of the batch is still applied, because
 * callers batch changes of unrelated descriptors; *result keeps the first error. Returns whether
 * sleepers must scan again.
 */
static __always_inline bool dp_apply_one(struct dp_set *set, int fd, u16 events, int *result)
{
	bool rescan = false;

	if (likely(dp_modify_fast(set, fd, events, &rescan)))
		return rescan;
	return dp_change_slow(set, fd, events, result);
}

/**
 * dp_apply_user() - applies part of a batch
 * @set: the set, locked; page faults may happen under the lock, see the head of internal.h
 * @changes: the changes, in user space
 * @count: number of changes
 * @result: set to the first error of dp_set_change(), or to -EBUSY, if there is an error
 *
 * noinline keeps the compiler from splitting the function, which would cost a dozen instructions
 * per call.
 *
 * Return: the number of changes that could be read.
 */
noinline unsigned int dp_apply_user(struct dp_set *set, const struct pollfd __user *changes,
				    unsigned int count, int *result)
{
	bool rescan = false;
	unsigned int i;
	int error;

	error = dp_set_claim(set, DP_USE_SET);
	if (unlikely(error)) {
		*result = error;
		return count;
	}
	for (i = 0; i < count; i++) {
		short events;
		int fd;

		if (!user_access_begin(&changes[i], sizeof(changes[i])))
			break;
		unsafe_get_user(fd, &changes[i].fd, fault);
		unsafe_get_user(events, &changes[i].events, fault);
		user_access_end();
		rescan |= dp_apply_one(set, fd, events, result);
	}
	goto out;
fault:
	user_access_end();
out:
	if (rescan)
		dp_set_force_rescan(set);
	return i;
}

/*
 * Locks the set for the next part of an array, which may be very long. Returns an error if the
 * caller is killed: mutex_lock_killable() takes a free lock without a look at signals.
 */
static int dp_lock_unless_killed(struct dp_set *set)
{
	return fatal_signal_pending(current) ? -EINTR : mutex_lock_killable(&set->lock);
}

/**
 * dp_write() - write(), pwrite()
 * @file: the open file
 * @buffer: an array of struct pollfd
 * @size: its length in bytes
 * @position: ignored
 *
 * Return: @size; -EINVAL if that is not a whole number of struct pollfd; -EACCES if the caller is
 * not the owner; the first error of dp_set_change(), after all other entries were applied. If the
 * array cannot be read to its end, or the caller is killed, the number of bytes applied so far, or
 * -EFAULT or -EINTR if nothing was applied.
 */
ssize_t dp_write(struct file *file, const char __user *buffer, size_t size, loff_t *position)
{
	const struct pollfd __user *changes = (const struct pollfd __user *)buffer;
	struct dp_set *set = file->private_data;
	size_t count = size / sizeof(*changes);
	size_t applied = 0;
	int result;

	result = dp_check_owner(set);
	if (result)
		return result;
	if (size % sizeof(*changes))
		return -EINVAL;
	while (applied < count) {
		unsigned int wanted = min_t(size_t, count - applied, DP_CHUNK);
		unsigned int got;

		if (dp_lock_unless_killed(set)) {
			if (!applied)
				result = -EINTR;
			break;
		}
		got = dp_apply_user(set, changes + applied, wanted, &result);
		mutex_unlock(&set->lock);
		applied += got;
		if (got < wanted) {
			if (!applied)
				result = -EFAULT;
			break;
		}
		cond_resched();
	}
	return result ? result : applied * sizeof(*changes);
}

/**
 * dp_write_iter() - writev(), and writes through io_uring
 * @iocb: the open file; its position is ignored
 * @from: an array of struct pollfd; an entry may span two segments
 *
 * Return: as dp_write().
 */
ssize_t dp_write_iter(struct kiocb *iocb, struct iov_iter *from)
{
	struct dp_set *set = iocb->ki_filp->private_data;
	struct pollfd chunk[DP_CHUNK];
	size_t applied = 0;
	int result;

	result = dp_check_owner(set);
	if (result)
		return result;
	if (iov_iter_count(from) % sizeof(struct pollfd))
		return -EINVAL;
	while (iov_iter_count(from)) {
		size_t wanted = min(iov_iter_count(from), sizeof(chunk));
		size_t copied = copy_from_iter(chunk, wanted, from);
		unsigned int i, whole = copied / sizeof(*chunk);
		bool rescan = false;
		int error;

		if (dp_lock_unless_killed(set)) {
			if (!applied)
				result = -EINTR;
			break;
		}
		error = dp_set_claim(set, DP_USE_SET);
		for (i = 0; i < whole && !error; i++)
			rescan |= dp_apply_one(set, chunk[i].fd, chunk[i].events, &result);
		if (rescan)
			dp_set_force_rescan(set);
		mutex_unlock(&set->lock);
		if (error)
			return error;
		applied += whole * sizeof(*chunk);
		if (copied < wanted) {
			if (!applied)
				result = -EFAULT;
			break;
		}
		cond_resched();
	}
	return result ? result : applied;
}

/**
 * dp_apply() - applies an array of changes
 * @set: the set
 * @changes: the changes, in user space
 * @nchanges: number of changes
 *
 * Return: 0; -EINVAL for a negative @nchanges; otherwise the errors of dp_write(). In contrast to
 * dp_write(), an array that cannot be read to its end is always an error.
 */
int dp_apply(struct dp_set *set, const struct pollfd __user *changes, int nchanges)
{
	int result = 0;

	if (nchanges < 0)
		return -EINVAL;
	while (nchanges) {
		unsigned int wanted = min(nchanges, DP_CHUNK);
		unsigned int got;

		if (dp_lock_unless_killed(set))
			return -EINTR;
		got = dp_apply_user(set, changes, wanted, &result);
		mutex_unlock(&set->lock);
		if (got < wanted)
			return -EFAULT;
		changes += wanted;
		nchanges -= wanted;
		cond_resched();
	}
	return result;
}
