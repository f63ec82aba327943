// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/poll: interest sets in the kernel, with hints from drivers. This file registers the devices
 * and contains module initialisation.
 *
 * Interface: Solaris poll(7d). Design: N. Provos and C. Lever, "Scalable Network I/O in Linux",
 * CITI technical report 00-4, 2000, sections 3 and 6. README.md and devpoll(4) describe each call,
 * and where this module differs from the two.
 */
#define pr_fmt(fmt) "devpoll: " fmt

#include <linux/miscdevice.h>

#include "internal.h"

static ushort mode = 0666;
module_param(mode, ushort, 0444);
MODULE_PARM_DESC(mode,
		 "permissions of /dev/poll and /dev/poll-replace (octal with a leading 0; default 0666)");

struct kmem_cache *dp_entry_cache;

/*
 * Two kinds of programs use this device. Programs for Solaris expect a write to add to the events
 * of a descriptor; the paper's programs expect it to replace them. Each kind has its own node.
 */
enum dp_node {
	DP_ADDS,
	DP_REPLACES,
	DP_NODES,
};

static struct miscdevice dp_devices[DP_NODES];

static int dp_open(struct inode *inode, struct file *file)
{
	struct dp_set *set = kzalloc(sizeof(*set), GFP_KERNEL_ACCOUNT);
	int error;

	if (!set)
		return -ENOMEM;
	error = dp_set_init(set);
	if (error)
		goto free;
	set->user = dp_user_get(current_uid());
	if (IS_ERR(set->user)) {
		error = PTR_ERR(set->user);
		goto clear;
	}
	/* misc_open() stored the device in private_data. */
	set->options = dp_default_options(file->private_data == &dp_devices[DP_REPLACES]);
	dp_set_choose_path(set);
	file->private_data = set;
	dp_statistics_add_set(set);
	return 0;

clear:
	dp_set_clear(set);
free:
	kfree(set);
	return error;
}

static int dp_release(struct inode *inode, struct file *file)
{
	struct dp_set *set = file->private_data;

	dp_statistics_remove_set(set);
	dp_set_clear(set);
	dp_area_release(set);
	put_pid(set->owner);
	dp_user_put(set->user);
	/* A reader of /proc/devpoll may still use the set under RCU. */
	kfree_rcu(set, rcu);
	return 0;
}

/*
 * There is no .poll, so that sets cannot be nested: select() and poll() treat a /dev/poll file as
 * always ready, and epoll refuses it with EPERM. dp_set_change() refuses a set inside a set.
 * pwrite() must work (libevent uses it), so the file is not opened as a stream.
 */
const struct file_operations dp_fops = {
	.owner = THIS_MODULE,
	.open = dp_open,
	.release = dp_release,
	.write = dp_write,
	.write_iter = dp_write_iter,
	.unlocked_ioctl = dp_ioctl,
#ifdef CONFIG_COMPAT
	.compat_ioctl = dp_compat_ioctl,
#endif
	.mmap = dp_mmap,
	.llseek = noop_llseek,
	.show_fdinfo = dp_show_fdinfo,
};

static struct miscdevice dp_devices[DP_NODES] = {
	[DP_ADDS] = {
		.minor = MISC_DYNAMIC_MINOR,
		.name = "poll",
		.fops = &dp_fops,
	},
	[DP_REPLACES] = {
		.minor = MISC_DYNAMIC_MINOR,
		.name = "poll-replace",
		.fops = &dp_fops,
	},
};

static void dp_deregister(unsigned int count)
{
	while (count--)
		misc_deregister(&dp_devices[count]);
}

static int __init dp_register(void)
{
	unsigned int i;
	int error;

	for (i = 0; i < ARRAY_SIZE(dp_devices); i++) {
		dp_devices[i].mode = mode;
		error = misc_register(&dp_devices[i]);
		if (error) {
			dp_deregister(i);
			return error;
		}
	}
	return 0;
}

static int __init dp_init(void)
{
	int error;

	if (mode & ~0666) {
		pr_err("mode=0%o: only the read and write bits (0666) can be set\n", mode);
		return -EINVAL;
	}
	dp_entry_cache = KMEM_CACHE(dp_entry, SLAB_ACCOUNT);
	if (!dp_entry_cache)
		return -ENOMEM;
	error = dp_users_init();
	if (error)
		goto no_users;
	error = dp_statistics_init();
	if (error)
		goto no_users;
	error = dp_register();
	if (error)
		goto no_device;
	return 0;

no_device:
	dp_statistics_exit();
no_users:
	kmem_cache_destroy(dp_entry_cache);
	return error;
}

static void __exit dp_exit(void)
{
	dp_deregister(ARRAY_SIZE(dp_devices));
	dp_statistics_exit();
	kmem_cache_destroy(dp_entry_cache);
}

module_init(dp_init);
module_exit(dp_exit);

MODULE_AUTHOR("The Pollux authors");
MODULE_DESCRIPTION("/dev/poll: interest sets in the kernel, with hints from drivers");
MODULE_LICENSE("GPL");
MODULE_VERSION("1.0");
