// SPDX-License-Identifier: GPL-2.0
/*
 * A scan: which entries are examined, in which order, and which are reported.
 *
 * A hooked entry is examined if it has a hint, was ready at the last scan (no hint is posted when
 * an entry stops being ready), or is new or modified. These entries are on set->ready and come
 * first. Entries without a hook are polled at every scan. The cost of a scan therefore depends on
 * the number of pending entries and of entries without hints, not on the size of the set. With
 * DP_OPTION_TABLE the whole table is walked in the order of descriptors, as the paper's system did;
 * hints then only save calls of the drivers.
 *
 * No entry starves when more entries are ready than there is room for. A reported entry goes to the
 * end of its list, and if a scan ends before it reaches the second list, the next scan begins
 * there.
 */
#include "scan.h"

/**
 * dp_examine_unhinted() - polls the driver of a file that posts no hints
 * @set: the set, locked
 * @file: the file
 * @wanted: requested events
 * @arm: as for dp_scan()
 *
 * Return: the wanted events that the file is ready for.
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

/* Polls an entry without a hook: the file that its descriptor refers to now, as poll(2) does. */
static __poll_t dp_poll_unhinted(struct dp_set *set, struct dp_entry *entry, poll_table *arm)
{
	struct dp_file borrowed = dp_fdget(entry->fd);
	__poll_t mask = EPOLLNVAL;

	if (borrowed.file)
		mask = dp_examine_unhinted(set, borrowed.file, entry->wanted, arm);
	dp_fdput(borrowed);
	return mask;
}

/* Polls the entries without hooks. Return values are those of dp_scan_ready(). */
static int dp_scan_unhinted(struct dp_set *set, struct dp_sink *sink, poll_table *arm)
{
	struct dp_entry *entry;

	list_for_each_entry(entry, &set->unhinted, link) {
		__poll_t mask;

		if (sink->found == sink->room) {
			list_rotate_to_front(&entry->link, &set->unhinted);
			return 1;
		}
		/* If a result was found the caller will not sleep, so it need not join queues. */
		mask = dp_poll_unhinted(set, entry, sink->found ? NULL : arm);
		if (mask && dp_put(set, sink, entry->fd, entry->events, mangle_poll(mask)))
			return -EFAULT;
		cond_resched();
	}
	return 0;
}

/* Examines one entry of the table. Return values are those of dp_scan_ready(). */
static int dp_scan_one(struct dp_set *set, struct dp_sink *sink, struct dp_entry *entry,
		       poll_table *arm)
{
	__poll_t mask = 0;

	if (sink->found == sink->room)
		return 1;
	if (entry->hooked) {
		mask = dp_poll_hooked(set, entry);
		entry->cached = mask != 0;
		if (!mask && entry->hooked)
			list_del_init(&entry->link);
	}
	/*
	 * Checked after the poll, which may have removed the hook; this walk will not return here.
	 */
	if (!entry->hooked)
		mask = dp_poll_unhinted(set, entry, sink->found ? NULL : arm);
	if (mask && dp_put(set, sink, entry->fd, entry->events, mangle_poll(mask)))
		return -EFAULT;
	cond_resched();
	return 0;
}

/* Walks a range of descriptors in the table. Return values are those of dp_scan_ready(). */
static int dp_scan_range(struct dp_set *set, struct dp_sink *sink, poll_table *arm,
			 unsigned long from, unsigned long to)
{
	XA_STATE(cursor, &set->table, from);
	struct dp_entry *entry;
	int result = 0;

	/* set->lock prevents changes of the table; xas_for_each() requires RCU nevertheless. */
	rcu_read_lock();
	xas_for_each(&cursor, entry, to) {
		if (entry->hooked && list_empty(&entry->link)) {
			set->statistics.ds_skipped++;
			/* Nearly all entries of a large table may be skipped. */
			if (unlikely(need_resched())) {
				rcu_read_unlock();
				cond_resched();
				rcu_read_lock();
			}
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

/* The paper's scan: the whole table, beginning where the last scan ran out of room. */
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
 * dp_scan() - finds the entries that are ready
 * @set: the set, locked
 * @sink: destination of the results; its @found counts them
 * @arm: poll table of a caller that is about to sleep: the scan joins the wait queues of entries
 *	 without a hook until it has found a result; NULL if the caller will not sleep
 *
 * Return: 0; 1 if the room ran out before all pending entries were examined; or -EFAULT. No pending
 * entry is lost in any of these cases: the next scan examines it again.
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
	/* Checked after the scan, during which an entry may have lost its hook. */
	if (likely(list_empty(&set->unhinted)))
		return result;
	if (!result && sink->found < sink->room)
		return dp_scan_unhinted(set, sink, arm);
	set->unhinted_first = result >= 0;
	return result < 0 ? result : 1;
}
