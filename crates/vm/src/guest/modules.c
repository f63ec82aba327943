// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The guest's own modules at /lib/modules/RELEASE, so that modprobe, and the kernel when it asks
 * for a module by itself (netem, veth), find them. All of it is mounts of the guest: the host's
 * tree is not changed, whoever owns it.
 */
#define _GNU_SOURCE
#include "init.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

/* "DIR/NAME"; false if that is longer than a path may be. */
static bool join(char path[PATH_MAX], const char *directory, const char *name)
{
	int length = snprintf(path, PATH_MAX, "%s/%s", directory, name);

	if (length < PATH_MAX)
		return true;
	errno = ENAMETOOLONG;
	return false;
}

/* Puts the entry `name` of the directory that `below` is open on to the same place in `directory`. */
static bool keep_entry(int below, const char *directory, const char *name)
{
	char below_path[64], from[PATH_MAX], to[PATH_MAX], target[PATH_MAX];
	struct stat st;
	ssize_t length;
	int fd;

	if (fstatat(below, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT;
	snprintf(below_path, sizeof(below_path), "/proc/self/fd/%d", below);
	if (!join(from, below_path, name) || !join(to, directory, name))
		return false;
	if (S_ISLNK(st.st_mode)) {
		length = readlinkat(below, name, target, sizeof(target) - 1);
		if (length < 0)
			return false;
		target[length] = '\0';
		return symlink(target, to) == 0;
	}
	if (S_ISDIR(st.st_mode)) {
		if (mkdir(to, 0755) < 0)
			return false;
	} else {
		fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
		if (fd < 0)
			return false;
		close(fd);
	}
	return mount(from, to, NULL, MS_BIND, NULL) == 0;
}

/*
 * Makes the directory /lib/modules where the host has none: the guest gets a /lib in memory, in which
 * each entry of the host's is mounted in its place. Only what would be created in /lib itself,
 * not in a directory of it, stays in the guest.
 */
static bool make_place(void)
{
	char directory[PATH_MAX], place[PATH_MAX];
	const struct dirent *entry;
	bool kept = true;
	DIR *below;

	/* Where /usr is merged, /lib is a symbolic link to usr/lib. */
	if (!realpath("/lib", directory))
		return false;
	below = opendir(directory);
	if (!below)
		return false;
	if (mount("tmpfs", directory, "tmpfs", 0, "mode=755") < 0) {
		closedir(below);
		return false;
	}
	while (kept && (entry = readdir(below)))
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
			kept = keep_entry(dirfd(below), directory, entry->d_name);
	kept = kept && join(place, directory, "modules") && mkdir(place, 0755) == 0;
	if (!kept) {
		int why = errno;

		/* The host's /lib again, whole. */
		umount2(directory, MNT_DETACH);
		errno = why;
	}
	closedir(below);
	return kept;
}

/* Called in the host's tree, with /proc mounted. */
void setup_module_directory(void)
{
	const char *modules = config_get("modules");
	const char *release = config_get("release");
	char from[64], to[PATH_MAX];
	struct stat wanted, there;
	int fd;

	if (!modules || !release)
		return;
	if (!join(to, "/lib/modules", release))
		return;
	/* Open, because what is mounted next may cover it: a kernel installed on the host. */
	fd = open(modules, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &wanted) < 0)
		goto failed;
	if (!stat(to, &there) && there.st_dev == wanted.st_dev && there.st_ino == wanted.st_ino)
		goto done;
	if (access("/lib/modules", F_OK) < 0 && !make_place())
		goto failed;
	snprintf(from, sizeof(from), "/proc/self/fd/%d", fd);
	if (mount("tmpfs", "/lib/modules", "tmpfs", 0, "mode=755,size=64k") < 0 ||
	    mkdir(to, 0755) < 0 || mount(from, to, NULL, MS_BIND, NULL) < 0)
		goto failed;
	goto done;
failed:
	kmsg("<6>pollux-init: no %s, so no module can be loaded by its name: %s", to,
	     strerror(errno));
done:
	if (fd >= 0)
		close(fd);
}
