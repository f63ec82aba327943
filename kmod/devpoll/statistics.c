// SPDX-License-Identifier: GPL-2.0
/*
 * Counters. DP_GETSTATISTICS and /proc/PID/fdinfo/FD show those of one set; /proc/devpoll shows the
 * totals of all sets since the module was loaded.
 *
 * Counters change under set->lock, so each costs the hot path one addition. The totals read them
 * without the lock and may lag slightly behind.
 */
#include <linux/proc_fs.h>
#include <linux/rculist.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>

#include "internal.h"

/*
 * Protects the variables below. Readers walk the list under RCU, so they never delay open or close.
 */
static DEFINE_SPINLOCK(dp_sets_lock);
static LIST_HEAD(dp_sets);
static u64 dp_sets_opened;
static struct dvpoll_statistics dp_closed_totals;

/* The names are those of struct dvpoll_statistics. */
#define DP_COUNTER(name) { #name, offsetof(struct dvpoll_statistics, ds_##name) }
static const struct {
	const char *name;
	size_t offset;
} dp_counters[] = {
	DP_COUNTER(entries),
	DP_COUNTER(hinted),
	DP_COUNTER(waits),
	DP_COUNTER(scans),
	DP_COUNTER(driver_polls),
	DP_COUNTER(hook_polls),
	DP_COUNTER(hints),
	DP_COUNTER(cached),
	DP_COUNTER(skipped),
	DP_COUNTER(results),
	DP_COUNTER(sleeps),
	DP_COUNTER(wakeups),
	DP_COUNTER(changes),
};

static u64 *dp_counter(struct dvpoll_statistics *statistics, unsigned int i)
{
	return (u64 *)((char *)statistics + dp_counters[i].offset);
}

static void dp_read(struct dp_set *set, struct dvpoll_statistics *statistics)
{
	u64 fast_waits;

	/* Some callers do not hold the lock: see the head of this file. */
	data_race(*statistics = set->statistics);
	/* Without the lock this value may lag behind by one. */
	fast_waits = data_race(set->fast_waits);
	statistics->ds_waits += fast_waits;
	statistics->ds_scans += fast_waits;
	statistics->ds_driver_polls += fast_waits;
	statistics->ds_cached += fast_waits;
	statistics->ds_results += fast_waits;
	statistics->ds_entries = READ_ONCE(set->entries);
	statistics->ds_hinted = READ_ONCE(set->hinted);
}

static void dp_add(struct dvpoll_statistics *sum, struct dvpoll_statistics *part)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(dp_counters); i++)
		*dp_counter(sum, i) += *dp_counter(part, i);
}

static void dp_show(struct seq_file *file, struct dvpoll_statistics *statistics)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(dp_counters); i++)
		seq_printf(file, "%s:\t%llu\n", dp_counters[i].name, *dp_counter(statistics, i));
}

/**
 * dp_statistics_add_set() - registers a set that was opened
 * @set: the set
 */
void dp_statistics_add_set(struct dp_set *set)
{
	spin_lock(&dp_sets_lock);
	list_add_tail_rcu(&set->all, &dp_sets);
	dp_sets_opened++;
	spin_unlock(&dp_sets_lock);
}

/**
 * dp_statistics_remove_set() - adds the counters of a set that is being closed to the totals
 * @set: the set; the caller must free it only after an RCU grace period
 */
void dp_statistics_remove_set(struct dp_set *set)
{
	struct dvpoll_statistics last;

	dp_read(set, &last);
	/* The entries still exist, but are about to be removed. */
	last.ds_entries = 0;
	last.ds_hinted = 0;
	spin_lock(&dp_sets_lock);
	list_del_rcu(&set->all);
	dp_add(&dp_closed_totals, &last);
	spin_unlock(&dp_sets_lock);
}

/**
 * dp_show_fdinfo() - /proc/PID/fdinfo/FD
 * @file: the output
 * @filp: an open /dev/poll
 */
void dp_show_fdinfo(struct seq_file *file, struct file *filp)
{
	struct dp_set *set = filp->private_data;
	struct dvpoll_statistics statistics;
	u32 options = READ_ONCE(set->options);

	dp_read(set, &statistics);
	seq_printf(file, "update:\t%s\nhints:\t%s\nscan:\t%s\nwake:\t%s\n",
		   options & DP_OPTION_OR ? "or" : "replace",
		   options & DP_OPTION_NOHINTS ? "off" : "on",
		   options & DP_OPTION_TABLE ? "table" : "list",
		   options & DP_OPTION_EXCLUSIVE ? "one" : "all");
	dp_show(file, &statistics);
}

/**
 * dp_get_statistics() - DP_GETSTATISTICS
 * @set: the set
 * @user: the caller's structure; its @ds_size is the size that the caller has room for
 *
 * Return: 0; -EINVAL if @ds_size is too small to hold itself; -EFAULT; -EINTR if the caller is
 * killed.
 */
long dp_get_statistics(struct dp_set *set, struct dvpoll_statistics __user *user)
{
	struct dvpoll_statistics statistics;
	u64 size;

	if (get_user(size, &user->ds_size))
		return -EFAULT;
	if (size < sizeof(size))
		return -EINVAL;
	if (mutex_lock_killable(&set->lock))
		return -EINTR;
	/* Hints are counted when they are taken off the list. */
	dp_take_hints(set);
	dp_read(set, &statistics);
	mutex_unlock(&set->lock);
	statistics.ds_size = sizeof(statistics);
	if (copy_to_user(user, &statistics, min_t(u64, size, sizeof(statistics))))
		return -EFAULT;
	return 0;
}

static int dp_proc_show(struct seq_file *file, void *unused)
{
	struct dvpoll_statistics sum, part;
	struct dp_set *set;
	u64 open = 0, opened;

	/*
	 * A set that is closed after this point is missing from this output, but never counted
	 * twice.
	 */
	spin_lock(&dp_sets_lock);
	sum = dp_closed_totals;
	opened = dp_sets_opened;
	spin_unlock(&dp_sets_lock);
	rcu_read_lock();
	list_for_each_entry_rcu(set, &dp_sets, all) {
		dp_read(set, &part);
		dp_add(&sum, &part);
		open++;
	}
	rcu_read_unlock();
	seq_printf(file, "sets:\t%llu\nopened:\t%llu\n", open, opened);
	dp_show(file, &sum);
	return 0;
}

/**
 * dp_statistics_init() - creates /proc/devpoll, readable by root only: it covers all users
 *
 * Return: 0 or -ENOMEM.
 */
int dp_statistics_init(void)
{
	return proc_create_single("devpoll", 0400, NULL, dp_proc_show) ? 0 : -ENOMEM;
}

/**
 * dp_statistics_exit() - removes /proc/devpoll
 */
void dp_statistics_exit(void)
{
	remove_proc_entry("devpoll", NULL);
}
