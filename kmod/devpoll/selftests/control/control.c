// SPDX-License-Identifier: GPL-2.0
/* Faults that kmod/check must find, one for each of its checkers. Nothing else builds it. */
#include <linux/module.h>
#include <linux/slab.h>

int control_read(const int __user *user);

/* For sparse: what is in user space is not to be read so. */
int control_read(const int __user *user)
{
	return *user;
}

void *control_twice(size_t size);

/* For coccinelle: memory that is used when it has been freed. */
void *control_twice(size_t size)
{
	char *memory = kmalloc(size, GFP_KERNEL);

	if (!memory)
		return NULL;
	kfree(memory);
	memory[0] = 1;
	return memory;
}

/* For checkpatch: spaces, not a tab. */
int control_spaces(void);
int control_spaces(void)
{
        return 0;
}

MODULE_LICENSE("GPL");
