// SPDX-License-Identifier: GPL-2.0
/*
 * Waiting: a scan, and sleep until another one may find something.
 */
#include <linux/hrtimer.h>
#include <linux/ktime.h>
#include <linux/sched/rt.h>
#include <linux/sched/signal.h>
#include <linux/workqueue.h>

#include "scan.h"

/*
 * As for poll(2), timers may be late by a thousandth of the wait, by five for tasks below normal
 * priority, but no more than this; and not at all for real-time tasks.
 */
#define DP_SLACK_MAX (100 * NSEC_PER_MSEC)

static u64 dp_slack(int timeout_ms)
{
	u64 slack = (u64)timeout_ms * NSEC_PER_MSEC / (task_nice(current) > 0 ? 200 : 1000);

	/* Up to 6.11 a real-time task has a slack, which poll(2) ignores; from 6.12 on it is 0. */
	if (rt_task(current) || !current->timer_slack_ns)
		return 0;
	return clamp_t(u64, slack, current->timer_slack_ns, DP_SLACK_MAX);
}

/* Sleeps until woken or until the time is over; false if it is over. */
static bool dp_schedule(ktime_t *deadline, u64 slack)
{
	return schedule_hrtimeout_range(deadline, slack, HRTIMER_MODE_ABS) != 0;
}

/**
 * struct dp_seen - the state of a set after a scan that found nothing
 * @changed: of the set
 * @taken: of the set
 */
struct dp_seen {
	unsigned int changed;
	unsigned int taken;
};

/* Whether a scan may find what the last one did not. */
static bool dp_pending(struct dp_set *set, const struct dp_seen *seen, struct poll_wqueues *queues)
{
	if (!llist_empty(&set->hints))
		return true;
	/* Pairs with llist_del_all() in dp_take_hints(): who took the hints counted it before. */
	smp_rmb();
	return READ_ONCE(set->taken) != seen->taken || READ_ONCE(set->changed) != seen->changed ||
	       READ_ONCE(queues->triggered);
}

/*
 * With exclusive waiting a hint wakes one thread; if that leaves without having taken it, without
 * having reported what was taken (a signal, results that cannot be stored), or has no room for all
 * that is pending, the next one must be told.
 */
static void dp_pass_on(struct dp_set *set, bool left)
{
	if (!(READ_ONCE(set->options) & DP_OPTION_EXCLUSIVE))
		return;
	if ((left || !llist_empty(&set->hints)) && wq_has_sleeper(&set->waiters))
		wake_up_interruptible(&set->waiters);
}

/* Wait queues to be left by another task. */
struct dp_leaving {
	struct work_struct work;
	struct poll_wqueues *queues;
};

static void dp_leave(struct work_struct *work)
{
	struct dp_leaving *leaving = container_of(work, struct dp_leaving, work);

	poll_freewait(leaving->queues);
}

/*
 * Leaves the wait queues of files, and lets go of the files, within a call that goes on. A file
 * that was closed meanwhile ends here; but what a task lets go of ends only when the task returns
 * to user space, which may be never. What a worker lets go of ends at once.
 */
static void dp_leave_queues(struct poll_wqueues *queues)
{
	struct dp_leaving leaving = {
		.queues = queues,
	};

	if (!queues->inline_index && !queues->table)
		return;
	INIT_WORK_ONSTACK(&leaving.work, dp_leave);
	schedule_work(&leaving.work);
	flush_work(&leaving.work);
	destroy_work_on_stack(&leaving.work);
	poll_initwait(queues);
}

/**
 * dp_sleep() - scans and sleeps in turn
 * @set: the set
 * @timeout_ms: time to wait; below 0: for ever; 0: one scan
 * @queues: for the wait queues of what has no hook; initialised, and freed by the caller
 * @scan: called with the set locked; joins wait queues if its last argument is not NULL; returns
 *	  below 0: an error; 0: nothing found; else something was
 * @context: handed to @scan
 *
 * Return: what the last @scan returned; 0 when the time was over; on a signal dp_interrupted().
 */
