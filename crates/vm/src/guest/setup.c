// SPDX-License-Identifier: MIT OR Apache-2.0
/* Modules, file systems, network, limits: everything before the command. */
#define _GNU_SOURCE
#include "init.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/module.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_FILES "1048576"
#define MAX_FILES_NUMBER 1048576
#define MAX_PENDING_SIGNALS 262144
#define INTERFACE_WAIT_MS 10000

bool write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool written;

	if (fd < 0)
		return false;
	written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	close(fd);
	return written;
}

static void mount_or_die(const char *source, const char *target, const char *type,
			 unsigned long flags, const char *options)
{
	if (mount(source, target, type, flags, options) < 0)
		die("mount %s (%s) on %s: %s", source, type, target, strerror(errno));
}

void setup_devices(void)
{
	mkdir("/dev", 0755);
	/* EBUSY: a kernel with DEVTMPFS_MOUNT, which leaves initramfs alone, never says so. */
	if (mount("devtmpfs", "/dev", "devtmpfs", 0, "mode=755") < 0 && errno != EBUSY)
		power_off();
}

static bool ends_with(const char *text, const char *end)
{
	size_t length = strlen(text), end_length = strlen(end);

	return length >= end_length && !strcmp(text + length - end_length, end);
}

/* Each value is "PATH" or "PATH ARGUMENTS". */
void setup_modules(const char *key)
{
	size_t cursor = 0;
	const char *value;

	while ((value = config_next(key, &cursor))) {
		char path[256];
		const char *arguments = strchrnul(value, ' ');
		int flags, fd;

		snprintf(path, sizeof(path), "%.*s", (int)(arguments - value), value);
		if (*arguments)
			arguments++;
		flags = ends_with(path, ".ko") ? 0 : MODULE_INIT_COMPRESSED_FILE;
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			die("open %s: %s", path, strerror(errno));
		if (syscall(SYS_finit_module, fd, arguments, flags) < 0 && errno != EEXIST)
			die("load %s: %s", path, strerror(errno));
		close(fd);
	}
}

void mount_host_tree(void)
{
	mkdir(HOST_ROOT, 0755);
	mount_or_die("host", HOST_ROOT, "9p", 0, config_get("9p-options"));
}

/* `path` in the tree at `root`, until the next call. */
static const char *under(const char *root, const char *path)
{
	static char joined[256];

	snprintf(joined, sizeof(joined), "%s%s", root, path);
	return joined;
}

void setup_files(const char *root)
{
	/* Those that a tree lacks: the guest's own has none. */
	static const char *const directories[] = { "/proc", "/sys", "/dev/pts", "/tmp" };

	if (!*root)
		for (size_t i = 0; i < sizeof(directories) / sizeof(*directories); i++)
			mkdir(directories[i], 0755);
	mount_or_die("proc", under(root, "/proc"), "proc", 0, NULL);
	mount_or_die("sysfs", under(root, "/sys"), "sysfs", 0, NULL);
	if (*root)
		mount_or_die("/dev", under(root, "/dev"), NULL, MS_BIND, NULL);
	mkdir(under(root, "/dev/pts"), 0755);
	mkdir(under(root, "/dev/shm"), 01777);
	mount_or_die("tmpfs", under(root, "/dev/shm"), "tmpfs", 0, "mode=1777");
	mount("devpts", under(root, "/dev/pts"), "devpts", 0, "mode=620,ptmxmode=666");
	/* These three are missing from small kernels, and nothing depends on them. */
	mount("debugfs", under(root, "/sys/kernel/debug"), "debugfs", 0, NULL);
	mount("tracefs", under(root, "/sys/kernel/tracing"), "tracefs", 0, NULL);
	mount("cgroup2", under(root, "/sys/fs/cgroup"), "cgroup2", 0, NULL);
	symlink("/proc/self/fd", under(root, "/dev/fd"));
	symlink("/proc/self/fd/0", under(root, "/dev/stdin"));
	symlink("/proc/self/fd/1", under(root, "/dev/stdout"));
	symlink("/proc/self/fd/2", under(root, "/dev/stderr"));
}

static void interface_up(int fd, const char *name)
{
	struct ifreq request = { 0 };

	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
	if (ioctl(fd, SIOCGIFFLAGS, &request) < 0)
		die("network interface %s: %s", name, strerror(errno));
	request.ifr_flags |= IFF_UP;
	if (ioctl(fd, SIOCSIFFLAGS, &request) < 0)
		die("network interface %s up: %s", name, strerror(errno));
}

static void interface_address(int fd, const char *name, unsigned long request_code,
			      const char *address)
{
	struct ifreq request = { 0 };
	struct sockaddr_in *in = (struct sockaddr_in *)&request.ifr_addr;

	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
	in->sin_family = AF_INET;
	inet_pton(AF_INET, address, &in->sin_addr);
	if (ioctl(fd, request_code, &request) < 0)
		die("network interface %s, address %s: %s", name, address, strerror(errno));
}

void setup_network(void)
{
	const struct timespec pause = { .tv_nsec = 1000000 };
	const char *address = config_get("address");
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		die("socket: %s", strerror(errno));
	interface_up(fd, "lo");
	if (address) {
		for (int waited = 0; !if_nametoindex("eth0") && waited < INTERFACE_WAIT_MS; waited++)
			nanosleep(&pause, NULL);
		interface_address(fd, "eth0", SIOCSIFADDR, address);
		interface_address(fd, "eth0", SIOCSIFNETMASK, "255.255.255.0");
		interface_up(fd, "eth0");
	}
	close(fd);
	sethostname("pollux-vm", strlen("pollux-vm"));
}

void setup_limits(const char *root)
{
	const struct rlimit files = { MAX_FILES_NUMBER, MAX_FILES_NUMBER };
	const struct rlimit signals = { MAX_PENDING_SIGNALS, MAX_PENDING_SIGNALS };
	const struct rlimit locked = { RLIM_INFINITY, RLIM_INFINITY };

	write_text(under(root, "/proc/sys/fs/nr_open"), MAX_FILES);
	write_text(under(root, "/proc/sys/fs/file-max"), MAX_FILES);
	/* Emulated processors stall for seconds on a busy host: that is no soft lock-up yet. */
	write_text(under(root, "/proc/sys/kernel/watchdog_thresh"), "60");
	if (setrlimit(RLIMIT_NOFILE, &files) < 0)
		die("RLIMIT_NOFILE " MAX_FILES ": %s", strerror(errno));
	setrlimit(RLIMIT_SIGPENDING, &signals);
	setrlimit(RLIMIT_MEMLOCK, &locked);
}

/*
 * Process 1 itself changes its root: the kernel's helpers share its file-system context, so
 * that request_module() then runs the host's /sbin/modprobe.
 */
void enter_host_tree(void)
{
	const char *directory = config_get("cwd");

	if (chroot(HOST_ROOT) < 0)
		die("chroot to the host's tree: %s", strerror(errno));
	if (chdir(directory ? directory : "/") < 0)
		die("working directory %s: %s", directory, strerror(errno));
}
