/* SPDX-License-Identifier: GPL-2.0 */
/*
 * /dev/poll: the structures that the module's files share, and its locks.
 *
 * LOCKS, in nesting order:
 *
 *  1. set->lock (mutex, one per open file) protects the interest set: table, lists, area and
 *     counters. It is held while drivers are polled and while results are copied to user space.
 *     A page fault can therefore happen under it, and mmap_lock nests inside it.
 *  2. set->area_lock (mutex) protects changes of set->area. .mmap takes it under mmap_lock, so no
 *     code may touch user memory while holding it. That is why set->lock cannot be used instead.
 *     set->area may be read under either of the two.
 *  3. A socket's wq.wait.lock (spinlock of the kernel): hooks are added and removed under it, and
 *     dp_hint() is called with it held, from any context. It protects that socket only. It is the
 *     per-socket backmap lock that the paper (section 3.2) proposes.
 *  4. set->waiters.lock (spinlock) protects the list of threads that sleep in a wait.
 *
 *  set->hints has no lock: drivers push onto a lock-free list, and the holder of set->lock takes
 *  the whole list at once.
 *
 *  dp_sets_lock (spinlock: list of all sets, totals of the closed ones) and dp_users_lock (mutex)
 *  are taken at open and at close, never together with another lock. /proc/devpoll walks the list
 *  under RCU.
 *
 * LIFETIMES: a set lives as long as its open file; its memory is freed one RCU grace period later.
 * An entry lives from write() to POLLREMOVE or the last close. It is accessed under set->lock, with
 * one exception: dp_hint() runs without it, but only while the entry's hook is in the socket's wait
 * queue. That queue is part of the socket's inode, and the entry holds a reference to the inode
 * (not to the file, because close() must still close the connection). The memory that a hook is
 * linked into therefore stays valid, and a socket found at the same address is the same socket.
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

/* Changes are copied from user space to the stack, this many at a time. */
#define DP_CHUNK 32

/*
 * Number of slots in set->recent, see dp_set_find(): the minimum, the maximum, and the maximum per
 * entry.
 */
#define DP_RECENT 64
#define DP_RECENT_MAX BIT(20)
#define DP_RECENT_SHARE 8

/* Events that poll(2) reports even if the caller did not request them. */
#define DP_ALWAYS (EPOLLERR | EPOLLHUP)

/*
 * Lengthens the windows in which threads that use one set can race, so that the tests hit them
 * (README.md, "Tests").
 */
static inline void dp_widen_race(void)
{
#ifdef DEVPOLL_WIDEN_RACES
	udelay(100);
#endif
}

/* The layout of struct dvpoll, with user-space addresses marked for sparse. */
struct dp_wait_args {
	struct pollfd __user *fds;
	int nfds;
	int timeout;
	const sigset_t __user *sigmask;
};

/* The layout of struct dvpoll_update, marked in the same way. */
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

/* The only bit of dp_entry.posted; drivers set it without set->lock. */
#define DP_HINTED 0

/**
 * struct dp_entry - an interest in a descriptor
 * @link: a hooked entry is on set->ready if it must be examined, otherwise on no list; an entry
 *	  without a hook is on set->unhinted
 * @socket: the socket of a hooked entry; the entry holds a reference to its inode
 * @wanted: requested events, plus those that are always reported
 * @fd: the descriptor number in the owner's table
 * @events: events as user space gave them
 * @hooked: @wait is in the socket's wait queue
 * @watch_heads: the socket's protocol may change its wait queues, so every poll checks them
 * @cached: the entry was ready at the last scan
 * @posted: DP_HINTED: the entry is on set->hints, or is being pushed onto it
 * @set: the set that contains the entry
 * @hint: link in set->hints
 * @generation: DP_HPOLL: the last call whose array contained this descriptor
 * @wait: the hook; its @private is the wait queue head
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
	u32 generation;
	struct dp_set *set;
	unsigned long posted;
	struct llist_node hint;
	wait_queue_entry_t wait;
};

/* How a set is used. Mixed use would confuse the entries of write() with those of DP_HPOLL. */
enum dp_use {
	DP_USE_NONE,
	DP_USE_SET,	/* write() and DP_POLL */
	DP_USE_HPOLL,	/* DP_HPOLL */
};

/**
 * struct dp_area - result memory shared with user space
 * @results: kernel address of the area
 * @room: capacity in results
 * @npages: number of pages
 * @maps: number of mappings, in all processes
 * @pages: the pages
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
 * @ready: hooked entries to examine: hinted, ready at the last scan, or new
 * @unhinted: entries without a hook; every scan polls them
 * @table: entries by descriptor
 * @recent: cache of the latest lookups in @table, indexed by the low bits of the descriptor
 * @recent_mask: mask of those bits
 * @changed: number of changes that require sleepers to scan again, plus the number of times that
 *	     hints were taken off @hints other than at the beginning of a scan; sleepers read it
 *	     without the lock
 * @taken: number of times that hints were taken off @hints; also read without the lock
 * @options: DP_OPTION_*
 * @entries: number of entries in @table
 * @hinted: number of those that have a hook
 * @generation: number of DP_HPOLL calls so far
 * @cursor: descriptor at which the next table scan begins
 * @use: how the set is used
 * @slow_path: @use, an option, or an entry without a hook needs more than dp_scan_fast() does
 * @unhinted_first: the last scan had no room for @unhinted, so the next one begins there
 * @hpolling: a DP_HPOLL call is running
 * @no_arm: poll table that joins no wait queue; @_key is set before each use
 * @statistics: counters for ioctl and /proc; @ds_size, @ds_entries and @ds_hinted are filled in
 *		on request
 * @fast_waits: waits that dp_report_single() completed; they are not yet in @statistics
 * @mapped: the results of @area
 * @mapped_room: capacity of @area in results
 * @area: result memory shared with user space
 * @area_lock: see the head of this file
 * @owner: thread group that used the set first
 * @user: account of the user who opened the set
 * @all: link in the list of all sets
 * @rcu: defers freeing to the end of a grace period
 * @hints: entries for which drivers posted a hint
 * @waiters: sleeping callers
 */
