// SPDX-License-Identifier: GPL-2.0
/*
 * Options. Module parameters set the defaults; root may change them while the module is loaded, but
 * sets that are already open keep theirs. DP_SETOPTIONS changes the options of one open file.
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
		 "list (default): examine pending entries; table: walk the whole set (paper)");

/**
 * dp_default_options() - the options of a newly opened set
 * @replaces: the set was opened through the node where a write replaces events
 *
 * Return: DP_OPTION_* or'ed, from the node and the module parameters.
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
 * A hook is placed when its entry is added, so DP_OPTION_NOHINTS can be changed only while the set
 * is empty. After a change of DP_OPTION_EXCLUSIVE all sleepers scan again and then sleep by the new
 * option. Otherwise a hint would still wake only one of the threads that began to sleep with the
 * option on, but dp_wake_next() would not wake the next one if that thread fails.
 *
 * Return: 0; -EINVAL for unknown options; -EBUSY for DP_OPTION_NOHINTS changed in a set that is
 * not empty; -EINTR.
 */
long dp_set_options(struct dp_set *set, u32 options)
{
	long result = 0;
	u32 changed;

	if (options & ~DP_OPTION_ALL)
		return -EINVAL;
	if (mutex_lock_killable(&set->lock))
		return -EINTR;
	changed = options ^ set->options;
	if ((changed & DP_OPTION_NOHINTS) && set->entries) {
		result = -EBUSY;
	} else {
		WRITE_ONCE(set->options, options);
		dp_set_choose_path(set);
		if (changed & DP_OPTION_EXCLUSIVE)
			dp_set_force_rescan(set);
	}
	mutex_unlock(&set->lock);
	return result;
}
