// SPDX-License-Identifier: MIT OR Apache-2.0
/* What the host hears: frames on the virtio port, lines on the console. */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/reboot.h>
#include <time.h>
#include <unistd.h>

#define PORT "/dev/vport0p1"
#define PORT_WAIT_MS 20000
#define LINE_MAX_BYTES 900 /* the kernel cuts a /dev/kmsg record at about 976 bytes */

static int kmsg_fd = -1;
static int port_fd = -1;

void report_open_kmsg(void)
{
	kmsg_fd = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
}

/* The port appears when the device has been probed, which may be after its module is loaded. */
void report_open_port(void)
{
	const struct timespec pause = { .tv_nsec = 1000000 };

	for (int waited = 0; waited < PORT_WAIT_MS; waited++) {
		port_fd = open(PORT, O_RDWR | O_CLOEXEC);
		if (port_fd >= 0)
			return;
		nanosleep(&pause, NULL);
	}
	die("%s: %s: is virtio_console loaded?", PORT, strerror(errno));
}

static void write_all(int fd, const void *bytes, size_t length)
{
	const char *at = bytes;

	while (length) {
		ssize_t n = write(fd, at, length);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return; /* the host is gone, and nobody is left to tell */
		at += n;
		length -= (size_t)n;
	}
}

void frame_send(enum frame_kind kind, const void *payload, size_t length)
{
	/* One write a frame: header and payload together halve the trips to the host. */
	static uint8_t frame[5 + FRAME_PAYLOAD_MAX];

	if (length > FRAME_PAYLOAD_MAX)
		length = FRAME_PAYLOAD_MAX;
	frame[0] = (uint8_t)kind;
	for (int i = 0; i < 4; i++)
		frame[1 + i] = (uint8_t)(length >> (8 * i));
	memcpy(frame + 5, payload, length);
	write_all(port_fd, frame, 5 + length);
}

void kmsg(const char *format, ...)
{
	char line[LINE_MAX_BYTES];
	va_list arguments;
	int n;

	va_start(arguments, format);
	n = vsnprintf(line, sizeof(line) - 1, format, arguments);
	va_end(arguments);
	if (n < 0)
		return;
	if (n > LINE_MAX_BYTES - 2)
		n = LINE_MAX_BYTES - 2;
	/* Without its line end a record waits, unseen, for a continuation. */
	line[n++] = '\n';
	write_all(kmsg_fd, line, (size_t)n);
}

void die(const char *format, ...)
{
	char text[LINE_MAX_BYTES - 64];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	kmsg("pollux-init: cannot go on: %s", text);
	if (port_fd >= 0)
		frame_send(FRAME_FATAL, text, strlen(text));
	power_off();
}

void report_end_of_console(void)
{
	const char *marker = config_get("end-marker");

	if (marker)
		kmsg("%s", marker);
}

void power_off(void)
{
	sync();
	/* QEMU runs with -no-reboot: a reset ends it at once, without ACPI. */
	reboot(RB_AUTOBOOT);
	for (;;)
		pause();
}
