// SPDX-License-Identifier: GPL-2.0
/*
 * Waiting: scan, and sleep until another scan may find something.
 */
#include <linux/hrtimer.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/sched/rt.h>
#include <linux/sched/signal.h>
#include <linux/workqueue.h>

#include "scan.h"

/*
 * Upper limit of the timer slack. As for poll(2), a timer may be late by a thousandth of the wait,
 * or five thousandths for tasks below normal priority, and not at all for real-time tasks.
 */
#define DP_SLACK_MAX (100 * NSEC_PER_MSEC)

static u64 dp_slack(int timeout_ms)
{
	/* Kernels for 32 bits have no operator for a division of 64 bits. */
	u64 slack = div_u64((u64)timeout_ms * NSEC_PER_MSEC, task_nice(current) > 0 ? 200 : 1000);

	/* Up to 6.11 real-time tasks have a slack, which poll(2) ignores; from 6.12 on it is 0. */
	if (rt_task(current) || !current->timer_slack_ns)
		return 0;
	return clamp_t(u64, slack, current->timer_slack_ns, DP_SLACK_MAX);
}

/* Sleeps until a wake-up or the deadline. Returns false if the deadline has passed. */
static bool dp_schedule(ktime_t *deadline, u64 slack)
{
	return schedule_hrtimeout_range(deadline, slack, HRTIMER_MODE_ABS) != 0;
}

/**
 * struct dp_snapshot - counters of a set at the last scan, to detect what happened since
 * @changed: value of dp_set.changed
 * @taken: value of dp_set.taken
 */
struct dp_snapshot {
	unsigned int changed;
	unsigned int taken;
};

/* Returns whether another scan may find something that the last one did not. */
static bool dp_pending(struct dp_set *set, const struct dp_snapshot *snapshot,
		       struct poll_wqueues *queues)
{
	if (!llist_empty(&set->hints))
		return true;
	/* Pairs with llist_del_all() in dp_take_hints(), which increments set->taken before it. */
	smp_rmb();
	return READ_ONCE(set->taken) != snapshot->taken ||
	       READ_ONCE(set->changed) != snapshot->changed || READ_ONCE(queues->triggered);
}

/*
 * Wakes the next exclusive waiter if this thread leaves work behind. With DP_OPTION_EXCLUSIVE a
 * hint wakes only one thread. That thread may return without taking the hint, without reporting the
 * hints it took (after a signal, or because results cannot be stored), or without room for all
 * pending entries. In these cases another thread must scan.
 */
static void dp_wake_next(struct dp_set *set, bool more)
{
	if (!(READ_ONCE(set->options) & DP_OPTION_EXCLUSIVE))
		return;
	if ((more || !llist_empty(&set->hints)) && wq_has_sleeper(&set->waiters))
		wake_up_interruptible(&set->waiters);
}

/* Work item that makes a kernel worker call a function in place of a user thread. */
struct dp_work {
	struct work_struct work;
	void (*function)(void *argument);
	void *argument;
};

static void dp_work(struct work_struct *work)
{
	struct dp_work *this = container_of(work, struct dp_work, work);

	this->function(this->argument);
}

/* Returns when the function has returned. */
static noinline_for_stack void dp_call_by_worker(void (*function)(void *argument), void *argument)
{
	struct dp_work this = {
		.function = function,
		.argument = argument,
	};

	INIT_WORK_ONSTACK(&this.work, dp_work);
	schedule_work(&this.work);
	flush_work(&this.work);
	destroy_work_on_stack(&this.work);
}

static void dp_freewait(void *queues)
{
	poll_freewait(queues);
}

/*
 * Leaves the wait queues of files and drops the references to the files, although the call of this
 * thread continues. If a file was closed in the meantime, this drops its last reference. A user
 * thread that drops a last reference releases the file only when it returns to user space, which
 * may never happen. A kernel worker releases it at once, so a worker does it.
 */
static void dp_leave_wait_queues(struct poll_wqueues *queues)
{
	if (!queues->inline_index && !queues->table)
		return;
	dp_call_by_worker(dp_freewait, queues);
	poll_initwait(queues);
}

static void dp_fput(void *file)
{
	fput(file);
}

/**
 * dp_fput_now() - fput() of a thread that may sleep before it returns to user space
 * @file: the file
 *
 * If another thread closed the file while this one examined it, this drops the last reference. A
 * worker does that for the reason given at dp_leave_wait_queues(), so that the peer of the file
 * sees the close at once.
 */
void dp_fput_now(struct file *file)
{
	if (unlikely(!dp_fput_unless_last(file)))
		dp_call_by_worker(dp_fput, file);
}

