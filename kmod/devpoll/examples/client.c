// SPDX-License-Identifier: GPL-2.0
/*
 * A small /dev/poll program: reads from all of its arguments at the same time (FIFOs, terminals,
 * devices; standard input without arguments) and copies the data to standard output as it arrives.
 *
 *	cc -I include -o client client.c && mkfifo a b && ./client a b
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/devpoll.h>
#include <unistd.h>

#define ROOM 16

static void die(const char *what)
{
	fprintf(stderr, "client: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void change(int set, int fd, short events)
{
	struct pollfd pollfd = { .fd = fd, .events = events };

	if (write(set, &pollfd, sizeof(pollfd)) != sizeof(pollfd))
		die("write /dev/poll");
}

/* Copies the available data. Returns whether more may follow later. */
static int copy(int fd)
{
	char buffer[4096];
	ssize_t got = read(fd, buffer, sizeof(buffer));

	if (got < 0)
		return errno == EAGAIN || errno == EINTR;
	if (got > 0 && write(STDOUT_FILENO, buffer, got) != got)
		die("standard output");
	return got > 0;
}

int main(int argc, char **argv)
{
	int set = open("/dev/poll", O_RDWR);
	int open_files = argc > 1 ? argc - 1 : 1;
	struct pollfd results[ROOM];

	if (set < 0)
		die("/dev/poll (is the module loaded?)");
	if (argc == 1)
		change(set, STDIN_FILENO, POLLIN);
	for (int i = 1; i < argc; i++) {
		int fd = open(argv[i], O_RDONLY | O_NONBLOCK);

		if (fd < 0)
			die(argv[i]);
		change(set, fd, POLLIN);
	}
	while (open_files) {
		struct dvpoll wait = { .dp_fds = results, .dp_nfds = ROOM, .dp_timeout = -1 };
		int found = ioctl(set, DP_POLL, &wait);

		if (found < 0 && errno != EINTR)
			die("DP_POLL");
		for (int i = 0; i < found; i++) {
			if (copy(results[i].fd))
				continue;
			/*
			 * Remove it before close(), because close() does not remove the interest.
			 */
			change(set, results[i].fd, POLLREMOVE);
			close(results[i].fd);
			open_files--;
		}
	}
	return 0;
}
