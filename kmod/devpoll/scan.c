// SPDX-License-Identifier: GPL-2.0
/*
 * A scan: which entries are examined, in which order, and what is reported.
 *
 * Hooked entries are examined when they were hinted, were ready the last time (no hint tells that
 * they ceased to be), or are new or modified: these are on set->ready, and come first. Entries
 * without a hook are polled at every scan. So a scan costs what is pending, and what has no
 * hints, however large the set is. With DP_OPTION_TABLE the whole table is walked in the order of
 * descriptors, as the paper's system did, and hints only save the calls of the drivers.
 *
 * Nobody starves when more is ready than there is room: a reported entry goes to the end of its
 * list, and a scan that ended before it came to the second list begins the next time with it.
 */
#include "scan.h"

/**
 * dp_examine_unhinted() - asks the driver about a file that gives no hints
 * @set: the set, locked
 * @file: the file
 * @wanted: events to look for
 * @arm: as for dp_scan()
 *
 * Return: what it is ready for, of what is wanted.
 */
__poll_t dp_examine_unhinted(struct dp_set *set, struct file *file, __poll_t wanted,
			     poll_table *arm)
{
	poll_table table = {};

	if (!arm)
		arm = &table;
	arm->_key = wanted;
	set->statistics.ds_driver_polls++;
	return vfs_poll(file, arm) & wanted;
}

/* What an entry without a hook is ready for: whatever the number means now, as for poll(2). */
static __poll_t dp_look_unhinted(struct dp_set *set, struct dp_entry *entry, poll_table *arm)
{
	struct dp_file borrowed = dp_file_borrow(entry->fd);
	__poll_t mask = EPOLLNVAL;

	if (borrowed.file)
		mask = dp_examine_unhinted(set, borrowed.file, entry->wanted, arm);
	dp_file_return(borrowed);
	return mask;
}

/* Polls the entries without hooks. Returns as dp_scan_ready(). */
static int dp_scan_unhinted(struct dp_set *set, struct dp_sink *sink, poll_table *arm)
{
	struct dp_entry *entry;

	list_for_each_entry(entry, &set->unhinted, link) {
		__poll_t mask;

		if (sink->found == sink->room) {
			list_rotate_to_front(&entry->link, &set->unhinted);
			return 1;
		}
		/* With something to report nobody will sleep: no queue need be joined. */
		mask = dp_look_unhinted(set, entry, sink->found ? NULL : arm);
		if (mask && dp_put(set, sink, entry->fd, entry->events, mangle_poll(mask)))
			return -EFAULT;
		cond_resched();
	}
	return 0;
}

/* Looks at one entry of the table. Returns as dp_scan_ready(). */
static int dp_scan_one(struct dp_set *set, struct dp_sink *sink, struct dp_entry *entry,
		       poll_table *arm)
{
	__poll_t mask = 0;

	if (sink->found == sink->room)
		return 1;
	if (entry->hooked) {
		mask = dp_look_hooked(set, entry);
		entry->cached = mask != 0;
		if (!mask && entry->hooked)
			list_del_init(&entry->link);
	}
	/* Asked only now: it may have lost its hook just now, and this walk does not come back. */
	if (!entry->hooked)
		mask = dp_look_unhinted(set, entry, sink->found ? NULL : arm);
	if (mask && dp_put(set, sink, entry->fd, entry->events, mangle_poll(mask)))
		return -EFAULT;
	cond_resched();
	return 0;
}

/* Walks the table from one descriptor to another. Returns as dp_scan_ready(). */
static int dp_scan_range(struct dp_set *set, struct dp_sink *sink, poll_table *arm,
			 unsigned long from, unsigned long to)
{
	XA_STATE(cursor, &set->table, from);
	struct dp_entry *entry;
	int result = 0;

	/* With set->lock held nobody changes the table; RCU is what the walk itself asks for. */
	rcu_read_lock();
	xas_for_each(&cursor, entry, to) {
		if (entry->hooked && list_empty(&entry->link)) {
			set->statistics.ds_skipped++;
			continue;
		}
		rcu_read_unlock();
		result = dp_scan_one(set, sink, entry, arm);
		if (result) {
			set->cursor = entry->fd;
			return result;
		}
		rcu_read_lock();
	}
	rcu_read_unlock();
	return 0;
}

/* The paper's scan: the whole table, from where the last one ran out of room. */
static int dp_scan_table(struct dp_set *set, struct dp_sink *sink, poll_table *arm)
{
	unsigned long start = set->cursor;
	int result;

	result = dp_scan_range(set, sink, arm, start, ULONG_MAX);
	if (!result && start)
		result = dp_scan_range(set, sink, arm, 0, start - 1);
	if (!result)
		set->cursor = 0;
	return result;
}

/**
 * dp_scan() - finds what is ready
 * @set: the set, locked
 * @sink: where results go; its @found counts them
 * @arm: for a caller about to sleep: joins the wait queues of entries without a hook, until there
 *	 is something to report; else NULL
 *
 * Return: 0; 1 if room ran out before everything that is pending was examined; or -EFAULT. Even
 * then nothing is lost: everything pending is still so at the next scan.
 */
int dp_scan(struct dp_set *set, struct dp_sink *sink, poll_table *arm)
{
	int result;

	set->statistics.ds_scans++;
	dp_take_hints(set);
	if (unlikely(set->options & DP_OPTION_TABLE))
		return dp_scan_table(set, sink, arm);
	if (unlikely(set->unhinted_first && !list_empty(&set->unhinted))) {
		set->unhinted_first = false;
		result = dp_scan_unhinted(set, sink, arm);
		if (result)
			return result;
		if (sink->found == sink->room)
			return !list_empty(&set->ready);
		return dp_scan_ready(set, sink);
	}
	result = dp_scan_ready(set, sink);
	/* Asked only now: an entry may have lost its hook under way. */
	if (likely(list_empty(&set->unhinted)))
		return result;
	if (!result && sink->found < sink->room)
		return dp_scan_unhinted(set, sink, arm);
	set->unhinted_first = result >= 0;
	return result < 0 ? result : 1;
}