/* Joins the sleepers of the set, or joins them anew if DP_OPTION_EXCLUSIVE has changed since. */
static void dp_join_sleepers(struct dp_set *set, wait_queue_entry_t *wait, bool queued)
{
	bool exclusive = READ_ONCE(set->options) & DP_OPTION_EXCLUSIVE;

	if (queued) {
		if (exclusive == !!(wait->flags & WQ_FLAG_EXCLUSIVE))
			return;
		remove_wait_queue(&set->waiters, wait);
	}
	if (exclusive)
		add_wait_queue_exclusive(&set->waiters, wait);
	else
		add_wait_queue(&set->waiters, wait);
}

/**
 * dp_sleep() - scans and sleeps in turn until a scan finds something
 * @set: the set
 * @timeout_ms: timeout; negative: none; 0: scan once
 * @queues: wait queues of entries without a hook; the caller initialises and frees it
 * @scan: called with the set locked; joins wait queues if its last argument is not NULL; returns a
 *	  negative error, 0 if it found nothing, or a positive number if it found something
 * @context: passed to @scan
 *
 * Return: the result of the last @scan; 0 after the timeout; dp_signal_error() after a signal.
 */
int dp_sleep(struct dp_set *set, int timeout_ms, struct poll_wqueues *queues, dp_scan_fn *scan,
	     void *context)
{
	bool queued = false, armed = false, slept = false;
	bool timed_out = timeout_ms == 0;
	struct dp_snapshot snapshot = {};
	ktime_t deadline, *expires = NULL;
	wait_queue_entry_t wait;
	u64 slack = 0;
	int result;

	if (timeout_ms > 0) {
		deadline = ktime_add_ms(ktime_get(), timeout_ms);
		expires = &deadline;
		slack = dp_slack(timeout_ms);
	}
	init_waitqueue_entry(&wait, current);
	for (;;) {
		result = dp_signal_error(timeout_ms);
		if (mutex_lock_interruptible(&set->lock))
			break;
		if (slept) {
			slept = false;
			set->statistics.ds_wakeups += !timed_out;
		}
		if (armed && snapshot.changed != set->changed) {
			/* The set may now contain other files without hooks. */
			dp_leave_wait_queues(queues);
			armed = false;
		}
		snapshot.changed = set->changed;
		result = scan(set, context, armed || timed_out ? NULL : &queues->pt);
		snapshot.taken = set->taken;
		armed = true;
		if (!result && !timed_out && !queues->error && !signal_pending(current)) {
			set->statistics.ds_sleeps++;
			slept = true;
		}
		mutex_unlock(&set->lock);
		if (result || timed_out)
			break;
		result = queues->error;
		if (result)
			break;
		result = dp_signal_error(timeout_ms);
		if (signal_pending(current))
			break;

		dp_widen_race();
		dp_join_sleepers(set, &wait, queued);
		queued = true;
		dp_widen_race();
		/* Its barrier pairs with those in dp_hint() and dp_set_force_rescan(). */
		set_current_state(TASK_INTERRUPTIBLE);
		if (!dp_pending(set, &snapshot, queues))
			timed_out = !dp_schedule(expires, slack);
		__set_current_state(TASK_RUNNING);
		/* Cleared before the next scan looks, as poll_schedule_timeout() does. */
		smp_store_mb(queues->triggered, 0);
	}
	if (queued)
		remove_wait_queue(&set->waiters, &wait);
	return result;
}

/* Only sleeps, for a wait without room for results. */
static int dp_sleep_only(int timeout_ms)
{
	ktime_t deadline;

	if (!timeout_ms)
		return 0;
	deadline = ktime_add_ms(ktime_get(), max(timeout_ms, 0));
	for (;;) {
		set_current_state(TASK_INTERRUPTIBLE);
		if (signal_pending(current)) {
			__set_current_state(TASK_RUNNING);
			return dp_signal_error(timeout_ms);
		}
		if (!dp_schedule(timeout_ms < 0 ? NULL : &deadline, dp_slack(max(timeout_ms, 0))))
			return 0;
	}
}

static int dp_scan_into(struct dp_set *set, void *context, poll_table *arm)
{
	struct dp_sink *sink = context;
	int result;

	set->statistics.ds_waits += !sink->counted;
	sink->counted = true;
	result = dp_set_claim(set, DP_USE_SET);
	if (result)
		return result;
	if (!sink->user && !dp_sink_into_area(set, sink))
		return -EINVAL;
	result = dp_scan(set, sink, arm);
	sink->more = result > 0;
	set->statistics.ds_results += sink->found;
	return result < 0 ? result : sink->found;
}

