// SPDX-License-Identifier: GPL-2.0
/*
 * The limit a user: an entry takes kernel memory and may keep the inode of a closed socket from
 * being freed, and a result area takes pages, so what one user can have of both is bounded, as
 * fs.epoll.max_user_watches bounds epoll. An empty set is a kilobyte or so, as an open file is:
 * RLIMIT_NOFILE bounds it.
 */
#include <linux/hashtable.h>
#include <linux/math.h>
#include <net/sock.h>

#include "internal.h"

/*
 * Part of the memory that one user may fill by default. epoll takes 1/25, but does not count
 * inodes, which are four fifths of the cost here: 1/8 allows half as many entries as epoll does.
 */
#define DP_SHARE 8

static ulong max_user_entries;
module_param(max_user_entries, ulong, 0644);
MODULE_PARM_DESC(max_user_entries,
		 "limit of entries and mapped results together, per user (default: an eighth of memory)");

/**
 * struct dp_user - what a user has in all his sets together
 * @link: in dp_users
 * @uid: who
 * @sets: open sets
 * @entries: entries and mapped results
 */
struct dp_user {
	struct hlist_node link;
	kuid_t uid;
	unsigned long sets;
	atomic_long_t entries;
};

static DEFINE_MUTEX(dp_users_lock);
static DEFINE_HASHTABLE(dp_users, 6);

/**
 * dp_users_init() - works out the default limit
 *
 * Return: 0
 */
int dp_users_init(void)
{
	/* An entry, its shares of a table node and of the slots, and the inode that it may keep. */
	const unsigned long cost = sizeof(struct dp_entry) + 64 + DP_RECENT_SHARE * sizeof(void *) +
				   sizeof(struct socket_alloc);

	if (!max_user_entries)
		max_user_entries = max(mult_frac(totalram_pages() / DP_SHARE, PAGE_SIZE, cost),
				       1024UL);
	return 0;
}

/**
 * dp_user_get() - the account of a user, made at his first set
 * @uid: the user
 *
 * Return: the account, to be given to dp_user_put(); or -ENOMEM.
 */
struct dp_user *dp_user_get(kuid_t uid)
{
	struct dp_user *user;

	mutex_lock(&dp_users_lock);
	hash_for_each_possible(dp_users, user, link, __kuid_val(uid)) {
		if (uid_eq(user->uid, uid))
			goto found;
	}
	user = kzalloc(sizeof(*user), GFP_KERNEL_ACCOUNT);
	if (!user) {
		user = ERR_PTR(-ENOMEM);
		goto out;
	}
	user->uid = uid;
	hash_add(dp_users, &user->link, __kuid_val(uid));
found:
	user->sets++;
out:
	mutex_unlock(&dp_users_lock);
	return user;
}

/**
 * dp_user_put() - a set of the user is closed
 * @user: the account
 */
void dp_user_put(struct dp_user *user)
{
	mutex_lock(&dp_users_lock);
	if (!--user->sets) {
		WARN_ON_ONCE(atomic_long_read(&user->entries));
		hash_del(&user->link);
		kfree(user);
	}
	mutex_unlock(&dp_users_lock);
}

/**
 * dp_user_charge() - asks whether the user may have more
 * @user: the account
 * @count: entries, or results of an area
 *
 * Return: 0 and they are his; or -ENOSPC, the error of epoll_ctl(2) in the same case.
 */
int dp_user_charge(struct dp_user *user, long count)
{
	if (atomic_long_add_return(count, &user->entries) <= READ_ONCE(max_user_entries))
		return 0;
	atomic_long_sub(count, &user->entries);
	return -ENOSPC;
}

/**
 * dp_user_uncharge() - gives back
 * @user: the account
 * @count: as much as was charged
 */
void dp_user_uncharge(struct dp_user *user, long count)
{
	atomic_long_sub(count, &user->entries);
}
