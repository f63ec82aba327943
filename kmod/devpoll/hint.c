// SPDX-License-Identifier: GPL-2.0
/*
 * Hints (paper, section 3.2): a socket notifies its sets when its state changes.
 *
 * The paper's backmap is here the socket's wait queue. An entry adds its own hook to that queue
 * through the socket's poll function, as epoll does. The socket calls dp_hint() whenever it wakes
 * its waiters. A hint says that the state changed, but not what the state is now, so the next scan
 * examines the entry. No hint is posted when a ready entry stops being ready, so an entry that was
 * ready is examined at every scan until it is not.
 *
 * Only sockets whose poll function waits on the queue inside the socket's inode, and on no other,
 * get a hook. All other files (pipes, terminals, sockets that wait on other queues) get none.
 */
#include <linux/net.h>
#include <net/sock.h>

#include "internal.h"

/**
 * struct dp_heads - the wait queues that a poll function uses
 * @table: poll table for the poll function
 * @entry: the entry that gets the hook, if one is to be placed
 * @own: the queue in the socket's inode
 * @count: how many times the poll function passed @own to poll_wait()
 * @foreign: the poll function passed another queue
 */
struct dp_heads {
	poll_table table;
	struct dp_entry *entry;
	wait_queue_head_t *own;
	unsigned int count;
	bool foreign;
};

/*
 * The driver calls this when the socket's state changed, with the queue's lock held, in any
 * context. The entry, its inode and its set are valid because the hook is still in the queue.
 */
static int dp_hint(wait_queue_entry_t *wait, unsigned int mode, int sync, void *key)
{
	struct dp_entry *entry = container_of(wait, struct dp_entry, wait);
	struct dp_set *set = entry->set;
	__poll_t events = key_to_poll(key);

	/*
	 * Ignore wake-ups for events that the entry does not want; no events in the key mean any.
	 */
	if (events && !(events & READ_ONCE(entry->wanted)))
		return 0;
#ifdef DEVPOLL_BREAK_RACE
	set->fast_waits++;
#endif
	/*
	 * The hint is already posted; the thread that set the bit wakes, or has woken, the waiters.
	 */
	if (test_and_set_bit(DP_HINTED, &entry->posted))
		return 0;
	llist_add(&entry->hint, &set->hints);
	/*
	 * llist_add() is a full barrier. A sleeper joins set->waiters before it reads set->hints,
	 * so either the sleeper sees this hint, or this function sees the sleeper.
	 */
	if (waitqueue_active(&set->waiters)) {
		if (sync)
			wake_up_interruptible_sync(&set->waiters);
		else
			wake_up_interruptible(&set->waiters);
	}
	return 1;
}

static void dp_place_hook(struct file *file, wait_queue_head_t *head, poll_table *table)
{
	struct dp_heads *heads = container_of(table, struct dp_heads, table);

	if (head != heads->own || heads->count++) {
		heads->foreign = true;
		return;
	}
	heads->entry->wait.private = head;
	heads->entry->hooked = true;
	add_wait_queue(head, &heads->entry->wait);
}

static void dp_note_head(struct file *file, wait_queue_head_t *head, poll_table *table)
{
	struct dp_heads *heads = container_of(table, struct dp_heads, table);

	if (head == heads->own)
		heads->count++;
	else
		heads->foreign = true;
}

/*
 * TCP, UDP and UNIX sockets use the same wait queue during their whole life. Other sockets may
 * change theirs (SMC can fall back to TCP later, RDS waits on a second queue once there was
 * congestion), so each poll of those checks which queues it uses.
 */
static bool dp_heads_are_constant(const struct sock *sk)
{
	switch (sk->sk_family) {
	case AF_UNIX:
		return true;
	case AF_INET:
	case AF_INET6:
		return sk->sk_protocol == IPPROTO_TCP || sk->sk_protocol == IPPROTO_UDP;
	default:
		return false;
	}
}

/* Returns the struct sock of a file that may get a hook in this set, otherwise NULL. */
static struct sock *dp_hookable(const struct dp_set *set, struct file *file)
{
	struct socket *socket = sock_from_file(file);

	if (!socket || !file_can_poll(file) || (set->options & DP_OPTION_NOHINTS))
		return NULL;
	/* After SMC fell back to TCP, file and inode belong to different sockets. */
	if (socket != SOCKET_I(file_inode(file)))
		return NULL;
	return READ_ONCE(socket->sk);
}

/**
 * dp_may_get_hook() - whether an entry without a hook would get one if it were added again
 * @set: the set
 * @file: the file behind the entry's descriptor
 *
 * An entry of a socket whose queues may change may have lost its hook, and nothing shows whether it
 * was added for the same file. It stays as it is, so that a write which adds events keeps the old
 * ones.
 *
 * Return: whether the entry must be one of another file, and would get a hook.
 */
bool dp_may_get_hook(const struct dp_set *set, struct file *file)
{
	const struct sock *sk = dp_hookable(set, file);

	return sk && dp_heads_are_constant(sk);
}

