// SPDX-License-Identifier: GPL-2.0
/*
 * The interest set: adds, modifies and removes entries by descriptor (paper, section 3.1).
 */
#include <linux/sched.h>
#include <net/sock.h>

#include "scan.h"

/**
 * dp_set_choose_path() - decides whether waits can take the fast path
 * @set: the set, locked or not yet used
 *
 * Must be called after each change of use, options or entries.
 */
void dp_set_choose_path(struct dp_set *set)
{
	set->slow_path = set->use != DP_USE_SET || set->entries != set->hinted ||
		       (set->options & (DP_OPTION_TABLE | DP_OPTION_EXCLUSIVE));
}

/**
 * dp_set_change_use() - changes how the set is used, if that is possible
 * @set: the set, locked
 * @use: by write() and DP_POLL, or by DP_HPOLL
 *
 * set->hpolling is checked in addition to set->entries, because a sleeping DP_HPOLL may have no
 * entries now and add some at its next scan.
 *
 * Return: as dp_set_claim().
 */
int dp_set_change_use(struct dp_set *set, enum dp_use use)
{
	if (set->use != DP_USE_NONE && (set->entries || READ_ONCE(set->hpolling)))
		return -EBUSY;
	set->use = use;
	dp_set_choose_path(set);
	return 0;
}

/**
 * dp_set_force_rescan() - makes sleepers scan again after a change of their set
 * @set: the set, locked
 */
void dp_set_force_rescan(struct dp_set *set)
{
	WRITE_ONCE(set->changed, set->changed + 1);
	/* The barrier in wq_has_sleeper() pairs with the sleeper's set_current_state(). */
	if (wq_has_sleeper(&set->waiters))
		wake_up_interruptible_all(&set->waiters);
}

/*
 * Resizes the lookup cache and fills it. Without memory the set keeps the old one, which works too.
 */
static void dp_set_resize_recent(struct dp_set *set, unsigned int slots)
{
	struct dp_entry **recent, *entry;
	unsigned long fd;

	recent = kvcalloc(slots, sizeof(*recent), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!recent)
		return;
	xa_for_each(&set->table, fd, entry) {
		recent[fd & (slots - 1)] = entry;
		cond_resched();
	}
	kvfree(set->recent);
	set->recent = recent;
	set->recent_mask = slots - 1;
}

/*
 * Keeps at least twice as many slots as entries, because a server may have two or more open
 * descriptors for each one that it watches. There are at most DP_RECENT_SHARE slots per entry; the
 * cost of an entry in users.c includes these.
 */
static void dp_set_fit_recent(struct dp_set *set)
{
	unsigned int slots = set->recent_mask + 1;

	if (2 * set->entries > slots && slots < DP_RECENT_MAX)
		dp_set_resize_recent(set, 2 * slots);
	else if (set->entries < slots / DP_RECENT_SHARE && slots > DP_RECENT)
		dp_set_resize_recent(set, max_t(unsigned int, DP_RECENT,
						slots / (DP_RECENT_SHARE / 2)));
}

/**
 * dp_set_init() - initialises an empty set
 * @set: zeroed memory
 *
 * Return: 0 or -ENOMEM.
 */
int dp_set_init(struct dp_set *set)
{
	set->recent = kvcalloc(DP_RECENT, sizeof(*set->recent), GFP_KERNEL_ACCOUNT);
	if (!set->recent)
		return -ENOMEM;
	set->recent_mask = DP_RECENT - 1;
	mutex_init(&set->lock);
	mutex_init(&set->area_lock);
	INIT_LIST_HEAD(&set->ready);
	INIT_LIST_HEAD(&set->unhinted);
	/*
	 * Users choose descriptor numbers; table nodes for sparse numbers are charged to their
	 * cgroup.
	 */
	xa_init_flags(&set->table, XA_FLAGS_ACCOUNT);
	init_llist_head(&set->hints);
	init_waitqueue_head(&set->waiters);
	return 0;
}

/**
 * dp_entry_add() - adds an entry to the table, with a hook if the file supports one
 * @set: the set, locked
 * @file: the file behind the descriptor; NULL if it is closed
 * @fd: the descriptor
 * @events: requested events
 * @mask: set to the events that the file is ready for, if placing the hook polled it; this is
 *	  always so for a hooked entry
 *
 * A hooked entry is on no list on return; an entry without a hook is on set->unhinted.
 *
 * Return: the entry; -ENOSPC at the user's limit; -ENOMEM.
 */
