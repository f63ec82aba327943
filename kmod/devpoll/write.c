// SPDX-License-Identifier: GPL-2.0
/*
 * Changes to the set: write(), pwrite(), writev(), and the first half of DP_UPDATE_POLL.
 */
#include <linux/uio.h>

#include "scan.h"

/*
 * The usual change: to the events of a socket that is in the set, by the only thread that has the
 * table of descriptors. False: it is not one, and nothing was done.
 */
static __always_inline bool dp_modify_quickly(struct dp_set *set, int fd, u16 events, bool *look)
{
	struct dp_entry *entry = set->recent[fd & set->recent_mask];
	struct files_struct *files = current->files;
	struct file *file;

	if (unlikely(!entry || entry->fd != fd || !entry->hooked || events & POLLREMOVE ||
		     !dp_table_is_mine(files)))
		return false;
	file = files_lookup_fd_raw(files, fd);
	if (unlikely(!file || !dp_is_socket(file, entry->socket)))
		return false;
	set->statistics.ds_changes++;
	*look |= dp_entry_modify(set, entry, events);
	return true;
}

/* Not inlined: what has addresses is kept on the stack. Tells if sleepers must look again. */
static noinline_for_stack bool dp_change_slowly(struct dp_set *set, int fd, u16 events, int *result)
{
	const struct pollfd change = { fd, events, 0 };
	bool look = false;
	int error;

	error = dp_set_change(set, &change, &look);
	if (unlikely(error) && !*result)
		*result = error;
	return look;
}

/*
 * Applies one change of a batch. One that cannot be applied does not keep those behind it from
 * being applied: callers batch changes of unrelated descriptors. *result becomes the first error.
 * Tells if sleepers must look again.
 */
static __always_inline bool dp_apply_one(struct dp_set *set, int fd, u16 events, int *result)
{
	bool look = false;

	if (likely(dp_modify_quickly(set, fd, events, &look)))
		return look;
	return dp_change_slowly(set, fd, events, result);
}

/**
 * dp_apply_user() - applies a piece of a batch
 * @set: the set, locked: page faults may come under the lock, see the head of internal.h
 * @changes: in user space
 * @count: how many
 * @result: set to the first error of dp_set_change(), or -EBUSY, if there is one
 *
 * Not inlined, so that the compiler does not cut it in two: a dozen instructions a call.
 *
 * Return: how many could be read.
 */
noinline unsigned int dp_apply_user(struct dp_set *set, const struct pollfd __user *changes,
				    unsigned int count, int *result)
{
	bool look = false;
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
		look |= dp_apply_one(set, fd, events, result);
	}
	goto out;
fault:
	user_access_end();
out:
	if (look)
		dp_set_look_again(set);
	return i;
}

/**
 * dp_write() - write(), pwrite()
 * @file: the open file
 * @buffer: an array of struct pollfd
 * @size: its length in bytes
 * @position: means nothing
 *
 * Return: @size; -EINVAL if that is not a whole number of struct pollfd; -EACCES to others than
 * the owner; the first of the errors of dp_set_change(), after every other entry was applied; or,
 * if the array cannot be read to its end or the caller is being killed, what was applied, or
 * -EFAULT or -EINTR if that is nothing.
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

		if (mutex_lock_killable(&set->lock)) {
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
 * dp_write_iter() - writev(), and writes of io_uring
 * @iocb: the open file; its position means nothing
 * @from: an array of struct pollfd, in pieces that need not end where an entry ends
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
		bool look = false;
		int error;

		if (mutex_lock_killable(&set->lock)) {
			if (!applied)
				result = -EINTR;
			break;
		}
		error = dp_set_claim(set, DP_USE_SET);
		for (i = 0; i < whole && !error; i++)
			look |= dp_apply_one(set, chunk[i].fd, chunk[i].events, &result);
		if (look)
			dp_set_look_again(set);
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
 * @changes: in user space
 * @nchanges: how many
 *
 * Return: 0; -EINVAL for a negative @nchanges; or as dp_write(), but that an array which cannot be
 * read to its end is always an error.
 */
int dp_apply(struct dp_set *set, const struct pollfd __user *changes, int nchanges)
{
	int result = 0;

	if (nchanges < 0)
		return -EINVAL;
	while (nchanges) {
		unsigned int wanted = min(nchanges, DP_CHUNK);
		unsigned int got;

		if (mutex_lock_killable(&set->lock))
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
