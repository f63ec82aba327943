/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What differs between the kernels that the module is built for, 6.1 to 7.3. Nothing else in the
 * module looks at the kernel's version. README.md ("Kernels") has what changed without a change
 * here, and what must be read again for a new one.
 */
#ifndef _DEVPOLL_KCOMPAT_H
#define _DEVPOLL_KCOMPAT_H

#include <linux/file.h>
#include <linux/mm.h>
#include <linux/version.h>

/*
 * No older one was ever tried. A newer one than those of the tests may be, when asked for: the
 * module takes part in what the kernel may change without notice (dp_file_borrow(), the queue of a
 * socket), and that it compiles says little. dkms.conf has the same bounds.
 */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "devpoll: this kernel is older than 6.1, the oldest that the module was written for"
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 4, 0) && !defined(DEVPOLL_UNTESTED_KERNEL)
#error "devpoll: tested up to 7.3. To try: make KCFLAGS=-DDEVPOLL_UNTESTED_KERNEL; run selftests"
#endif

/*
 * vma->vm_flags is read-only to drivers from 6.3 on (commit bc292ab00f6c): the setter takes the
 * per-VMA lock, by which page faults go on without mmap_lock. Before, the flags were simply or'ed
 * in, with mmap_lock held as it is in .mmap.
 */
static inline void dp_vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_set(vma, flags);
#else
	vma->vm_flags |= flags;
#endif
}

#endif /* _DEVPOLL_KCOMPAT_H */
