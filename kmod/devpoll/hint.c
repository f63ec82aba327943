// SPDX-License-Identifier: GPL-2.0
/*
 * Hints (paper, section 3.2): a socket tells the sets that it is in when its state changes.
 *
 * The backmap of a socket is its wait queue. An entry puts a hook of its own into it, by way of
 * the socket's poll function as epoll does, and dp_hint() is called whenever the socket wakes
 * those who wait for it. A hint says that the state changed, not what it is now: the entry is
 * examined at the next scan. Nothing tells of the change from ready to not ready, so an entry
 * that was ready is examined at every scan.
 *
 * Hints are had from sockets whose poll function waits on the queue inside the socket's inode and
 * on no other. Everything else (pipes, terminals, sockets that wait elsewhere) is left unhooked.
 */
#include <linux/net.h>
#include <net/sock.h>

#include "internal.h"

/**
 * struct dp_heads - what a poll function waits on
 * @table: handed to the poll function
 * @entry: the entry to hook, or which is hooked
 * @own: the queue in the socket's inode
 * @seen: how often the poll function named it
 * @foreign: it named another one
 */
struct dp_heads {
	poll_table table;
	struct dp_entry *entry;
	wait_queue_head_t *own;
	unsigned int seen;
	bool foreign;
};

/*
 * Called by the driver when the socket's state changed: with the queue's lock held, in any
 * context. The entry, its inode and its set are alive because the hook is still in the queue.
 */
static int dp_hint(wait_queue_entry_t *wait, unsigned int mode, int sync, void *key)
{
	struct dp_entry *entry = container_of(wait, struct dp_entry, wait);
	struct dp_set *set = entry->set;
	__poll_t events = key_to_poll(key);

	/* A waker that names events which nobody here looks for; no name means: any. */
	if (events && !(events & READ_ONCE(entry->wanted)))
		return 0;
#ifdef DEVPOLL_BREAK_RACE
	set->quick++;
#endif
	/* Posted and not yet taken: whoever set the bit also wakes, or has woken, the waiters. */
	if (test_and_set_bit(DP_HINTED, &entry->posted))
		return 0;
	llist_add(&entry->hint, &set->hints);
	/*
	 * llist_add() is a full barrier: either the sleeper, which queues itself before it looks
	 * at set->hints, sees the hint, or it is seen here.
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

	if (head != heads->own || heads->seen++) {
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
		heads->seen++;
	else
		heads->foreign = true;
}

/*
 * TCP, UDP and UNIX sockets wait on their own queue for as long as they live. Of others (SMC
 * falls back to TCP under way, RDS waits on a second queue once it met congestion) each poll is
 * watched for the queues that it names.
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

/**
 * dp_hook() - places an entry's hook, if its file can give hints
 * @set: the set, locked
 * @entry: the entry: not hooked, in the table or about to be
 * @file: its file
 *
 * On return @entry->hooked tells whether the entry will have hints.
 *
 * Return: what the file is ready for, if it was polled; else 0.
 */
__poll_t dp_hook(struct dp_set *set, struct dp_entry *entry, struct file *file)
{
	struct socket *socket = sock_from_file(file);
	struct inode *inode = file_inode(file);
	struct dp_heads heads = {
		.entry = entry,
	};
	struct sock *sk;
	__poll_t mask;

	if (!socket || !file_can_poll(file) || (set->options & DP_OPTION_NOHINTS))
		return 0;
	/* After SMC fell back to TCP, file and inode belong to different sockets. */
	if (socket != SOCKET_I(inode))
		return 0;
	sk = READ_ONCE(socket->sk);
	if (!sk)
		return 0;

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
 * dp_unhook() - takes an entry's hook away; no hint comes afterwards, none is left behind
 * @set: the set, locked
 * @entry: the entry
 *
 * Does nothing for an entry without a hook. The entry is on no list afterwards.
 */
void dp_unhook(struct dp_set *set, struct dp_entry *entry)
{
	struct socket *socket = entry->socket;

	if (!entry->hooked) {
		list_del_init(&entry->link);
		return;
	}
	/* The queue's lock orders this after every dp_hint() that is under way. */
	remove_wait_queue(entry->wait.private, &entry->wait);
	if (test_bit(DP_HINTED, &entry->posted)) {
		dp_take_hints(set);
		/*
		 * All hints were taken, and a scan may be under way (a DP_HPOLL that forgets this
		 * entry) that has passed the others: it must not sleep before it has looked again.
		 * Nobody who sleeps already need be woken: the hints have done that.
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
 * dp_take_hints() - moves entries with a hint to the entries to examine
 * @set: the set, locked
 */
void dp_take_hints(struct dp_set *set)
{
	struct dp_entry *entry, *next;
	struct llist_node *hints;

	if (llist_empty(&set->hints))
		return;
	/*
	 * A thread that has scanned but does not sleep yet will find the list empty. The exchange
	 * in llist_del_all() is a full barrier: it then finds this changed, and scans again.
	 */
	WRITE_ONCE(set->taken, set->taken + 1);
	hints = llist_del_all(&set->hints);
	/* Most often there is one. */
	if (unlikely(hints->next))
		hints = llist_reverse_order(hints);
	dp_widen_race();
	llist_for_each_entry_safe(entry, next, hints, hint) {
		set->statistics.ds_hints++;
		if (list_empty(&entry->link))
			list_add_tail(&entry->link, &set->ready);
		/* From here on the entry may be pushed again. */
		clear_bit(DP_HINTED, &entry->posted);
		/* Before the poll: what changes after the poll looked finds the bit clear. */
		smp_mb__after_atomic();
		/* Asked here, for it costs less than the call. */
		if (unlikely(need_resched()))
			cond_resched();
	}
}

/**
 * dp_demote() - an entry's hints can no longer be relied upon
 * @set: the set, locked
 * @entry: its hooked entry
 *
 * It loses its hook and is polled at every scan from the next one on, which nobody sleeps before.
 */
void dp_demote(struct dp_set *set, struct dp_entry *entry)
{
	dp_unhook(set, entry);
	list_add_tail(&entry->link, &set->unhinted);
	dp_set_settle(set);
	dp_set_look_again(set);
}

/**
 * dp_poll_watching_heads() - polls a file whose wait queues may change
 * @set: the set, locked
 * @entry: its hooked entry
 * @file: its file
 *
 * If the file now waits elsewhere the entry is demoted.
 *
 * Return: what the file is ready for; 0 if the entry was demoted.
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
	if (heads.foreign || heads.seen != 1) {
		dp_demote(set, entry);
		return 0;
	}
	return mask;
}
