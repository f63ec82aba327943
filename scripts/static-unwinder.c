/*
 * What GCC's unwinder asks glibc for, and musl has not (scripts/static): the object that has the code at
 * an address. A static program is one object, and dl_iterate_phdr(3) tells where it is.
 */
#define _GNU_SOURCE
#include <link.h>
#include <pthread.h>
#include <stddef.h>

/*
 * The unwinder calls these wherever there is a __pthread_key_create, as there is in musl. It names them
 * weakly, which takes nothing from a static library: without this it would call NULL at the first panic.
 */
__attribute__((used)) static const struct {
	int (*once)(pthread_once_t *, void (*)(void));
	int (*lock)(pthread_mutex_t *);
	int (*unlock)(pthread_mutex_t *);
	int (*key_create)(pthread_key_t *, void (*)(void *));
	void *(*getspecific)(pthread_key_t);
	int (*setspecific)(pthread_key_t, const void *);
} called = {
	pthread_once, pthread_mutex_lock, pthread_mutex_unlock,
	pthread_key_create, pthread_getspecific, pthread_setspecific,
};

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
