/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The inner part of a scan. It is inlined into each caller, because a successful wait takes only a
 * few hundred instructions, and function calls with their saved registers would add many to that.
 */
#ifndef _DEVPOLL_SCAN_H
#define _DEVPOLL_SCAN_H

#include <linux/fdtable.h>
#include <linux/net.h>
#include <linux/uaccess.h>
#include <net/sock.h>
#include <net/tcp.h>

#include "internal.h"

/*
 * Returns the entry of a descriptor, or NULL. Descriptors are small and dense, so the cache that is
 * indexed by their low bits nearly always hits; the table is searched after a miss.
 */
static __always_inline struct dp_entry *dp_set_find(struct dp_set *set, int fd)
{
	struct dp_entry **recent = &set->recent[fd & set->recent_mask];
	struct dp_entry *entry = *recent;

	if (likely(entry && entry->fd == fd))
		return entry;
	entry = xa_load(&set->table, fd);
	if (entry)
		*recent = entry;
	return entry;
}

static __always_inline void dp_entry_set_events(struct dp_entry *entry, u16 events)
{
	entry->events = events;
	WRITE_ONCE(entry->wanted, demangle_poll(events) | DP_ALWAYS);
}

/* Changes the events of an existing entry. Returns whether sleepers must scan again. */
static __always_inline bool dp_entry_modify(struct dp_set *set, struct dp_entry *entry, u16 events)
{
	u16 old = entry->events;

	if (set->options & DP_OPTION_OR)
		events |= old;
	dp_entry_set_events(entry, events);
	/*
	 * The descriptor may now refer to another file than the one whose queue a sleeper joined.
	 */
	if (unlikely(!entry->hooked))
		return true;
	/* The entry may be off the list because it was not ready for the old events. */
	if (!(events & ~old))
		return false;
	dp_wanted_widened();
	if (list_empty(&entry->link))
		list_add_tail(&entry->link, &set->ready);
	return true;
}