/**
 * dp_wait() - DP_POLL: waits until something in the set is ready
 * @set: the set
 * @fds: destination of the results; NULL: the area
 * @nfds: room for results; 0: only sleep
 * @timeout_ms: timeout; negative: none; 0: do not wait
 *
 * Not inlined: its struct poll_wqueues takes most of a kilobyte of stack.
 *
 * Return: the number of results; 0 after the timeout; dp_signal_error() after a signal; -EINVAL for
 * a negative @nfds or without an area; -EFAULT; -EBUSY if the set is in use by DP_HPOLL; -ENOMEM.
 */
noinline_for_stack long dp_wait(struct dp_set *set, struct pollfd __user *fds, int nfds,
				int timeout_ms)
{
	struct dp_sink sink = {
		.user = fds,
		.room = nfds,
	};
	struct poll_wqueues queues;
	int result;

	if (nfds <= 0)
		return nfds ? -EINVAL : dp_sleep_only(timeout_ms);
	poll_initwait(&queues);
	result = dp_sleep(set, timeout_ms, &queues, dp_scan_into, &sink);
	poll_freewait(&queues);
	dp_wake_next(set, sink.more || result < 0);
	return result;
}

static __always_inline long dp_scan_pending(struct dp_set *set, struct dp_sink *sink)
{
	int result;

	if (unlikely(!llist_empty(&set->hints)))
		dp_take_hints(set);
	result = dp_scan_ready(set, sink);
	set->statistics.ds_results += sink->found;
	set->statistics.ds_scans++;
	/* If nothing was found, the slow path follows and counts the wait. */
	set->statistics.ds_waits += result < 0 || sink->found;
	return result < 0 ? result : sink->found;
}

/*
 * Fast path of a wait: every entry has a hook, and at least one is pending. Returns the number of
 * results, -EFAULT, or 0 if the slow path is necessary. The scan is inlined twice, once per
 * destination of the results, because that is cheaper than a test for each result.
 */
static __always_inline long dp_scan_fast(struct dp_set *set, struct pollfd __user *fds, int nfds)
{
	struct dp_sink sink = {
		.room = nfds,
	};

	if (unlikely(nfds <= 0 || set->slow_path))
		return 0;
	if (fds) {
		sink.user = fds;
		return dp_scan_pending(set, &sink);
	}
	return likely(dp_sink_into_area(set, &sink)) ? dp_scan_pending(set, &sink) : 0;
}

/**
 * dp_wait_slow() - DP_POLL when the fast path found nothing or cannot be used
 * @set: the set
 * @user: the arguments; they are read again, so that the fast path need not keep them
 *
 * Return: as dp_wait(); -EFAULT.
 */
noinline_for_stack long dp_wait_slow(struct dp_set *set, struct dp_wait_args __user *user)
{
	struct dp_wait_args args;

	if (copy_from_user(&args, user, offsetof(struct dp_wait_args, sigmask)))
		return -EFAULT;
	return dp_wait(set, args.fds, args.nfds, args.timeout);
}

/**
 * dp_wait_scan() - DP_POLL when more than one entry may be ready
 * @set: the set, locked; unlocked on return
 * @user: the arguments
 *
 * Return: as dp_wait(); -EFAULT.
 */
long dp_wait_scan(struct dp_set *set, struct dp_wait_args __user *user)
{
	struct pollfd __user *fds;
	long result;
	int nfds;

	if (!user_access_begin(user, offsetof(struct dp_wait_args, sigmask)))
		goto bad;
	unsafe_get_user(fds, &user->fds, fault);
	unsafe_get_user(nfds, &user->nfds, fault);
	user_access_end();
	result = dp_scan_fast(set, fds, nfds);
	mutex_unlock(&set->lock);
	if (likely(result))
		return result;
	return dp_wait_slow(set, user);

fault:
	user_access_end();
bad:
	mutex_unlock(&set->lock);
	return -EFAULT;
}

/**
 * dp_single_not_ready() - unlinks the only pending entry, which a poll found not ready
 * @set: the set, locked
 * @entry: the entry; it leaves set->ready as in dp_scan_ready()
 */
void dp_single_not_ready(struct dp_set *set, struct dp_entry *entry)
{
	set->statistics.ds_driver_polls++;
	set->statistics.ds_cached += entry->cached;
	entry->cached = false;
	/* The poll may have removed the hook, and with it the link to this list. */
	if (entry->hooked)
		list_del_init(&entry->link);
}

/**
 * dp_replace_single() - takes hints, after removing the only pending entry if it is not ready
 * @set: the set, locked, with hints
 *
 * In a program that reads all input it was notified of, another connection is ready at each wait.
 * The previous entry is still pending, because no hint is posted when an entry stops being ready.
 * If this function finds the previous entry not ready, only the new one remains, and the fast path
 * can be used. If the previous entry is still ready, a scan examines both.
 */
