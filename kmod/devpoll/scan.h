/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The inner part of a scan, inlined into each of its callers: a wait that finds something is a
 * few hundred instructions in all, of which calls and their saved registers would be a good part.
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
 * The entry of a descriptor, or NULL. Descriptors are small and dense, so slots by their low bits
 * nearly always hit; the table is for those that do not.
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

/* Modifies an entry that is in the file's interest already. Tells if sleepers must look again. */
static __always_inline bool dp_entry_modify(struct dp_set *set, struct dp_entry *entry, u16 events)
{
	u16 old = entry->events;

	if (set->options & DP_OPTION_OR)
		events |= old;
	dp_entry_set_events(entry, events);
	/* The number may mean another file than the one whose queue a sleeper joined. */
	if (unlikely(!entry->hooked))
		return true;
	/* "Not ready" for the old events says nothing about ones that were not among them. */
	if (!(events & ~old))
		return false;
	dp_wanted_widened();
	if (list_empty(&entry->link))
		list_add_tail(&entry->link, &set->ready);
	return true;
}

/* Puts one result. Returns 0, or -EFAULT. */
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
 * Has results go to the set's area, if there is one. Each wait and each scan after a sleep must
 * ask: the area may be freed, or another one made, meanwhile.
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
 * Whether a file is that of a socket whose inode is held. The inode does not tell: SMC gives its
 * file another socket when it falls back to TCP. Nothing else can be at the socket's address, and
 * what sock_poll() would ask is what the file has there.
 */
static __always_inline bool dp_is_socket(struct file *file, struct socket *socket)
{
	return file->private_data == socket;
}

/*
 * Asks a socket's protocol. sock_poll(), between the file and the protocol, would only add busy
 * polling, which epoll does not have it do either.
 */
static __always_inline __poll_t dp_poll_socket(struct dp_set *set, struct dp_entry *entry,
					       struct file *file)
{
	struct socket *socket = entry->socket;
	typeof(tcp_poll) *ask = READ_ONCE(socket->ops)->poll;

	/*
	 * Most are of TCP: a call by name does without the detour of an indirect one. It names one
	 * queue, the socket's own, and without a table it does not ask what is wanted.
	 */
	if (likely(ask == tcp_poll))
		return tcp_poll(file, socket, NULL);
	if (unlikely(entry->watch_heads))
		return dp_poll_watching_heads(set, entry, file);
	set->no_arm._key = entry->wanted;
	return ask(file, socket, &set->no_arm);
}

/*
 * Whether a connection certainly has nothing for a reader: it is established, all that arrived was
 * read, and there is no urgent data, no error and no other reader (a BPF or TLS layer). False only
 * means that tcp_poll() must tell; this takes a third of its instructions.
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

/* Whether a hooked entry is not ready, where it probably is not: its program has read. */
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
 * dp_examine_hooked() - asks the driver about a hooked entry
 * @set: the set, locked
 * @entry: the entry
 * @file: its file
 *
 * Return: what it is ready for, of what is wanted.
 */
static __always_inline __poll_t dp_examine_hooked(struct dp_set *set, struct dp_entry *entry,
						  struct file *file)
{
	set->statistics.ds_driver_polls++;
	set->statistics.ds_cached += entry->cached;
	return dp_poll_socket(set, entry, file) & entry->wanted;
}

/**
 * struct dp_file - a descriptor's file, borrowed
 * @file: the file; NULL if the descriptor is closed
 * @counted: it must be given back
 */
struct dp_file {
	struct file *file;
	bool counted;
};

/* As in fdget(): what no other thread can close needs no reference. */
static __always_inline bool dp_table_is_mine(struct files_struct *files)
{
	return atomic_read_acquire(&files->count) == 1;
}

/* As fdget(), inlined. */
static __always_inline struct dp_file dp_file_borrow(int fd)
{
	struct files_struct *files = current->files;
	struct dp_file borrowed = {};

	if (likely(dp_table_is_mine(files))) {
		borrowed.file = files_lookup_fd_raw(files, fd);
		if (borrowed.file && unlikely(borrowed.file->f_mode & FMODE_PATH))
			borrowed.file = NULL;
	} else {
		borrowed.file = fget(fd);
		borrowed.counted = borrowed.file;
	}
	return borrowed;
}

static __always_inline void dp_file_return(struct dp_file borrowed)
{
	if (unlikely(borrowed.counted))
		fput(borrowed.file);
}

/* A file that is not the socket of a hooked entry: the number was used again, or SMC fell back. */
static inline __poll_t dp_look_elsewhere(struct dp_set *set, struct dp_entry *entry,
					 struct file *file)
{
	if (file->f_mode & FMODE_PATH || file_inode(file) != SOCK_INODE(entry->socket))
		return EPOLLNVAL;
	dp_demote(set, entry);
	return 0;
}