/* Stores one result. Returns 0 or -EFAULT. */
static __always_inline int dp_put(struct dp_set *set, struct dp_sink *sink, int fd, u16 events,
				  u16 revents)
{
	if (sink->user) {
		struct pollfd __user *user = sink->user + sink->found;

		if (!user_access_begin(user, sizeof(*user)))
			return -EFAULT;
		unsafe_put_user(fd, &user->fd, fault);
		unsafe_put_user(events, &user->events, fault);
		unsafe_put_user(revents, &user->revents, fault);
		user_access_end();
	} else {
		struct pollfd *result = &set->mapped[sink->found];

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

/*
 * Directs results to the set's area. Returns false if there is no area. Each wait, and each scan
 * after a sleep, must call this, because the area may have been freed or replaced in between.
 */
static __always_inline bool dp_sink_into_area(struct dp_set *set, struct dp_sink *sink)
{
	if (unlikely(!set->mapped))
		return false;
	if (unlikely(sink->room > set->mapped_room))
		sink->room = set->mapped_room;
	return true;
}

/*
 * Returns whether @file belongs to @socket, whose inode the caller holds. Comparing inodes is not
 * enough: SMC gives its file another socket when it falls back to TCP. The comparison of addresses
 * is safe, because the held inode keeps any other object from that address, and sock_poll() too
 * takes the socket from private_data.
 */
static __always_inline bool dp_is_socket(struct file *file, struct socket *socket)
{
	return file->private_data == socket;
}

/*
 * Polls a socket's protocol directly. Going through sock_poll() would only add busy polling, which
 * epoll does not use here either.
 */
static __always_inline __poll_t dp_poll_socket(struct dp_set *set, struct dp_entry *entry,
					       struct file *file)
{
	struct socket *socket = entry->socket;
	typeof(tcp_poll) *poll_socket = READ_ONCE(socket->ops)->poll;

	/*
	 * Most sockets are TCP, and a direct call is cheaper than an indirect one. tcp_poll() waits
	 * on one queue only, the socket's own, and reads the wanted events only from a poll table.
	 */
	if (likely(poll_socket == tcp_poll))
		return tcp_poll(file, socket, NULL);
	if (unlikely(entry->watch_heads))
		return dp_poll_watching_heads(set, entry, file);
	set->no_arm._key = entry->wanted;
	return poll_socket(file, socket, &set->no_arm);
}

/*
 * Returns true if a connection certainly has nothing to read: it is established, all received data
 * was read, and there is no urgent data, no error and no other reader (a BPF or TLS layer). False
 * only means that tcp_poll() must decide. This check takes a third of tcp_poll()'s instructions.
 */
static __always_inline bool dp_tcp_is_drained(const struct sock *sk, __poll_t wanted)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	if (wanted & ~(EPOLLIN | EPOLLRDNORM | EPOLLPRI | EPOLLRDHUP | DP_ALWAYS))
		return false;
	return inet_sk_state_load(sk) == TCP_ESTABLISHED && !READ_ONCE(sk->sk_shutdown) &&
	       READ_ONCE(tp->rcv_nxt) == READ_ONCE(tp->copied_seq) && !READ_ONCE(tp->urg_data) &&
	       !READ_ONCE(sk->sk_prot)->sock_is_readable && !READ_ONCE(sk->sk_err) &&
	       skb_queue_empty_lockless(&sk->sk_error_queue);
}

/* Returns whether a hooked entry is not ready. Tuned for the case that the program has read all. */
static __always_inline bool dp_is_idle(struct dp_set *set, struct dp_entry *entry,
				       struct file *file)
{
	struct socket *socket = entry->socket;

	if (likely(READ_ONCE(socket->ops)->poll == tcp_poll &&
		   dp_tcp_is_drained(socket->sk, entry->wanted)))
		return true;
	return !(dp_poll_socket(set, entry, file) & entry->wanted);
}

/**
 * dp_examine_hooked() - polls the driver of a hooked entry, and counts that
 * @set: the set, locked
 * @entry: the entry
 * @file: its file
 *
 * Return: the wanted events that the entry is ready for.
 */
static __always_inline __poll_t dp_examine_hooked(struct dp_set *set, struct dp_entry *entry,
						  struct file *file)
{
	set->statistics.ds_driver_polls++;
	set->statistics.ds_cached += entry->cached;
	return dp_poll_socket(set, entry, file) & entry->wanted;
}

/**
 * struct dp_file - the file of a descriptor, for the time of a call (as struct fd)
 * @file: the file; NULL if the descriptor is closed
 * @referenced: dp_fdput() must drop a reference
 */
struct dp_file {
	struct file *file;
	bool referenced;
};

/* As in fdget(): a file that no other thread can close needs no reference. */
static __always_inline bool dp_fd_table_unshared(struct files_struct *files)
{
	return atomic_read_acquire(&files->count) == 1;
}

/* As fdget(), inlined. */
static __always_inline struct dp_file dp_fdget(int fd)
{
	struct files_struct *files = current->files;
	struct dp_file borrowed = {};

	if (likely(dp_fd_table_unshared(files))) {
		borrowed.file = files_lookup_fd_raw(files, fd);
		if (borrowed.file && unlikely(borrowed.file->f_mode & FMODE_PATH))
			borrowed.file = NULL;
	} else {
		borrowed.file = fget(fd);
		borrowed.referenced = borrowed.file;
	}
	return borrowed;
}

static __always_inline void dp_fdput(struct dp_file borrowed)
{
	if (unlikely(borrowed.referenced))
		dp_fput_now(borrowed.file);
}

/*
 * Handles a file that is not the socket of a hooked entry: either the descriptor was closed and
 * reused, or SMC fell back to TCP.
 */
static inline __poll_t dp_poll_other_file(struct dp_set *set, struct dp_entry *entry,
					  struct file *file)
{
	if (file->f_mode & FMODE_PATH || file_inode(file) != SOCK_INODE(entry->socket))
		return EPOLLNVAL;
	dp_demote(set, entry);
	return 0;
}

/*
 * Returns the wanted events that a hooked entry is ready for. The interest is in the file that the
 * descriptor referred to at write(). If the descriptor is closed, or now refers to another file,
 * the entry is reported as POLLNVAL until it is removed or written again.
 */
static __always_inline __poll_t dp_poll_hooked_file(struct dp_set *set, struct dp_entry *entry,
						    struct file *file)
{
	if (unlikely(!file))
		return EPOLLNVAL;
	/* This also catches a file opened with O_PATH. */
	if (unlikely(!dp_is_socket(file, entry->socket)))
		return dp_poll_other_file(set, entry, file);
	return dp_examine_hooked(set, entry, file);
}

static __always_inline __poll_t dp_poll_hooked(struct dp_set *set, struct dp_entry *entry)
{
	struct files_struct *files = current->files;
	__poll_t mask;
	struct file *file;

	if (likely(dp_fd_table_unshared(files)))
		return dp_poll_hooked_file(set, entry, files_lookup_fd_raw(files, entry->fd));
	file = fget(entry->fd);
	mask = dp_poll_hooked_file(set, entry, file);
	dp_widen_race();
	if (file)
		dp_fput_now(file);
	return mask;
}

/*
 * Examines the pending entries. Entries that are not ready leave the list, the others stay on it.
 * There must be room for at least one result. Returns 0; 1 if there was no room for all; or
 * -EFAULT.
 */
static __always_inline int dp_scan_ready(struct dp_set *set, struct dp_sink *sink)
{
	struct list_head *link = set->ready.next;

	if (unlikely(link == &set->ready))
		return 0;
	for (;;) {
		struct dp_entry *entry = list_entry(link, struct dp_entry, link);
		__poll_t mask;

		/* Read before the poll, which may unlink this entry, but no other one. */
		link = link->next;
		mask = dp_poll_hooked(set, entry);
		entry->cached = mask != 0;
		if (likely(mask)) {
			if (unlikely(dp_put(set, sink, entry->fd, entry->events,
					    mangle_poll(mask))))
				return -EFAULT;
			if (link == &set->ready)
				return 0;
			if (unlikely(sink->found == sink->room)) {
				/* The next scan begins behind the entries reported now. */
				list_rotate_to_front(link, &set->ready);
				return 1;
			}
		} else {
			/* The poll may have removed the hook, and with it the link to this list. */
			if (likely(entry->hooked))
				list_del_init(&entry->link);
			if (link == &set->ready)
				return 0;
		}
		/* This inline check is cheaper than a call of cond_resched(). */
		if (unlikely(need_resched()))
			cond_resched();
	}
}

/*
 * Returns the file of a hooked entry if no reference to it is needed. Returns NULL if one is
 * needed, or if the descriptor no longer refers to the entry's socket.
 */
static __always_inline struct file *dp_unshared_file(struct dp_entry *entry)
{
	struct files_struct *files = current->files;
	struct file *file;

	if (unlikely(!dp_fd_table_unshared(files)))
		return NULL;
	file = files_lookup_fd_raw(files, entry->fd);
	if (unlikely(!file || !dp_is_socket(file, entry->socket)))
		return NULL;
	return file;
}

/*
 * Fast path for the most common wait: exactly one entry is pending, and it is ready. Without the
 * loop of a scan this path saves half as many registers. Stores that entry in *single and returns
 * the wanted events that it is ready for. Returns 0 if a scan is necessary.
 */
static __always_inline __poll_t dp_poll_single(struct dp_set *set, struct dp_entry **single)
{
	struct dp_entry *entry;
	struct list_head *link;
	struct file *file;
	__poll_t mask;

	if (unlikely(set->slow_path))
		return 0;
	if (!llist_empty(&set->hints))
		dp_replace_single(set);
	link = set->ready.next;
	if (unlikely(link == &set->ready || link->next != &set->ready))
		return 0;
	entry = list_entry(link, struct dp_entry, link);
	file = dp_unshared_file(entry);
	if (unlikely(!file))
		return 0;
	mask = dp_poll_socket(set, entry, file) & entry->wanted;
	if (unlikely(!mask))
		dp_single_not_ready(set, entry);
	*single = entry;
	return mask;
}

/*
 * Reports the entry that dp_poll_single() found. Returns false, and has changed nothing, if the
 * result cannot be stored; the scan that follows then returns the reason.
 */
static __always_inline bool dp_report_single(struct dp_set *set, struct dp_entry *entry,
					     __poll_t mask, struct pollfd __user *fds, int nfds)
{
	struct dp_sink sink = {
		.user = fds,
	};

	if (unlikely(nfds <= 0 || (!fds && !set->mapped)))
		return false;
	if (unlikely(dp_put(set, &sink, entry->fd, entry->events, mangle_poll(mask))))
		return false;
	if (likely(entry->cached)) {
		set->fast_waits++;
		return true;
	}
	entry->cached = true;
	set->statistics.ds_waits++;
	set->statistics.ds_scans++;
	set->statistics.ds_driver_polls++;
	set->statistics.ds_results++;
	return true;
}

#endif /* _DEVPOLL_SCAN_H */
