// SPDX-License-Identifier: GPL-2.0
/*
 * DP_HPOLL: poll() that uses hints (N. Provos, "hinting system for poll", linux-kernel and
 * httpd-dev mailing lists, May 1999), for programs that build a new array for each call.
 *
 * The caller passes the whole array each time; only the hooks of its sockets are kept between
 * calls. A socket that was not ready in the last call and has posted no hint since is still not
 * ready, so its driver is not polled. The results are bit for bit those of poll(2).
 */
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>
#include <net/sock.h>

#include "scan.h"

/**
 * struct dp_call - the state of one DP_HPOLL call
 * @fds: the array
 * @count: its length
 * @generation: number of the call; 0 before the first scan
 * @matched: number of entries in the table that the array contains
 */
struct dp_call {
	struct pollfd *fds;
	unsigned int count;
	u32 generation;
	unsigned int matched;
};

/*
 * Finds, creates or updates the entry of a file. Returns NULL if the file cannot have one; the call
 * is then slower, but still correct. If *fresh is set to true, *mask contains the events that the
 * file is ready for.
 */
static __always_inline struct dp_entry *
dp_hpoll_entry(struct dp_set *set, struct dp_call *call, struct file *file,
	       const struct pollfd *pollfd, __poll_t *mask, bool *fresh)
{
	struct dp_entry *entry = dp_set_find(set, pollfd->fd);
	__poll_t wanted = demangle_poll(pollfd->events) | DP_ALWAYS;

	*fresh = false;
	if (entry && entry->hooked && unlikely(!dp_is_socket(file, entry->socket))) {
		dp_entry_remove(set, entry);
		entry = NULL;
	}
	if (!entry) {
		if (!sock_from_file(file) || (set->options & DP_OPTION_NOHINTS))
			return NULL;
		entry = dp_entry_add(set, file, pollfd->fd, pollfd->events, mask);
		if (IS_ERR(entry))
			return NULL;
		entry->generation = call->generation;
		call->matched++;
		*fresh = entry->hooked;
		return entry;
	}
	if (entry->generation != call->generation) {
		entry->generation = call->generation;
		call->matched++;
		/* An entry that was not ready for more events is not ready for fewer. */
		if (!(wanted & ~entry->wanted))
			WRITE_ONCE(entry->wanted, wanted);
	}
	if (wanted & ~entry->wanted) {
		/* New events, or the array contains the descriptor twice with different events. */
		WRITE_ONCE(entry->wanted, entry->wanted | wanted);
		dp_wanted_widened();
		if (entry->hooked && list_empty(&entry->link))
			list_add_tail(&entry->link, &set->ready);
	}
	return entry;
}

static __always_inline __poll_t dp_hpoll_file(struct dp_set *set, struct dp_call *call,
					      struct file *file, const struct pollfd *pollfd,
					      poll_table *arm)
{
	__poll_t wanted = demangle_poll(pollfd->events) | DP_ALWAYS;
	struct dp_entry *entry;
	__poll_t mask;
	bool fresh;

	entry = dp_hpoll_entry(set, call, file, pollfd, &mask, &fresh);
	if (!entry || !entry->hooked)
		return dp_examine_unhinted(set, file, wanted, arm);
	if (!fresh) {
		if (list_empty(&entry->link)) {
			set->statistics.ds_skipped++;
			return 0;
		}
		mask = dp_examine_hooked(set, entry, file);
		if (!entry->hooked)
			return dp_examine_unhinted(set, file, wanted, arm);
		list_del_init(&entry->link);
	}
	mask &= entry->wanted;
	entry->cached = mask != 0;
	if (mask && list_empty(&entry->link))
		list_add_tail(&entry->link, &set->ready);
	return mask & wanted;
}

static __poll_t dp_hpoll_one(struct dp_set *set, struct dp_call *call,
			     const struct pollfd *pollfd, poll_table *arm)
{
	struct dp_file borrowed;
	__poll_t mask = EPOLLNVAL;

	if (pollfd->fd < 0)
		return 0;
	borrowed = dp_fdget(pollfd->fd);
	if (borrowed.file)
		mask = dp_hpoll_file(set, call, borrowed.file, pollfd, arm);
	dp_fdput(borrowed);
	return mask;
}

