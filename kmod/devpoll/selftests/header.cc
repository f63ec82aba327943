// SPDX-License-Identifier: GPL-2.0
// Compiled and run to check that the header is valid C++ and needs no other header of this project.
#include <sys/devpoll.h>

// Before the other headers: the macro needs no type that only those define.
enum { ROOM_IN_BYTES = DP_MMAP_SIZE(2) };

#include <cstdio>
#include <fcntl.h>
#include <unistd.h>

int main()
{
	pollfd change = { STDOUT_FILENO, POLLREMOVE, 0 };
	pollfd result = {};
	dvpoll_t wait = {};
	int set = open("/dev/poll", O_RDWR);

	wait.dp_fds = &result;
	wait.dp_nfds = 1;
	if (set < 0) {
		std::perror("/dev/poll");
		return 77;
	}
	if (write(set, &change, sizeof change) != sizeof change || ioctl(set, DP_POLL, &wait) != 0)
		return 1;
	close(set);
	return 0;
}