struct dp_entry *dp_entry_add(struct dp_set *set, struct file *file, int fd, u16 events,
			      __poll_t *mask)
{
	struct dp_entry *entry;
	int error;

	error = dp_user_charge(set->user, 1);
	if (error)
		return ERR_PTR(error);
	error = -ENOMEM;
	entry = kmem_cache_zalloc(dp_entry_cache, GFP_KERNEL);
	if (!entry)
		goto no_entry;
	INIT_LIST_HEAD(&entry->link);
	entry->set = set;
	entry->fd = fd;
	dp_entry_set_events(entry, events);
	error = xa_insert(&set->table, fd, entry, GFP_KERNEL);
	if (error)
		goto not_inserted;
	set->entries++;
	dp_set_fit_recent(set);
	*mask = file ? dp_hook(set, entry, file) : 0;
	if (!entry->hooked)
		list_add_tail(&entry->link, &set->unhinted);
	dp_set_choose_path(set);
	return entry;

not_inserted:
	kmem_cache_free(dp_entry_cache, entry);
no_entry:
	dp_user_uncharge(set->user, 1);
	return ERR_PTR(error);
}

static void dp_entry_free(struct dp_set *set, struct dp_entry *entry)
{
	struct dp_entry **recent = &set->recent[entry->fd & set->recent_mask];

	if (*recent == entry)
		*recent = NULL;
	dp_unhook(set, entry);
	set->entries--;
	dp_set_choose_path(set);
	dp_user_uncharge(set->user, 1);
	kmem_cache_free(dp_entry_cache, entry);
}

/**
 * dp_entry_remove() - removes an entry from the set and frees it
 * @set: the set, locked
 * @entry: the entry
 */
void dp_entry_remove(struct dp_set *set, struct dp_entry *entry)
{
	xa_erase(&set->table, entry->fd);
	dp_entry_free(set, entry);
	dp_set_fit_recent(set);
}

/**
 * dp_set_clear() - removes all entries of a set that is being closed
 * @set: the set, which no other thread uses
 */
void dp_set_clear(struct dp_set *set)
{
	struct dp_entry *entry;
	unsigned long fd;

	xa_for_each(&set->table, fd, entry) {
		dp_entry_free(set, entry);
		cond_resched();
	}
	xa_destroy(&set->table);
	kvfree(set->recent);
}

/* Returns whether @entry already watches @file, so that a change modifies the entry. */
static __always_inline bool dp_entry_is_for(const struct dp_entry *entry, struct file *file)
{
	if (likely(entry->hooked)) {
		/* After SMC fell back, the inode is the same; dp_poll_other_file() handles that. */
		return file && (likely(dp_is_socket(file, entry->socket)) ||
				file_inode(file) == SOCK_INODE(entry->socket));
	}
	/* If the descriptor is now a set, the change is refused; a socket may get a hook. */
	if (file && file->f_op == &dp_fops)
		return false;
	return !file || !dp_may_get_hook(entry->set, file);
}

static int dp_set_add(struct dp_set *set, struct file *file, int fd, u16 events, bool *rescan)
{
	struct dp_entry *entry;
	__poll_t mask;

	entry = dp_entry_add(set, file, fd, events, &mask);
	if (IS_ERR(entry))
		return PTR_ERR(entry);
	if (!entry->hooked) {
		*rescan = true;
	} else if (mask & entry->wanted) {
		/* A hint that arrived in between may have linked the entry already. */
		if (list_empty(&entry->link))
			list_add_tail(&entry->link, &set->ready);
		*rescan = true;
	}
	return 0;
}

/**
 * dp_set_change() - applies one entry of a write()
 * @set: the set, locked
 * @change: descriptor and events; POLLREMOVE in the events removes the entry
 * @rescan: set to true if sleepers must scan again, otherwise unchanged
 *
 * A closed descriptor can be added. As with poll(2) it is reported as POLLNVAL, or with the events
 * of a file that is opened later under the same number. A negative descriptor is ignored, as
 * poll(2) ignores it. Removing a descriptor that is not in the set is not an error.
 *
 * Return: 0; -ELOOP for a /dev/poll; -ENOSPC at the user's limit; -ENOMEM.
 */
int dp_set_change(struct dp_set *set, const struct pollfd *change, bool *rescan)
{
	struct dp_file borrowed;
	struct dp_entry *entry;
	int result = 0;

	if (change->fd < 0)
		return 0;
	entry = dp_set_find(set, change->fd);
	set->statistics.ds_changes++;
	if (change->events & POLLREMOVE) {
		if (entry) {
			/*
			 * A sleeper that joined the file's queue holds a reference; it must drop
			 * it.
			 */
			*rescan |= !entry->hooked;
			dp_entry_remove(set, entry);
		}
		return 0;
	}

	borrowed = dp_fdget(change->fd);
	if (likely(entry) && dp_entry_is_for(entry, borrowed.file)) {
		*rescan |= dp_entry_modify(set, entry, change->events);
	} else if (borrowed.file && borrowed.file->f_op == &dp_fops) {
		result = -ELOOP;
	} else {
		/* The descriptor was closed and reused: the old interest ended with its file. */
		if (entry) {
			*rescan |= !entry->hooked;
			dp_entry_remove(set, entry);
		}
		result = dp_set_add(set, borrowed.file, change->fd, change->events, rescan);
	}
	dp_fdput(borrowed);
	return result;
}
