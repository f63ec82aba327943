// SPDX-License-Identifier: GPL-2.0
/*
 * Options: defaults as module parameters (which root may change under way; sets that are open
 * keep theirs) and per open file by DP_SETOPTIONS.
 */
#include "internal.h"

static bool hints = true;
module_param(hints, bool, 0644);
MODULE_PARM_DESC(hints, "use hints from sockets (default on); off: poll every entry at every scan");

static bool exclusive;
module_param(exclusive, bool, 0644);
MODULE_PARM_DESC(exclusive, "a hint wakes one waiting thread instead of all (default off)");

static bool scan_table;

static int scan_set(const char *value, const struct kernel_param *param)
{
	if (sysfs_streq(value, "list"))
		WRITE_ONCE(scan_table, false);
	else if (sysfs_streq(value, "table"))
		WRITE_ONCE(scan_table, true);
	else
		return -EINVAL;
	return 0;
}

static int scan_get(char *buffer, const struct kernel_param *param)
{
	return sysfs_emit(buffer, "%s\n", READ_ONCE(scan_table) ? "table" : "list");
}

static const struct kernel_param_ops scan_ops = {
	.set = scan_set,
	.get = scan_get,
};

module_param_cb(scan, &scan_ops, NULL, 0644);
MODULE_PARM_DESC(scan,
		 "list (default): look at what is pending; table: walk the whole set, as the paper did");

/**
 * dp_default_options() - the options of a newly opened set
 * @replaces: by which node it was opened: one where a write replaces events
 *
 * Return: DP_OPTION_* or'ed, from the node and from the module's parameters.
 */
u32 dp_default_options(bool replaces)
{
	return (replaces ? 0 : DP_OPTION_OR) |
	       (READ_ONCE(hints) ? 0 : DP_OPTION_NOHINTS) |
	       (READ_ONCE(scan_table) ? DP_OPTION_TABLE : 0) |
	       (READ_ONCE(exclusive) ? DP_OPTION_EXCLUSIVE : 0);
}

/**
 * dp_set_options() - DP_SETOPTIONS
 * @set: the set
 * @options: DP_OPTION_* or'ed
 *
 * Hooks are placed when an entry is added, so the option about them can be changed only while
 * there are no entries. A thread that sleeps already keeps its way of waking until it returns.
 *
 * Return: 0; -EINVAL for unknown options; -EBUSY for DP_OPTION_NOHINTS changed in a set that is
 * not empty; -EINTR.
 */
long dp_set_options(struct dp_set *set, unsigned long options)
{
	long result = 0;

	if (options & ~(unsigned long)DP_OPTION_ALL)
		return -EINVAL;
	if (mutex_lock_killable(&set->lock))
		return -EINTR;
	if (((options ^ set->options) & DP_OPTION_NOHINTS) && set->entries)
		result = -EBUSY;
	else
		WRITE_ONCE(set->options, options);
	dp_set_settle(set);
	mutex_unlock(&set->lock);
	return result;
}
