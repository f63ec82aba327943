/*
 * What GCC's unwinder asks glibc for, and musl has not (scripts/static): the object that has the code at
 * an address. A static program is one object, and dl_iterate_phdr(3) tells where it is.
 */
#define _GNU_SOURCE
#include <link.h>
#include <stddef.h>

/* As glibc has it in <dlfcn.h> (dl_find_object(3)), where no data is relative to another base. */
struct dl_find_object {
	unsigned long long flags;
	void *map_start, *map_end;
	struct link_map *link_map;
	void *eh_frame;
	unsigned long long reserved[7];
};

struct search {
	ElfW(Addr) code;
	struct dl_find_object *found;
};

static int look(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *search = data;
	const ElfW(Phdr) *eh_frame = NULL;
	int has_it = 0;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		ElfW(Addr) start = info->dlpi_addr + segment->p_vaddr;

		if (segment->p_type == PT_GNU_EH_FRAME)
			eh_frame = segment;
		if (segment->p_type == PT_LOAD && search->code >= start &&
		    search->code - start < segment->p_memsz) {
			has_it = 1;
			search->found->map_start = (void *)start;
			search->found->map_end = (void *)(start + segment->p_memsz);
		}
	}
	if (!has_it || !eh_frame)
		return 0;
	search->found->eh_frame = (void *)(info->dlpi_addr + eh_frame->p_vaddr);
	return 1;
}

/* 0 when it was found, else -1. */
int _dl_find_object(void *code, struct dl_find_object *found)
{
	struct search search = { (ElfW(Addr))code, found };

	*found = (struct dl_find_object){ 0 };
	return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}
