// SPDX-License-Identifier: MIT OR Apache-2.0
/* /pollux/config: NUL-terminated "key=value" records, kept in memory. */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *config;
static size_t config_length;

void config_load(const char *path)
{
	struct stat st;
	size_t have = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &st) < 0)
		die("%s: %s", path, strerror(errno));
	config = malloc((size_t)st.st_size + 1);
	if (!config)
		die("%s: no memory for %lld bytes", path, (long long)st.st_size);
	while (have < (size_t)st.st_size) {
		ssize_t n = read(fd, config + have, (size_t)st.st_size - have);

		if (n <= 0)
			die("%s: read: %s", path, n ? strerror(errno) : "shorter than it was");
		have += (size_t)n;
	}
	config[have] = '\0';
	config_length = have;
	close(fd);
}

const char *config_next(const char *key, size_t *cursor)
{
	size_t key_length = strlen(key);

	while (*cursor < config_length) {
		const char *record = config + *cursor;

		*cursor += strlen(record) + 1;
		if (!strncmp(record, key, key_length) && record[key_length] == '=')
			return record + key_length + 1;
	}
	return NULL;
}

const char *config_get(const char *key)
{
	size_t cursor = 0;

	return config_next(key, &cursor);
}

char **config_list(const char *key)
{
	size_t cursor = 0, count = 0;
	char **list;

	while (config_next(key, &cursor))
		count++;
	list = calloc(count + 1, sizeof(*list));
	if (!list)
		die("no memory for %zu values of \"%s\"", count, key);
	cursor = 0;
	for (size_t i = 0; i < count; i++)
		list[i] = (char *)config_next(key, &cursor);
	return list;
}
