/* SPDX-License-Identifier: GPL-2.0 */
/*
 * /dev/poll: the structures that the module's files share, and its locks.
 *
 * LOCKS, in the order in which they nest:
 *
 *  1. set->lock (mutex, one an open file): the interest set: table, lists, area, counters. Held
 *     while drivers are polled and while results are copied to user space, so a page fault may
 *     come under it: mmap_lock nests inside.
 *  2. set->area_lock (mutex): changes of set->area. .mmap takes it, under mmap_lock; nothing
 *     touches user memory under it, which is why it is not the mutex above. set->area may be read
 *     under either.
 *  3. a socket's wq.wait.lock (spinlock, the kernel's): hooks are placed and taken away under it,
 *     and dp_hint() is called with it held, from any context. It guards that socket alone: this
 *     is the per-socket backmap lock which the paper (section 3.2) would have liked to have.
 *  4. set->waiters.lock (spinlock): threads that sleep in a wait.
 *
 *  set->hints has no lock: drivers push onto a lock-free list, the holder of set->lock takes the
 *  whole list at once.
 *
 *  dp_sets_lock (spinlock: list of all sets, sums of the closed ones) and dp_users_lock (mutex)
 *  are taken at open and at close, alone. /proc/devpoll walks the list under RCU.
 *
 * LIFETIMES: a set lives as long as its open file, its memory for a grace period more. An entry
 * lives from write() to POLLREMOVE or the last close, and is touched under set->lock, but for
 * dp_hint(), which runs only while the entry's hook is in the socket's wait queue; the queue is
 * part of the socket's inode, and the entry holds a reference to that inode (not to the file:
 * close() must still close). So memory under a hook cannot go away, and a socket found at the same
 * address is the same socket.
 */
#ifndef _DEVPOLL_INTERNAL_H
#define _DEVPOLL_INTERNAL_H

#include <linux/atomic.h>
#include <linux/bits.h>
#include <linux/delay.h>
#include <linux/fs.h>
#include <linux/kernel.h>
#include <linux/list.h>
#include <linux/llist.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pid.h>
#include <linux/poll.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/types.h>
#include <linux/uidgid.h>
#include <linux/wait.h>
#include <linux/xarray.h>

#include "include/linux/devpoll.h"
#include "kcompat.h"

/* Changes are copied from user space in pieces of this many, on the stack. */
#define DP_CHUNK 32

/*
 * Slots for entries by the low bits of their descriptors, see dp_set_find(): at least, at most,
 * and for each entry at most.
 */
#define DP_RECENT 64
#define DP_RECENT_MAX BIT(20)
#define DP_RECENT_SHARE 8

/* Events that poll(2) reports whether asked for or not. */
#define DP_ALWAYS (EPOLLERR | EPOLLHUP)

/*
 * Makes the moments wide in which the threads of a set may miss each other, for the tests of what
 * happens then (README.md, "Tests").
 */
static inline void dp_widen_race(void)
{
#ifdef DEVPOLL_WIDEN_RACES
	udelay(100);
#endif
}

/* struct dvpoll as the kernel reads it: the same bytes, with addresses marked for sparse. */
struct dp_wait_args {
	struct pollfd __user *fds;
	int nfds;
	int timeout;
	const sigset_t __user *sigmask;
};

/* struct dvpoll_update likewise. */
struct dp_update_args {
	const struct pollfd __user *changes;
	struct pollfd __user *fds;
	const sigset_t __user *sigmask;
	int nchanges;
	int nfds;
	int timeout;
	int flags;
};

static_assert(sizeof(struct dp_wait_args) == sizeof(struct dvpoll));
static_assert(offsetof(struct dp_wait_args, timeout) == offsetof(struct dvpoll, dp_timeout));
static_assert(sizeof(struct dp_update_args) == sizeof(struct dvpoll_update));
static_assert(offsetof(struct dp_update_args, flags) == offsetof(struct dvpoll_update, du_flags));

/* The one bit of dp_entry.posted, which drivers set without set->lock. */
#define DP_HINTED 0

/**
 * struct dp_entry - an interest in a descriptor
 * @link: hooked: on set->ready when it must be examined, else alone; not hooked: on set->unhinted
 * @socket: hooked: the socket, whose inode is held
 * @wanted: events to look for, with those that are always reported
 * @fd: its number in the owner's table
 * @events: events as user space gave them
 * @hooked: @wait is in the socket's wait queue
 * @watch_heads: the socket's protocol may change its wait queues: look at each poll
 * @cached: was ready at the last scan
 * @posted: DP_HINTED: on set->hints, or being pushed onto it
 * @set: the set it is in
 * @hint: on set->hints
 * @round: DP_HPOLL: the last call whose array had this descriptor
 * @wait: the hook; its @private is the queue's head
 */
struct dp_entry {
	struct list_head link;
	struct socket *socket;
	__poll_t wanted;
	int fd;
	u16 events;
	bool hooked;
	bool watch_heads;
	bool cached;
	u32 round;
	struct dp_set *set;
	unsigned long posted;
	struct llist_node hint;
	wait_queue_entry_t wait;
};

