/*
 * Provides a function of glibc that GCC's unwinder needs and musl does not have (scripts/static): it finds
 * the object that contains the code at an address. A static program consists of one object, which
 * dl_iterate_phdr(3) describes.
 */
#define _GNU_SOURCE
#include <link.h>
#include <pthread.h>
#include <stddef.h>

/*
 * The unwinder calls these functions if __pthread_key_create exists, as it does in musl. It refers to them
 * by weak symbols, which do not make the linker include them from a static library. Without this table the
 * unwinder would call NULL at the first panic.
 */
__attribute__((used)) static const struct {
	int (*once)(pthread_once_t *, void (*)(void));
	int (*lock)(pthread_mutex_t *);
	int (*unlock)(pthread_mutex_t *);
	int (*key_create)(pthread_key_t *, void (*)(void *));
	void *(*getspecific)(pthread_key_t);
	int (*setspecific)(pthread_key_t, const void *);
} used_functions = {
	pthread_once, pthread_mutex_lock, pthread_mutex_unlock,
	pthread_key_create, pthread_getspecific, pthread_setspecific,
};

/* As in glibc's <dlfcn.h> (dl_find_object(3)), for architectures whose data is not relative to a separate base. */
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

static int examine_object(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *search = data;
	const ElfW(Phdr) *eh_frame = NULL;
	int contains_code = 0;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		ElfW(Addr) start = info->dlpi_addr + segment->p_vaddr;

		if (segment->p_type == PT_GNU_EH_FRAME)
			eh_frame = segment;
		if (segment->p_type == PT_LOAD && search->code >= start &&
		    search->code - start < segment->p_memsz) {
			contains_code = 1;
			search->found->map_start = (void *)start;
			search->found->map_end = (void *)(start + segment->p_memsz);
		}
	}
	if (!contains_code || !eh_frame)
		return 0;
	search->found->eh_frame = (void *)(info->dlpi_addr + eh_frame->p_vaddr);
	return 1;
}

/* Returns 0 if the object was found, otherwise -1. */
int _dl_find_object(void *code, struct dl_find_object *found)
{
	struct search search = { (ElfW(Addr))code, found };

	*found = (struct dl_find_object){ 0 };
	return dl_iterate_phdr(examine_object, &search) == 1 ? 0 : -1;
}
