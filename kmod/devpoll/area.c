// SPDX-License-Identifier: GPL-2.0
/*
 * The mapped result area (paper, section 3.3): DP_ALLOC, mmap(), DP_FREE.
 *
 * The kernel writes results to the area and never reads them back, so a program that overwrites its
 * mapping harms only itself. The pages stay allocated as long as they are mapped: a mapping holds a
 * reference to the open file, and DP_FREE fails while a mapping exists.
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/vmalloc.h>

#include "internal.h"

static void dp_area_destroy(struct dp_area *area)
{
	unsigned int i;

	if (area->results)
		vunmap(area->results);
	for (i = 0; i < area->npages && area->pages[i]; i++)
		put_page(area->pages[i]);
	kvfree(area);
}

static struct dp_area *dp_area_create(unsigned int room)
{
	unsigned int npages = DIV_ROUND_UP((size_t)room * sizeof(struct pollfd), PAGE_SIZE);
	struct dp_area *area;
	unsigned int i;

	area = kvzalloc(struct_size(area, pages, npages), GFP_KERNEL_ACCOUNT);
	if (!area)
		return NULL;
	area->npages = npages;
	area->room = room;
	for (i = 0; i < npages; i++) {
		area->pages[i] = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
		if (!area->pages[i])
			goto failed;
	}
	area->results = vmap(area->pages, npages, VM_MAP, PAGE_KERNEL);
	if (area->results)
		return area;
failed:
	dp_area_destroy(area);
	return NULL;
}

/**
 * dp_area_alloc() - DP_ALLOC: allocates the result area
 * @set: the set
 * @count: capacity in results
 *
 * Return: 0; -EINVAL if @count is 0 or exceeds RLIMIT_NOFILE; -EPERM if there is already an area;
 * -ENOSPC at the user's limit, against which each result counts like an entry; -ENOMEM; -EINTR if
 * the caller is killed.
 */
int dp_area_alloc(struct dp_set *set, unsigned int count)
{
	struct dp_area *area;
	int result;

	if (!count || count > rlimit(RLIMIT_NOFILE) || count > INT_MAX / sizeof(struct pollfd))
		return -EINVAL;
	result = dp_user_charge(set->user, count);
	if (result)
		return result;
	area = dp_area_create(count);
	if (!area) {
		result = -ENOMEM;
		goto uncharge;
	}
	if (mutex_lock_killable(&set->lock)) {
		result = -EINTR;
		goto destroy;
	}
	mutex_lock(&set->area_lock);
	if (set->area) {
		result = -EPERM;
	} else {
		set->area = area;
		set->mapped_room = area->room;
		set->mapped = area->results;
	}
	mutex_unlock(&set->area_lock);
	mutex_unlock(&set->lock);
	if (!result)
		return 0;
destroy:
	dp_area_destroy(area);
uncharge:
	dp_user_uncharge(set->user, count);
	return result;
}

/**
 * dp_area_free() - DP_FREE: frees the result area
 * @set: the set
 *
 * Return: 0; -EINVAL if there is no area; -EBUSY while it is mapped; -EINTR if the caller is
 * killed.
 */
int dp_area_free(struct dp_set *set)
{
	struct dp_area *area;
	int result = 0;

	if (mutex_lock_killable(&set->lock))
		return -EINTR;
	mutex_lock(&set->area_lock);
	area = set->area;
	if (!area) {
		result = -EINVAL;
	} else if (atomic_read(&area->maps)) {
		result = -EBUSY;
	} else {
		set->area = NULL;
		set->mapped = NULL;
	}
	mutex_unlock(&set->area_lock);
	mutex_unlock(&set->lock);
	if (!result) {
		dp_user_uncharge(set->user, area->room);
		dp_area_destroy(area);
	}
	return result;
}

/**
 * dp_area_release() - frees the area of a set that is being closed
 * @set: the set; its area cannot be mapped any more, because a mapping would keep the file open
 */
void dp_area_release(struct dp_set *set)
{
	if (!set->area)
		return;
	dp_user_uncharge(set->user, set->area->room);
	dp_area_destroy(set->area);
}

static void dp_vma_open(struct vm_area_struct *vma)
{
	struct dp_area *area = vma->vm_private_data;

	atomic_inc(&area->maps);
}

static void dp_vma_close(struct vm_area_struct *vma)
{
	struct dp_area *area = vma->vm_private_data;

	atomic_dec(&area->maps);
}

static vm_fault_t dp_vma_fault(struct vm_fault *vmf)
{
	struct dp_area *area = vmf->vma->vm_private_data;

	if (vmf->pgoff >= area->npages)
		return VM_FAULT_SIGBUS;
	get_page(area->pages[vmf->pgoff]);
	vmf->page = area->pages[vmf->pgoff];
	return 0;
}

static const struct vm_operations_struct dp_vm_ops = {
	.open = dp_vma_open,
	.close = dp_vma_close,
	.fault = dp_vma_fault,
};

/**
 * dp_mmap() - mmap()
 * @file: an open /dev/poll
 * @vma: the mapping, of any part of the area; a private mapping shows new results only in pages
 *	 that the program has not written to
 *
 * Return: 0; -EACCES if the caller is not the owner; -EINVAL if there is no area, or if the mapping
 * exceeds it.
 */
int dp_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct dp_set *set = file->private_data;
	struct dp_area *area;
	int result;

	result = dp_check_owner(set);
	if (result)
		return result;
	mutex_lock(&set->area_lock);
	area = set->area;
	if (!area || vma->vm_pgoff > area->npages ||
	    vma_pages(vma) > area->npages - vma->vm_pgoff) {
		result = -EINVAL;
	} else {
		atomic_inc(&area->maps);
		vma->vm_private_data = area;
		vma->vm_ops = &dp_vm_ops;
		dp_vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP);
	}
	mutex_unlock(&set->area_lock);
	return result;
}