struct dp_set {
	struct mutex lock;	/* the whole set, except as noted at the head of this file */
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
	u32 generation;
	unsigned int cursor;
	enum dp_use use;
	bool slow_path;
	bool unhinted_first;
	bool hpolling;
	poll_table no_arm;
	struct dvpoll_statistics statistics;
	u64 fast_waits;
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
 * struct dp_sink - where a scan stores its results
 * @user: user-space array; NULL: the set's area
 * @room: capacity in results
 * @found: number of results stored
 * @more: the room ran out before all pending entries were examined
 * @counted: this wait is already counted in the statistics
 */
struct dp_sink {
	struct pollfd __user *user;
	size_t room;
	size_t found;
	bool more;
	bool counted;
};

/* main.c */
extern const struct file_operations dp_fops;
extern struct kmem_cache *dp_entry_cache;

/* options.c */
u32 dp_default_options(bool replaces);
long dp_set_options(struct dp_set *set, u32 options);

/* set.c */
int dp_set_change(struct dp_set *set, const struct pollfd *change, bool *rescan);
int dp_set_change_use(struct dp_set *set, enum dp_use use);
void dp_set_choose_path(struct dp_set *set);
void dp_set_force_rescan(struct dp_set *set);
struct dp_entry *dp_entry_add(struct dp_set *set, struct file *file, int fd, u16 events,
			      __poll_t *mask);
void dp_entry_remove(struct dp_set *set, struct dp_entry *entry);
int dp_set_init(struct dp_set *set);
void dp_set_clear(struct dp_set *set);

/* hint.c */
bool dp_may_get_hook(const struct dp_set *set, struct file *file);
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
long dp_wait_slow(struct dp_set *set, struct dp_wait_args __user *user);
long dp_wait_scan(struct dp_set *set, struct dp_wait_args __user *user);
void dp_single_not_ready(struct dp_set *set, struct dp_entry *entry);
void dp_replace_single(struct dp_set *set);
long dp_update_wait_user(struct dp_set *set, struct dp_update_args __user *user);
void dp_fput_now(struct file *file);
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
int dp_area_alloc(struct dp_set *set, unsigned int count);
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
 * dp_check_owner() - restricts a set to the first process that uses it
 * @set: the set
 *
 * The descriptors in a set belong to one process. As on Solaris, the process that first calls
 * write() or ioctl() becomes the owner, so a parent may open /dev/poll for its child.
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
 * dp_set_claim() - reserves the set for one kind of use
 * @set: the set, locked
 * @use: by write() and DP_POLL, or by DP_HPOLL
 *
 * Return: 0; -EBUSY if the set has entries from the other use, or a DP_HPOLL call is running.
 */
static __always_inline int dp_set_claim(struct dp_set *set, enum dp_use use)
{
	return likely(set->use == use) ? 0 : dp_set_change_use(set, use);
}

/**
 * dp_wanted_widened() - orders a store of new events in entry->wanted before the driver's poll
 *
 * With this barrier one of two things happens: the poll that follows sees the driver's new state,
 * or dp_hint(), called by the driver's wake-up, sees the new entry->wanted. The wake-up has its own
 * barrier between changing the state and checking the queue. poll_wait() has a barrier only if it
 * has a queue function, and here it has none. See litmus/widen.litmus.
 */
static inline void dp_wanted_widened(void)
{
	/* Pairs with that of wq_has_sleeper() in the driver's wake-up. */
	smp_mb();
}

/**
 * dp_signal_error() - the error of a wait that a signal interrupts
 * @timeout_ms: the timeout of the wait
 *
 * If the signal runs a handler, user space sees EINTR in both cases. If it runs none (the process
 * was stopped and continued, traced, or frozen), Solaris keeps sleeping. Here a wait without a
 * timeout is restarted. A wait with a timeout is not, because a restart would begin the timeout
 * again.
 *
 * Return: -ERESTARTNOHAND or -EINTR.
 */
static inline int dp_signal_error(int timeout_ms)
{
	return timeout_ms < 0 ? -ERESTARTNOHAND : -EINTR;
}

/**
 * dp_no_restart() - the result of a call that must not be restarted
 * @result: the result so far
 *
 * A restarted DP_UPDATE_POLL would apply its changes again, although another thread may have
 * changed the set in between.
 *
 * Return: @result, or -EINTR instead of -ERESTARTNOHAND.
 */
static inline long dp_no_restart(long result)
{
	return unlikely(result == -ERESTARTNOHAND) ? -EINTR : result;
}

#endif /* _DEVPOLL_INTERNAL_H */