void dp_replace_single(struct dp_set *set)
{
	struct list_head *link = set->ready.next;

	if (link != &set->ready && link->next == &set->ready) {
		struct dp_entry *entry = list_entry(link, struct dp_entry, link);
		struct file *file = dp_unshared_file(entry);

		if (likely(file && dp_is_idle(set, entry, file)))
			dp_single_not_ready(set, entry);
	}
	dp_take_hints(set);
}

static int dp_get_update_args(struct dp_update_args *args, struct dp_update_args __user *user)
{
	if (copy_from_user(args, user, sizeof(*args)))
		return -EFAULT;
	/* Arguments that the wait would reject are rejected before the changes are made. */
	return args->flags || args->nfds < 0 ? -EINVAL : 0;
}

/* Not inlined: its signal mask would enlarge the stack frame of every caller. */
static noinline_for_stack long dp_update_wait_slow(struct dp_set *set,
						   struct dp_update_args __user *user)
{
	struct dp_update_args args;
	sigset_t mask;
	long result;

	result = dp_get_update_args(&args, user);
	if (result)
		return result;
	if (args.sigmask && copy_from_user(&mask, args.sigmask, sizeof(mask)))
		return -EFAULT;
	result = dp_apply(set, args.changes, args.nchanges);
	if (result)
		return result;
	return dp_no_restart(dp_wait_masked(set, args.fds, args.nfds, args.timeout,
					    args.sigmask ? &mask : NULL));
}

/* Waits after the changes were made. Reads the arguments again, as dp_wait_slow() does. */
static noinline_for_stack long dp_update_then_wait(struct dp_set *set,
						   struct dp_update_args __user *user)
{
	struct dp_update_args args;
	int error;

	error = dp_get_update_args(&args, user);
	if (error)
		return error;
	return dp_no_restart(dp_wait(set, args.fds, args.nfds, args.timeout));
}

/* Waits after the changes were made. The caller has locked the set; this function unlocks it. */
static noinline_for_stack long dp_update_wait_scan(struct dp_set *set,
						   struct dp_update_args __user *user,
						       struct pollfd __user *fds, int nfds)
{
	long result = dp_scan_fast(set, fds, nfds);

	mutex_unlock(&set->lock);
	if (likely(result))
		return result;
	return dp_update_then_wait(set, user);
}

/**
 * dp_update_wait_user() - DP_UPDATE_POLL: changes the set, then waits
 * @set: the set
 * @user: the arguments
 *
 * If not all changes could be applied, there is no wait. If a signal ends the call with -EINTR, all
 * changes were applied, so the caller knows the state of the set. Only a fatal signal can prevent
 * changes from being applied.
 *
 * Return: an error of dp_apply(), otherwise as dp_wait(); -EINVAL for unknown flags or a negative
 * du_nfds, before any change is applied; -EFAULT.
 */
long dp_update_wait_user(struct dp_set *set, struct dp_update_args __user *user)
{
	const struct pollfd __user *changes;
	const sigset_t __user *sigmask;
	struct pollfd __user *fds;
	int nchanges, nfds, flags;
	struct dp_entry *entry;
	__poll_t mask;
	int result = 0;

	if (!user_access_begin(user, sizeof(*user)))
		return -EFAULT;
	unsafe_get_user(changes, &user->changes, fault);
	unsafe_get_user(fds, &user->fds, fault);
	unsafe_get_user(sigmask, &user->sigmask, fault);
	unsafe_get_user(nchanges, &user->nchanges, fault);
	unsafe_get_user(nfds, &user->nfds, fault);
	unsafe_get_user(flags, &user->flags, fault);
	user_access_end();
	/* sigmask and flags are nearly always 0, so one branch tests both. */
	if (unlikely((unsigned long)sigmask | (unsigned int)flags || nfds < 0 || nchanges < 0 ||
		     nchanges > DP_CHUNK))
		return dp_update_wait_slow(set, user);
	/* With few changes, one hold of the lock covers the changes and the scan. */
	if (mutex_lock_killable(&set->lock))
		return -EINTR;
	if (unlikely(dp_apply_user(set, changes, nchanges, &result) < nchanges))
		result = -EFAULT;
	if (likely(!result)) {
		mask = dp_poll_single(set, &entry);
		if (unlikely(!mask || !dp_report_single(set, entry, mask, fds, nfds)))
			return dp_update_wait_scan(set, user, fds, nfds);
		result = 1;
	}
	mutex_unlock(&set->lock);
	return result;

fault:
	user_access_end();
	return -EFAULT;
}
