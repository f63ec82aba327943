/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Differences between the kernels that the module supports, 6.1 to 7.3. No other file tests the
 * kernel version. README.md ("Kernels") lists the kernel code that must be read again for each new
 * kernel, because the compiler cannot detect changes in it.
 */
#ifndef _DEVPOLL_KCOMPAT_H
#define _DEVPOLL_KCOMPAT_H

#include <linux/atomic.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/version.h>

/*
 * Older kernels were never tried. Newer kernels than those of the tests need an explicit define,
 * because the module relies on kernel internals that may change without notice (dp_fdget(), a
 * socket's wait queue), and a successful build proves little. dkms.conf has the same bounds.
 */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "devpoll: this kernel is older than 6.1, the oldest that the module was written for"
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 4, 0) && !defined(DEVPOLL_UNTESTED_KERNEL)
#error "devpoll: tested up to 7.3. To try it: make KCFLAGS=-DDEVPOLL_UNTESTED_KERNEL; run selftests"
#endif

/*
 * Only an annotation for checkers. 6.6 and later have it, and so do later releases of 6.1, but not
 * 6.2 to 6.5.
 */
#ifndef __counted_by
#define __counted_by(member)
#endif

/*
 * From 6.3 on (commit bc292ab00f6c) drivers must not write vma->vm_flags directly. The setter takes
 * the per-VMA lock, which page faults use instead of mmap_lock. Before 6.3 a driver changed the
 * flags under mmap_lock, which is held in .mmap.
 */
static inline void dp_vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_set(vma, flags);
#else
	vma->vm_flags |= flags;
#endif
}

/*
 * Drops a reference to a file unless it is the last one. Returns whether it was dropped. From 6.13
 * on files count with a file_ref_t, in which 0 stands for one reference.
 */
static inline bool dp_fput_unless_last(struct file *file)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
	return atomic_long_add_unless(&file->f_ref.refcnt, -1, FILE_REF_ONEREF);
#else
	return atomic_long_add_unless(&file->f_count, -1, 1);
#endif
}

#endif /* _DEVPOLL_KCOMPAT_H */