/* How a set is used: both at once would mix up whose the entries are. */
enum dp_use {
	DP_USE_NONE,
	DP_USE_SET,	/* write() and DP_POLL */
	DP_USE_HPOLL,	/* DP_HPOLL */
};

/**
 * struct dp_area - results shared with user space
 * @results: the pages, seen by the kernel
 * @room: results that fit
 * @npages: pages
 * @maps: mappings of it, in all processes
 * @pages: the pages one by one
 */
struct dp_area {
	struct pollfd *results;
	size_t room;
	unsigned int npages;
	atomic_t maps;
	struct page *pages[] __counted_by(npages);
};

struct dp_user;

/**
 * struct dp_set - an open /dev/poll
 * @lock: see the head of this file
 * @ready: hooked entries to examine: hinted, ready the last time, or new
 * @unhinted: entries without a hook, polled at every scan
 * @table: entry by descriptor
 * @recent: entries that were looked up last, by the low bits of their descriptors
 * @recent_mask: those bits
 * @changed: how often a change asked for another look, or hints were taken off @hints other than
 *	     at the beginning of a scan; read without the lock by sleepers
 * @taken: how often hints were taken off @hints; read likewise
 * @options: DP_OPTION_*
 * @entries: in @table
 * @hinted: of them, with a hook
 * @round: DP_HPOLL calls so far
 * @cursor: descriptor at which the next table scan begins
 * @use: how the set is used
 * @unusual: it, an option, or an entry without a hook asks for more than dp_scan_quickly() does
 * @unhinted_first: the last scan found no room for @unhinted: begin there
 * @hpolling: a DP_HPOLL is under way
 * @no_arm: for asking drivers without joining wait queues; @_key is set for each
 * @statistics: what ioctl and /proc tell; @ds_size and the like are filled in when asked for
 * @quick: waits that looked at one entry and reported it, dp_put_only()'s: not in @statistics
 * @mapped: @area's results
 * @mapped_room: results that fit there
 * @area: results shared with user space
 * @area_lock: see the head of this file
 * @owner: thread group that used the set first
 * @user: who opened it and pays for it
 * @all: on the list of all sets
 * @rcu: for its end
 * @hints: entries for which drivers posted a hint
 * @waiters: sleeping callers
 */
struct dp_set {
	struct mutex lock;	/* all of the set but what is said otherwise */
	struct list_head ready;
	struct list_head unhinted;
	struct xarray table;
	struct dp_entry **recent;
	unsigned int recent_mask;
	unsigned int changed;
	unsigned int taken;
	u32 options;
	unsigned int entries;
	unsigned int hinted;
	u32 round;
	unsigned int cursor;
	enum dp_use use;
	bool unusual;
	bool unhinted_first;
	bool hpolling;
	poll_table no_arm;
	struct dvpoll_statistics statistics;
	u64 quick;
	struct pollfd *mapped;
	size_t mapped_room;
	struct dp_area *area;
	struct mutex area_lock;	/* changes of @area */
	struct pid *owner;
	struct dp_user *user;
	struct list_head all;
	struct rcu_head rcu;

	struct llist_head hints ____cacheline_aligned_in_smp;
	wait_queue_head_t waiters;
};

/**
 * struct dp_sink - where a scan puts its results
 * @user: in user space; NULL: the set's area
 * @room: results that fit
 * @found: results put
 * @left: room ran out before everything pending was examined
 * @counted: the wait has been counted
 */
struct dp_sink {
	struct pollfd __user *user;
	size_t room;
	size_t found;
	bool left;
	bool counted;
};

/* main.c */
extern const struct file_operations dp_fops;
extern struct kmem_cache *dp_entry_cache;

/* options.c */
u32 dp_default_options(bool replaces);
long dp_set_options(struct dp_set *set, unsigned long options);

/* set.c */
int dp_set_change(struct dp_set *set, const struct pollfd *change, bool *look);
int dp_set_claim_anew(struct dp_set *set, enum dp_use use);
void dp_set_settle(struct dp_set *set);
void dp_set_look_again(struct dp_set *set);
struct dp_entry *dp_entry_add(struct dp_set *set, struct file *file, int fd, u16 events,
			      __poll_t *mask);
void dp_entry_remove(struct dp_set *set, struct dp_entry *entry);
int dp_set_init(struct dp_set *set);
void dp_set_clear(struct dp_set *set);

/* hint.c */
__poll_t dp_hook(struct dp_set *set, struct dp_entry *entry, struct file *file);
void dp_unhook(struct dp_set *set, struct dp_entry *entry);
void dp_take_hints(struct dp_set *set);
void dp_demote(struct dp_set *set, struct dp_entry *entry);
__poll_t dp_poll_watching_heads(struct dp_set *set, struct dp_entry *entry, struct file *file);

/* scan.c */
int dp_scan(struct dp_set *set, struct dp_sink *sink, poll_table *arm);
__poll_t dp_examine_unhinted(struct dp_set *set, struct file *file, __poll_t wanted,
			     poll_table *arm);

