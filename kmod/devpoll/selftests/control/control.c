// SPDX-License-Identifier: GPL-2.0
/* Faults that kmod/check must find, one for each of its checkers. No other build uses this file. */
#include <linux/module.h>
#include <linux/slab.h>

int control_read(const int __user *user);

/* For sparse: user-space memory must not be read directly. */
int control_read(const int __user *user)
{
	return *user;
}

void *control_twice(size_t size);

/* For coccinelle: this memory is used after it was freed. */
void *control_twice(size_t size)
{
	char *memory = kmalloc(size, GFP_KERNEL);

	if (!memory)
		return NULL;
	kfree(memory);
	memory[0] = 1;
	return memory;
}

/* For checkpatch: the next line is indented with spaces instead of a tab. */
int control_spaces(void);
int control_spaces(void)
{
        return 0;
}

MODULE_LICENSE("GPL");