/*
 * What a hooked entry is ready for. The interest is in the file that was written, so a number
 * that is closed, or now means another file, is reported as POLLNVAL until it is removed or
 * written again.
 */
static __always_inline __poll_t dp_look_at_file(struct dp_set *set, struct dp_entry *entry,
						struct file *file)
{
	if (unlikely(!file))
		return EPOLLNVAL;
	/* What was opened with O_PATH is not the socket either. */
	if (unlikely(!dp_is_socket(file, entry->socket)))
		return dp_look_elsewhere(set, entry, file);
	return dp_examine_hooked(set, entry, file);
}

static __always_inline __poll_t dp_look_hooked(struct dp_set *set, struct dp_entry *entry)
{
	struct files_struct *files = current->files;
	__poll_t mask;
	struct file *file;

	if (likely(dp_table_is_mine(files)))
		return dp_look_at_file(set, entry, files_lookup_fd_raw(files, entry->fd));
	file = fget(entry->fd);
	mask = dp_look_at_file(set, entry, file);
	if (file)
		fput(file);
	return mask;
}

/*
 * Examines the pending entries: those that are not ready leave the list, others stay. There must
 * be room for one result. Returns 0, 1 if there was no room for all, or -EFAULT.
 */
static __always_inline int dp_scan_ready(struct dp_set *set, struct dp_sink *sink)
{
	struct list_head *link = set->ready.next;

	if (unlikely(link == &set->ready))
		return 0;
	for (;;) {
		struct dp_entry *entry = list_entry(link, struct dp_entry, link);
		__poll_t mask;

		/* Now: the entry may leave the list. With the set locked its neighbour stays. */
		link = link->next;
		mask = dp_look_hooked(set, entry);
		entry->cached = mask != 0;
		if (likely(mask)) {
			if (unlikely(dp_put(set, sink, entry->fd, entry->events,
					    mangle_poll(mask))))
				return -EFAULT;
			if (link == &set->ready)
				return 0;
			if (unlikely(sink->found == sink->room)) {
				/* Those reported now come last the next time. */
				list_rotate_to_front(link, &set->ready);
				return 1;
			}
		} else {
			/* Else it has lost its hook, and left this list, just now. */
			if (likely(entry->hooked))
				list_del_init(&entry->link);
			if (link == &set->ready)
				return 0;
		}
		/* Asked here, for it costs less than the call. */
		if (unlikely(need_resched()))
			cond_resched();
	}
}

/*
 * The file of a hooked entry, where no reference to it is needed; NULL if one is, or if the number
 * no longer means the entry's socket.
 */
static __always_inline struct file *dp_own_file(struct dp_entry *entry)
{
	struct files_struct *files = current->files;
	struct file *file;

	if (unlikely(!dp_table_is_mine(files)))
		return NULL;
	file = files_lookup_fd_raw(files, entry->fd);
	if (unlikely(!file || !dp_is_socket(file, entry->socket)))
		return NULL;
	return file;
}

/*
 * Most waits find one entry pending, and it is ready. Without the loop of a scan they keep half as
 * many registers. Returns what that entry is ready for; 0 if a scan must tell.
 */
static __always_inline __poll_t dp_look_at_only(struct dp_set *set, struct dp_entry **only)
{
	struct dp_entry *entry;
	struct list_head *link;
	struct file *file;
	__poll_t mask;

	if (unlikely(set->unusual))
		return 0;
	if (!llist_empty(&set->hints))
		dp_replace_only(set);
	link = set->ready.next;
	if (unlikely(link == &set->ready || link->next != &set->ready))
		return 0;
	entry = list_entry(link, struct dp_entry, link);
	file = dp_own_file(entry);
	if (unlikely(!file))
		return 0;
	mask = dp_poll_socket(set, entry, file) & entry->wanted;
	if (unlikely(!mask))
		dp_only_is_not_ready(set, entry);
	*only = entry;
	return mask;
}

/*
 * Reports what dp_look_at_only() found. False if it cannot be: nothing was done, and a scan will
 * tell why.
 */
static __always_inline bool dp_put_only(struct dp_set *set, struct dp_entry *entry, __poll_t mask,
					struct pollfd __user *fds, int nfds)
{
	struct dp_sink sink = {
		.user = fds,
	};

	if (unlikely(nfds <= 0 || (!fds && !set->mapped)))
		return false;
	if (unlikely(dp_put(set, &sink, entry->fd, entry->events, mangle_poll(mask))))
		return false;
	if (likely(entry->cached)) {
		set->quick++;
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