int dp_sleep(struct dp_set *set, int timeout_ms, struct poll_wqueues *queues, dp_scan_fn *scan,
	     void *context)
{
	bool queued = false, armed = false, slept = false;
	bool over = timeout_ms == 0;
	struct dp_seen seen = {};
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
		result = dp_interrupted(timeout_ms);
		if (mutex_lock_interruptible(&set->lock))
			break;
		if (slept) {
			slept = false;
			set->statistics.ds_wakeups += !over;
		}
		if (armed && seen.changed != set->changed) {
			/* Other files may have to be waited for now. */
			dp_leave_queues(queues);
			armed = false;
		}
		seen.changed = set->changed;
		result = scan(set, context, armed || over ? NULL : &queues->pt);
		seen.taken = set->taken;
		armed = true;
		if (!result && !over && !queues->error && !signal_pending(current)) {
			set->statistics.ds_sleeps++;
			slept = true;
		}
		mutex_unlock(&set->lock);
		if (result || over)
			break;
		result = queues->error;
		if (result)
			break;
		result = dp_interrupted(timeout_ms);
		if (signal_pending(current))
			break;

		dp_widen_race();
		if (!queued) {
			queued = true;
			if (READ_ONCE(set->options) & DP_OPTION_EXCLUSIVE)
				add_wait_queue_exclusive(&set->waiters, &wait);
			else
				add_wait_queue(&set->waiters, &wait);
		}
		dp_widen_race();
		/* The barrier in here is what dp_hint() and dp_set_look_again() pair with. */
		set_current_state(TASK_INTERRUPTIBLE);
		if (!dp_pending(set, &seen, queues))
			over = !dp_schedule(expires, slack);
		__set_current_state(TASK_RUNNING);
		/* Cleared before the next scan looks, as poll_schedule_timeout() does. */
		smp_store_mb(queues->triggered, 0);
	}
	if (queued)
		remove_wait_queue(&set->waiters, &wait);
	return result;
}

/* Just sleeps: a wait without room for results. */
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
			return dp_interrupted(timeout_ms);
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
	sink->left = result > 0;
	set->statistics.ds_results += sink->found;
	return result < 0 ? result : sink->found;
}

/**
 * dp_wait() - DP_POLL: waits until something in the set is ready
 * @set: the set
 * @fds: where results go; NULL: into the area
 * @nfds: room for results; 0: just sleep
 * @timeout_ms: time to wait; below 0: for ever; 0: do not wait
 *
 * Not inlined: its struct poll_wqueues takes most of a kilobyte of stack.
 *
 * Return: the number of results; 0 when the time is over; on a signal dp_interrupted(); -EINVAL for
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
	dp_pass_on(set, sink.left || result < 0);
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
	/* If nothing was found, a wait follows that counts itself. */
	set->statistics.ds_waits += result < 0 || sink->found;
	return result < 0 ? result : sink->found;
}

/*
 * The usual wait: every entry has a hook, and something is pending. Returns what it found, -EFAULT,
 * or 0 if there is nothing to be told that way. Two copies of the scan, by where results go, are
 * cheaper than to ask at each result.
 */
static __always_inline long dp_scan_quickly(struct dp_set *set, struct pollfd __user *fds, int nfds)
{
	struct dp_sink sink = {
		.room = nfds,
	};

	if (unlikely(nfds <= 0 || set->unusual))
		return 0;
	if (fds) {
		sink.user = fds;
		return dp_scan_pending(set, &sink);
	}
	return likely(dp_sink_into_area(set, &sink)) ? dp_scan_pending(set, &sink) : 0;
}

/**
 * dp_wait_longer() - DP_POLL, where the usual way is none
 * @set: the set
 * @user: the arguments, read again, so that the usual way need not keep them
 *
 * Return: as dp_wait(); -EFAULT.
 */
noinline_for_stack long dp_wait_longer(struct dp_set *set, struct dp_wait_args __user *user)
{
	struct dp_wait_args args;

	if (copy_from_user(&args, user, offsetof(struct dp_wait_args, sigmask)))
		return -EFAULT;
	return dp_wait(set, args.fds, args.nfds, args.timeout);
}

/**
 * dp_wait_scanning() - DP_POLL, where more than one entry may be ready
 * @set: the set, locked; unlocked on return
 * @user: the arguments
 *
 * Return: as dp_wait(); -EFAULT.
 */
long dp_wait_scanning(struct dp_set *set, struct dp_wait_args __user *user)
{
	struct pollfd __user *fds;
	long result;
	int nfds;

	if (!user_access_begin(user, offsetof(struct dp_wait_args, sigmask)))
		goto bad;
	unsafe_get_user(fds, &user->fds, fault);
	unsafe_get_user(nfds, &user->nfds, fault);
	user_access_end();
	result = dp_scan_quickly(set, fds, nfds);
	mutex_unlock(&set->lock);
	if (likely(result))
		return result;
	return dp_wait_longer(set, user);

fault:
	user_access_end();
bad:
	mutex_unlock(&set->lock);
	return -EFAULT;
}