/* wait.c */
long dp_wait(struct dp_set *set, struct pollfd __user *fds, int nfds, int timeout_ms);
long dp_wait_longer(struct dp_set *set, struct dp_wait_args __user *user);
long dp_wait_scanning(struct dp_set *set, struct dp_wait_args __user *user);
void dp_only_is_not_ready(struct dp_set *set, struct dp_entry *entry);
void dp_replace_only(struct dp_set *set);
long dp_update_wait_user(struct dp_set *set, struct dp_update_args __user *user);
typedef int dp_scan_fn(struct dp_set *set, void *context, poll_table *arm);
int dp_sleep(struct dp_set *set, int timeout_ms, struct poll_wqueues *queues, dp_scan_fn *scan,
	     void *context);

/* hpoll.c */
int dp_hpoll(struct dp_set *set, struct pollfd __user *fds, int nfds, int timeout_ms);

/* write.c */
ssize_t dp_write_iter(struct kiocb *iocb, struct iov_iter *from);
ssize_t dp_write(struct file *file, const char __user *buffer, size_t size, loff_t *position);
int dp_apply(struct dp_set *set, const struct pollfd __user *changes, int nchanges);
unsigned int dp_apply_user(struct dp_set *set, const struct pollfd __user *changes,
			   unsigned int count, int *result);

/* ioctl.c */
int dp_claim_owner(struct dp_set *set);
long dp_ioctl(struct file *file, unsigned int cmd, unsigned long arg);
#ifdef CONFIG_COMPAT
long dp_compat_ioctl(struct file *file, unsigned int cmd, unsigned long arg);
#endif
long dp_wait_masked(struct dp_set *set, struct pollfd __user *fds, int nfds, int timeout,
		    const sigset_t *mask);
long dp_ispolled(struct dp_set *set, struct pollfd __user *user);

/* area.c */
int dp_area_alloc(struct dp_set *set, unsigned long count);
int dp_area_free(struct dp_set *set);
void dp_area_release(struct dp_set *set);
int dp_mmap(struct file *file, struct vm_area_struct *vma);

/* users.c */
int dp_users_init(void);
struct dp_user *dp_user_get(kuid_t uid);
void dp_user_put(struct dp_user *user);
int dp_user_charge(struct dp_user *user, long count);
void dp_user_uncharge(struct dp_user *user, long count);

/* statistics.c */
int dp_statistics_init(void);
void dp_statistics_exit(void);
void dp_statistics_add_set(struct dp_set *set);
void dp_statistics_remove_set(struct dp_set *set);
void dp_show_fdinfo(struct seq_file *file, struct file *filp);
long dp_get_statistics(struct dp_set *set, struct dvpoll_statistics __user *user);

/**
 * dp_check_owner() - lets the first process that uses a set be the only one
 * @set: the set
 *
 * A set means descriptors of one process. As on Solaris the first write() or ioctl() settles
 * which: a parent may open /dev/poll for its child.
 *
 * Return: 0 or -EACCES.
 */
static __always_inline int dp_check_owner(struct dp_set *set)
{
	if (likely(READ_ONCE(set->owner) == task_tgid(current)))
		return 0;
	return dp_claim_owner(set);
}

/**
 * dp_set_claim() - settles how the set is used
 * @set: the set, locked
 * @use: by write() and DP_POLL, or by DP_HPOLL
 *
 * Return: 0; -EBUSY if it has entries from the other use, or a DP_HPOLL is under way.
 */
static __always_inline int dp_set_claim(struct dp_set *set, enum dp_use use)
{
	return likely(set->use == use) ? 0 : dp_set_claim_anew(set, use);
}

/**
 * dp_wanted_widened() - orders a wider entry->wanted before the driver's answer
 *
 * Either the poll that follows sees what the driver has, or the driver's wake-up, which has a
 * barrier between its change and its look at the queue, sees in dp_hint() what is wanted now.
 * poll_wait() has no barrier without a function to queue with. See litmus/widen.litmus.
 */
static inline void dp_wanted_widened(void)
{
	/* Pairs with that of wq_has_sleeper() in the driver's wake-up. */
	smp_mb();
}

/**
 * dp_interrupted() - what a wait ends with when a signal is pending
 * @timeout_ms: the time to wait
 *
 * A signal that runs a handler makes both EINTR. After one that does not (the process was stopped
 * and continued, traced, or frozen) Solaris sleeps on. Here a wait for ever is begun anew; one with
 * an end is not: it would begin its time anew, too.
 *
 * Return: -ERESTARTNOHAND or -EINTR.
 */
static inline int dp_interrupted(int timeout_ms)
{
	return timeout_ms < 0 ? -ERESTARTNOHAND : -EINTR;
}

/**
 * dp_once() - the result of a call that must not be begun anew
 * @result: its result
 *
 * DP_UPDATE_POLL: another thread may have changed the set meanwhile.
 *
 * Return: @result, or -EINTR instead of -ERESTARTNOHAND.
 */
static inline long dp_once(long result)
{
	return unlikely(result == -ERESTARTNOHAND) ? -EINTR : result;
}

#endif /* _DEVPOLL_INTERNAL_H */
