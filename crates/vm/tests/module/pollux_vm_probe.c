// SPDX-License-Identifier: GPL-2.0
/*
 * A module for the tests of `pollux vm`: a device whose read returns the parameter "answer".
 * With PROBE_WARNS it warns when loaded; with PROBE_STAYS it cannot be unloaded.
 */
#include <linux/fs.h>
#include <linux/kernel.h>
#include <linux/miscdevice.h>
#include <linux/module.h>

static int answer = 1;
module_param(answer, int, 0444);
MODULE_PARM_DESC(answer, "what reading /dev/pollux-vm-probe returns");

static ssize_t probe_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	char text[16];
	int length = scnprintf(text, sizeof(text), "%d\n", answer);

	return simple_read_from_buffer(to, size, at, text, length);
}

static const struct file_operations probe_operations = {
	.owner = THIS_MODULE,
	.read = probe_read,
};

static struct miscdevice probe_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "pollux-vm-probe",
	.fops = &probe_operations,
	.mode = 0444,
};

static int __init probe_init(void)
{
#ifdef PROBE_WARNS
	WARN(1, "the probe was told to warn\n");
#endif
#ifdef PROBE_STAYS
	__module_get(THIS_MODULE);
#endif
	return misc_register(&probe_device);
}

static void __exit probe_exit(void)
{
	misc_deregister(&probe_device);
}

module_init(probe_init);
module_exit(probe_exit);
MODULE_DESCRIPTION("Probe for the tests of pollux vm");
MODULE_LICENSE("GPL");