/**
 * dp_only_is_not_ready() - the only pending entry was asked, and is not ready
 * @set: the set, locked
 * @entry: the entry; it leaves the list as in dp_scan_ready()
 */
void dp_only_is_not_ready(struct dp_set *set, struct dp_entry *entry)
{
	set->statistics.ds_driver_polls++;
	set->statistics.ds_cached += entry->cached;
	entry->cached = false;
	/* Else it has lost its hook, and left this list, just now. */
	if (entry->hooked)
		list_del_init(&entry->link);
}

/**
 * dp_replace_only() - takes hints, where the only pending entry may have been dealt with
 * @set: the set, locked, with hints
 *
 * A program that reads what it was told of has another connection ready at each wait. The former
 * one is still pending, since no hint says that it ceased to be ready. It is examined here, so that
 * the new one is the only one, and the usual way is enough. If the former one is ready after all, a
 * scan examines both.
 */
void dp_replace_only(struct dp_set *set)
{
	struct list_head *link = set->ready.next;

	if (link != &set->ready && link->next == &set->ready) {
		struct dp_entry *entry = list_entry(link, struct dp_entry, link);
		struct file *file = dp_own_file(entry);

		if (likely(file && dp_is_idle(set, entry, file)))
			dp_only_is_not_ready(set, entry);
	}
	dp_take_hints(set);
}

static int dp_get_update_args(struct dp_update_args *args, struct dp_update_args __user *user)
{
	if (copy_from_user(args, user, sizeof(*args)))
		return -EFAULT;
	/* What no wait would take is refused before the changes are made. */
	return args->flags || args->nfds < 0 ? -EINVAL : 0;
}

/* Not inlined: its signal mask would be a part of every caller's stack. */
static noinline_for_stack long dp_update_wait_slowly(struct dp_set *set,
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
	return dp_once(dp_wait_masked(set, args.fds, args.nfds, args.timeout,
				      args.sigmask ? &mask : NULL));
}

/* The changes are made; reads the arguments again, as dp_wait_longer() does. */
static noinline_for_stack long dp_update_wait_longer(struct dp_set *set,
						     struct dp_update_args __user *user)
{
	struct dp_update_args args;
	int error;

	error = dp_get_update_args(&args, user);
	if (error)
		return error;
	return dp_once(dp_wait(set, args.fds, args.nfds, args.timeout));
}

/* Ends as dp_update_wait_user() does. The set is locked, and changed. */
static noinline_for_stack long dp_update_wait_scanning(struct dp_set *set,
						       struct dp_update_args __user *user,
						       struct pollfd __user *fds, int nfds)
{
	long result = dp_scan_quickly(set, fds, nfds);

	mutex_unlock(&set->lock);
	if (likely(result))
		return result;
	return dp_update_wait_longer(set, user);
}

/**
 * dp_update_wait_user() - DP_UPDATE_POLL: changes the set, then waits
 * @set: the set
 * @user: the arguments
 *
 * If not all changes could be applied there is no wait. If a signal ends the call, they were: who
 * is told -EINTR must know which, and only a fatal signal keeps them from being applied.
 *
 * Return: as dp_apply() if that is an error, else as dp_wait(); -EINVAL for unknown flags or a
 * negative du_nfds, before any change is applied; -EFAULT.
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
	/* One look at two that are nearly always 0. */
	if (unlikely((unsigned long)sigmask | (unsigned int)flags || nfds < 0 || nchanges < 0 ||
		     nchanges > DP_CHUNK))
		return dp_update_wait_slowly(set, user);
	/* Few changes: they and the scan under one lock. */
	if (mutex_lock_killable(&set->lock))
		return -EINTR;
	if (unlikely(dp_apply_user(set, changes, nchanges, &result) < nchanges))
		result = -EFAULT;
	if (likely(!result)) {
		mask = dp_look_at_only(set, &entry);
		if (unlikely(!mask || !dp_put_only(set, entry, mask, fds, nfds)))
			return dp_update_wait_scanning(set, user, fds, nfds);
		result = 1;
	}
	mutex_unlock(&set->lock);
	return result;

fault:
	user_access_end();
	return -EFAULT;
}
