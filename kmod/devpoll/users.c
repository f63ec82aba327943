// SPDX-License-Identifier: GPL-2.0
/*
 * The limit per user. An entry takes kernel memory and can keep the inode of a closed socket
 * allocated, and a result area takes pages. The number of both together is therefore limited per
 * user, as fs.epoll.max_user_watches limits epoll. An empty set takes about a kilobyte, like an
 * open file, so RLIMIT_NOFILE is limit enough for it.
 */
#include <linux/hashtable.h>
#include <linux/math.h>
#include <net/sock.h>

#include "internal.h"

/*
 * By default one user may fill this fraction (1/8) of memory. epoll allows 1/25, but does not count
 * inodes, which are four fifths of the cost here. 1/8 allows half as many entries as epoll does.
 */
#define DP_SHARE 8

static ulong max_user_entries;
module_param(max_user_entries, ulong, 0644);
MODULE_PARM_DESC(max_user_entries,
		 "limit of entries and mapped results together, per user (default: an eighth of memory)");

/**
 * struct dp_user - the account of one user, over all of that user's sets
 * @link: in dp_users
 * @uid: the user
 * @sets: number of open sets
 * @entries: number of entries and mapped results
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
 * dp_users_init() - computes the default limit
 *
 * Return: 0
 */
int dp_users_init(void)
{
	/*
	 * An entry, its share of a table node, its slots in set->recent, and the inode it may keep.
	 */
	const unsigned long cost = sizeof(struct dp_entry) + 64 + DP_RECENT_SHARE * sizeof(void *) +
				   sizeof(struct socket_alloc);

	if (!max_user_entries)
		max_user_entries = max(mult_frac(totalram_pages() / DP_SHARE, PAGE_SIZE, cost),
				       1024UL);
	return 0;
}

/**
 * dp_user_get() - finds the account of a user, or creates it at the user's first set
 * @uid: the user
 *
 * Return: the account, which the caller must pass to dp_user_put(); or -ENOMEM.
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
 * dp_user_put() - releases the account when one of the user's sets is closed
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
 * dp_user_charge() - charges entries or results to a user, unless that exceeds the limit
 * @user: the account
 * @count: number of entries, or of results of an area
 *
 * A refused count is never added, not even for a moment, because other calls of the same user would
 * be refused during that time.
 *
 * Return: 0 if they are charged; or -ENOSPC, as epoll_ctl(2) in the same case.
 */
int dp_user_charge(struct dp_user *user, long count)
{
	long entries = atomic_long_read(&user->entries);

	do {
		if (entries + count > READ_ONCE(max_user_entries))
			return -ENOSPC;
	} while (!atomic_long_try_cmpxchg(&user->entries, &entries, entries + count));
	return 0;
}

/**
 * dp_user_uncharge() - undoes dp_user_charge()
 * @user: the account
 * @count: the count that was charged
 */
void dp_user_uncharge(struct dp_user *user, long count)
{
	atomic_long_sub(count, &user->entries);
}
