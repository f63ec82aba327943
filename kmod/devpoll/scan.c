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
#include <net/sock.h>

#include "internal.h"

/* Puts one result. Returns 0, or -EFAULT. */
static __always_inline int dp_put(struct dp_set *set, struct dp_sink *sink, int fd, u16 events,
				  u16 revents)
{
	struct pollfd __user *user = sink->user;

	if (user) {
		user += sink->found;
		if (!user_access_begin(user, sizeof(*user)))
			return -EFAULT;
		unsafe_put_user(fd, &user->fd, fault);
		unsafe_put_user(events, &user->events, fault);
		unsafe_put_user(revents, &user->revents, fault);
		user_access_end();
	} else {
		struct pollfd *result = &set->area->results[sink->found];

		WRITE_ONCE(result->fd, fd);
		WRITE_ONCE(result->events, events);
		WRITE_ONCE(result->revents, revents);
	}
	sink->found++;
	return 0;

fault:
	user_access_end();
	return -EFAULT;
}

/**
 * dp_examine_hooked() - asks the driver about a hooked entry
 * @set: the set, locked
 * @entry: the entry
 * @file: its file
 *
 * Return: what it is ready for, of what is wanted.
 */
__poll_t dp_examine_hooked(struct dp_set *set, struct dp_entry *entry, struct file *file)
{
	set->statistics.ds_driver_polls++;
	if (unlikely(entry->watch_heads)) {
		return dp_poll_watching_heads(set, entry, file) & entry->wanted;
	} else {
		poll_table table = {
			._key = entry->wanted,
		};

		return vfs_poll(file, &table) & entry->wanted;
	}
}

/*
 * What a hooked entry is ready for. The interest is in the file that was written, so a number
 * that is closed, or now means another file, is reported as POLLNVAL until it is removed or
 * written again.
 */
static __always_inline __poll_t dp_look_hooked(struct dp_set *set, struct dp_entry *entry)
{
	struct fd f = fdget(entry->fd);
	struct file *file = fd_file(f);
	__poll_t mask = EPOLLNVAL;

	if (likely(file)) {
		if (likely(file_inode(file) == entry->inode))
			mask = dp_examine_hooked(set, entry, file);
		fdput(f);
	}
	return mask;
}

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
	struct fd f = fdget(entry->fd);
	struct file *file = fd_file(f);
	__poll_t mask = EPOLLNVAL;

	if (file) {
		mask = dp_examine_unhinted(set, file, entry->wanted, arm);
		fdput(f);
	}
	return mask;
}

/* Examines the pending entries. Returns 0, 1 if there was no room for all, or an error. */
static int dp_scan_ready(struct dp_set *set, struct dp_sink *sink)
{
	struct dp_entry *entry, *last;

	if (list_empty(&set->ready))
		return 0;
	last = list_last_entry(&set->ready, struct dp_entry, link);
	do {
		__poll_t mask;

		entry = list_first_entry(&set->ready, struct dp_entry, link);
		if (sink->found == sink->room)
			return 1;
		set->statistics.ds_cached += entry->cached;
		mask = dp_look_hooked(set, entry);
		if (mask) {
			if (unlikely(dp_put(set, sink, entry->fd, entry->events,
					    mangle_poll(mask))))
				return -EFAULT;
			entry->cached = true;
			/* It may have lost its hook, and have left this list, just now. */
			if (likely(entry->hooked))
				list_move_tail(&entry->link, &set->ready);
		} else {
			entry->cached = false;
			if (likely(entry->hooked))
				list_del_init(&entry->link);
		}
	} while (entry != last);
	return 0;
}

/* Polls the entries without hooks. Returns as dp_scan_ready(). */
static int dp_scan_unhinted(struct dp_set *set, struct dp_sink *sink, poll_table *arm)
{
	struct dp_entry *entry, *last;

	if (list_empty(&set->unhinted))
		return 0;
	last = list_last_entry(&set->unhinted, struct dp_entry, link);
	do {
		__poll_t mask;

		entry = list_first_entry(&set->unhinted, struct dp_entry, link);
		if (sink->found == sink->room)
			return 1;
		/* With something to report nobody will sleep: no queue need be joined. */
		mask = dp_look_unhinted(set, entry, sink->found ? NULL : arm);
		if (mask && dp_put(set, sink, entry->fd, entry->events, mangle_poll(mask)))
			return -EFAULT;
		list_move_tail(&entry->link, &set->unhinted);
		cond_resched();
	} while (entry != last);
	return 0;
}

/* Looks at one entry of the table. Returns as dp_scan_ready(). */
static int dp_scan_one(struct dp_set *set, struct dp_sink *sink, struct dp_entry *entry,
		       poll_table *arm)
{
	__poll_t mask;

	if (entry->hooked && list_empty(&entry->link)) {
		set->statistics.ds_skipped++;
		return 0;
	}
	if (sink->found == sink->room)
		return 1;
	if (entry->hooked) {
		set->statistics.ds_cached += entry->cached;
		mask = dp_look_hooked(set, entry);
		entry->cached = mask != 0;
		if (!mask && entry->hooked)
			list_del_init(&entry->link);
	} else {
		mask = dp_look_unhinted(set, entry, sink->found ? NULL : arm);
	}
	if (mask && dp_put(set, sink, entry->fd, entry->events, mangle_poll(mask)))
		return -EFAULT;
	return 0;
}

/* The paper's scan: the whole table, from where the last one ran out of room. */
static int dp_scan_table(struct dp_set *set, struct dp_sink *sink, poll_table *arm)
{
	unsigned long start = set->cursor, fd = start;
	struct dp_entry *entry;
	int result;

	xa_for_each_start(&set->table, fd, entry, start) {
		result = dp_scan_one(set, sink, entry, arm);
		if (result)
			goto out;
		cond_resched();
	}
	fd = 0;
	if (start) {
		xa_for_each_range(&set->table, fd, entry, 0, start - 1) {
			result = dp_scan_one(set, sink, entry, arm);
			if (result)
				goto out;
			cond_resched();
		}
	}
	set->cursor = 0;
	return 0;
out:
	set->cursor = fd;
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
	if (likely(list_empty(&set->unhinted)))
		return dp_scan_ready(set, sink);
	if (set->unhinted_first) {
		set->unhinted_first = false;
		result = dp_scan_unhinted(set, sink, arm);
		return result ? result : dp_scan_ready(set, sink);
	}
	result = dp_scan_ready(set, sink);
	if (!result && sink->found < sink->room)
		return dp_scan_unhinted(set, sink, arm);
	set->unhinted_first = result >= 0;
	return result < 0 ? result : 1;
}
