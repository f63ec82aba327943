// SPDX-License-Identifier: GPL-2.0
/*
 * Changes to the set: write(), pwrite(), writev(), and the first half of DP_UPDATE_POLL.
 */
#include <linux/uio.h>

#include "internal.h"

/*
 * Applies a piece of a batch. An entry that cannot be applied does not keep those behind it from
 * being applied: callers batch changes of unrelated descriptors.
 *
 * Returns 0, or the first error that there was.
 */
static int dp_apply_chunk(struct dp_set *set, const struct pollfd *changes, unsigned int count)
{
	bool look = false;
	unsigned int i;
	int result;

	result = dp_set_claim(set, DP_USE_SET);
	if (result)
		return result;
	for (i = 0; i < count; i++) {
		int error = dp_set_change(set, &changes[i], &look);

		if (error && !result)
			result = error;
	}
	if (look)
		dp_set_look_again(set);
	return result;
}

/**
 * dp_write_iter() - write(), pwrite(), writev()
 * @iocb: the open file; its position means nothing
 * @from: an array of struct pollfd
 *
 * Return: all that was written; -EINVAL if that is not a whole number of struct pollfd; the first
 * of the errors of dp_set_change(), after every other entry was applied; or, if the array cannot
 * be read to its end or the caller is being killed, what was applied, or -EFAULT or -EINTR if
 * that is nothing.
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
		unsigned int whole = copied / sizeof(struct pollfd);
		int error;

		if (mutex_lock_killable(&set->lock)) {
			if (!applied)
				result = -EINTR;
			break;
		}
		error = dp_apply_chunk(set, chunk, whole);
		mutex_unlock(&set->lock);
		if (error && !result)
			result = error;
		applied += whole * sizeof(struct pollfd);
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
 * Return: 0, or as dp_write_iter(), but that an array which cannot be read to its end is always
 * an error.
 */
int dp_apply(struct dp_set *set, const struct pollfd __user *changes, int nchanges)
{
	struct pollfd chunk[DP_CHUNK];
	int result = 0;

	if (nchanges < 0)
		return -EINVAL;
	while (nchanges) {
		int count = min(nchanges, DP_CHUNK);
		int error;

		if (copy_from_user(chunk, changes, count * sizeof(*chunk)))
			return -EFAULT;
		if (mutex_lock_killable(&set->lock))
			return -EINTR;
		error = dp_apply_chunk(set, chunk, count);
		mutex_unlock(&set->lock);
		if (error && !result)
			result = error;
		changes += count;
		nchanges -= count;
		cond_resched();
	}
	return result;
}
