/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What differs between the kernels that the module is built for, 6.1 to 6.12. Nothing else in
 * the module looks at the kernel's version.
 */
#ifndef _DEVPOLL_KCOMPAT_H
#define _DEVPOLL_KCOMPAT_H

#include <linux/file.h>
#include <linux/mm.h>
#include <linux/version.h>

/* 6.12 packs struct fd into a word and hides the file behind this macro. */
#ifndef fd_file
#define fd_file(f) ((f).file)
#endif

/* vma->vm_flags is read-only to drivers from 6.3 on. */
static inline void dp_vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_set(vma, flags);
#else
	vma->vm_flags |= flags;
#endif
}

#endif /* _DEVPOLL_KCOMPAT_H */