/**
 * dp_hook() - places an entry's hook, if its file can post hints
 * @set: the set, locked
 * @entry: the entry, without a hook, in the table or about to be added
 * @file: its file
 *
 * On return @entry->hooked is true if the entry will get hints.
 *
 * Return: the events that the file is ready for, if it was polled; otherwise 0.
 */
__poll_t dp_hook(struct dp_set *set, struct dp_entry *entry, struct file *file)
{
	const struct sock *sk = dp_hookable(set, file);
	struct inode *inode = file_inode(file);
	struct dp_heads heads = {
		.entry = entry,
	};
	struct socket *socket;
	__poll_t mask;

	if (!sk)
		return 0;
	socket = SOCKET_I(inode);
	heads.own = &socket->wq.wait;
	init_poll_funcptr(&heads.table, dp_place_hook);
	heads.table._key = entry->wanted;
	init_waitqueue_func_entry(&entry->wait, dp_hint);
	mask = vfs_poll(file, &heads.table);
	set->statistics.ds_hook_polls++;

	if (!entry->hooked)
		return mask;
	if (heads.foreign) {
		dp_unhook(set, entry);
		return mask;
	}
	if (!dp_heads_are_constant(sk))
		entry->watch_heads = true;
#ifndef DEVPOLL_BREAK_NO_IHOLD
	ihold(inode);
#endif
	entry->socket = socket;
	set->hinted++;
	return mask;
}

/**
 * dp_unhook() - removes an entry's hook and its pending hint; no hint can follow
 * @set: the set, locked
 * @entry: the entry; it may have no hook
 *
 * On return the entry is on no list.
 */
void dp_unhook(struct dp_set *set, struct dp_entry *entry)
{
	struct socket *socket = entry->socket;

	if (!entry->hooked) {
		list_del_init(&entry->link);
		return;
	}
	/* The queue's lock orders this after every dp_hint() that is already running. */
	remove_wait_queue(entry->wait.private, &entry->wait);
	if (test_bit(DP_HINTED, &entry->posted)) {
		dp_take_hints(set);
		/*
		 * This took the hints of all entries. A scan may be running (a DP_HPOLL that
		 * removes this entry) which is already past the other hinted entries, so it must
		 * scan again before it sleeps. Threads already asleep were woken by the hints
		 * themselves.
		 */
		WRITE_ONCE(set->changed, set->changed + 1);
	}
	list_del_init(&entry->link);
	entry->hooked = false;
	entry->watch_heads = false;
	if (socket) {
		entry->socket = NULL;
		set->hinted--;
#ifndef DEVPOLL_BREAK_NO_IHOLD
		iput(SOCK_INODE(socket));
#endif
	}
}

/**
 * dp_take_hints() - moves entries with a hint to the list of entries to examine
 * @set: the set, locked
 */
void dp_take_hints(struct dp_set *set)
{
	struct dp_entry *entry, *next;
	struct llist_node *hints;

	if (llist_empty(&set->hints))
		return;
	/*
	 * A thread that has scanned but does not sleep yet will find set->hints empty. The exchange
	 * in llist_del_all() is a full barrier, so that thread also sees the new set->taken, and
	 * scans again.
	 */
	WRITE_ONCE(set->taken, set->taken + 1);
	hints = llist_del_all(&set->hints);
	/* Usually there is only one hint. */
	if (unlikely(hints->next))
		hints = llist_reverse_order(hints);
	dp_widen_race();
	llist_for_each_entry_safe(entry, next, hints, hint) {
		set->statistics.ds_hints++;
		if (list_empty(&entry->link))
			list_add_tail(&entry->link, &set->ready);
		/* From here on a driver may push the entry again. */
		clear_bit(DP_HINTED, &entry->posted);
		/*
		 * Orders the clear before the poll: a change that the poll misses posts a new hint.
		 */
		smp_mb__after_atomic();
		/* This inline check is cheaper than a call of cond_resched(). */
		if (unlikely(need_resched()))
			cond_resched();
	}
}

/**
 * dp_demote() - removes the hook of an entry whose hints are no longer reliable
 * @set: the set, locked
 * @entry: its hooked entry
 *
 * Every later scan polls the entry. All threads scan again before they sleep.
 */
void dp_demote(struct dp_set *set, struct dp_entry *entry)
{
	dp_unhook(set, entry);
	list_add_tail(&entry->link, &set->unhinted);
	dp_set_choose_path(set);
	dp_set_force_rescan(set);
}

/**
 * dp_poll_watching_heads() - polls a file whose wait queues may change
 * @set: the set, locked
 * @entry: its hooked entry
 * @file: its file
 *
 * If the poll function now uses another wait queue, the entry is demoted.
 *
 * Return: the events that the file is ready for; 0 if the entry was demoted.
 */
__poll_t dp_poll_watching_heads(struct dp_set *set, struct dp_entry *entry, struct file *file)
{
	struct dp_heads heads = {
		.own = entry->wait.private,
	};
	__poll_t mask;

	init_poll_funcptr(&heads.table, dp_note_head);
	heads.table._key = entry->wanted;
	mask = vfs_poll(file, &heads.table);
	if (heads.foreign || heads.count != 1) {
		dp_demote(set, entry);
		return 0;
	}
	return mask;
}