/* Removes entries of descriptors that were closed or are no longer in the array. */
static void dp_hpoll_remove_stale(struct dp_set *set, struct dp_call *call)
{
	struct dp_entry *entry;
	unsigned long fd;

	if (call->matched == set->entries)
		return;
	xa_for_each(&set->table, fd, entry) {
		if (entry->generation != call->generation)
			dp_entry_remove(set, entry);
		cond_resched();
	}
}

static int dp_hpoll_scan(struct dp_set *set, void *context, poll_table *arm)
{
	struct dp_call *call = context;
	bool first = !call->generation;
	unsigned int i;
	int found = 0;

	if (first) {
		int error = READ_ONCE(set->hpolling) ? -EBUSY : dp_set_claim(set, DP_USE_HPOLL);

		if (error)
			return error;
		WRITE_ONCE(set->hpolling, true);
		set->statistics.ds_waits++;
		if (!++set->generation)
			++set->generation;
		call->generation = set->generation;
	}
	set->statistics.ds_scans++;
	dp_take_hints(set);
	for (i = 0; i < call->count; i++) {
		struct pollfd *pollfd = &call->fds[i];
		__poll_t mask = dp_hpoll_one(set, call, pollfd, found ? NULL : arm);

		pollfd->revents = mangle_poll(mask);
		found += mask != 0;
		cond_resched();
	}
	dp_widen_race();
	if (first)
		dp_hpoll_remove_stale(set, call);
	set->statistics.ds_results += found;
	return found;
}

/* For a call that ends before its first scan; a scan sets all revents. */
static void dp_clear_revents(struct dp_call *call)
{
	unsigned int i;

	for (i = 0; i < call->count; i++)
		call->fds[i].revents = 0;
}

static int dp_put_revents(struct pollfd __user *user, const struct pollfd *fds, unsigned int count)
{
	unsigned int i;

	if (!user_write_access_begin(user, count * sizeof(*user)))
		return -EFAULT;
	for (i = 0; i < count; i++)
		unsafe_put_user(fds[i].revents, &user[i].revents, fault);
	user_write_access_end();
	return 0;

fault:
	user_write_access_end();
	return -EFAULT;
}

/**
 * dp_hpoll() - DP_HPOLL
 * @set: a set without entries of write()
 * @fds: the array; its revents are written, also after a signal; the rest is read
 * @nfds: its length; 0: only sleep
 * @timeout_ms: timeout; negative: none; 0: do not wait
 *
 * Return: the number of entries with nonzero revents; 0 after the timeout; dp_signal_error() after
 * a signal; -EINVAL if @nfds exceeds RLIMIT_NOFILE; -EBUSY if the set has entries from write(), or
 * while another thread is in this call with the same open file; -EFAULT; -ENOMEM.
 */
int dp_hpoll(struct dp_set *set, struct pollfd __user *fds, int nfds, int timeout_ms)
{
	struct dp_call call = {
		.count = nfds,
	};
	struct poll_wqueues queues;
	bool signalled;
	int result;

	if (nfds < 0 || nfds > rlimit(RLIMIT_NOFILE))
		return -EINVAL;
	/* With RLIMIT_NOFILE "infinity" the array may exceed the largest possible allocation. */
	call.fds = kvmalloc_array(max(nfds, 1), sizeof(*fds), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!call.fds)
		return -ENOMEM;
	result = -EFAULT;
	if (copy_from_user(call.fds, fds, nfds * sizeof(*fds)))
		goto free;
	poll_initwait(&queues);
	result = dp_sleep(set, timeout_ms, &queues, dp_hpoll_scan, &call);
	poll_freewait(&queues);
	if (call.generation)
		WRITE_ONCE(set->hpolling, false);
	/* As in poll(2), a signal leaves no revents of an earlier call in the array. */
	signalled = result == dp_signal_error(timeout_ms);
	if (signalled && !call.generation)
		dp_clear_revents(&call);
	if ((result >= 0 || signalled) && dp_put_revents(fds, call.fds, nfds))
		result = -EFAULT;
free:
	kvfree(call.fds);
	return result;
}
