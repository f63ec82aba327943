/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The guest's init: process 1 of `pollux vm`. It is compiled on the host, linked statically,
 * and put into the initramfs together with /pollux/config, which says what to do.
 *
 *   init.c    the order of events
 *   config.c  /pollux/config in memory
 *   report.c  frames to the host, lines to the kernel log, the end of the guest
 *   setup.c   modules, file systems, network, limits
 *   modules.c the guest's modules where modprobe looks for them
 *   run.c     the command: start, relay its output, reap
 *   fetch.c   after the command of a sealed guest: its results, to the host's tree
 *   check.c   after the command: unload the module, look for leaks
 */
#ifndef POLLUX_INIT_H
#define POLLUX_INIT_H

#include <stdbool.h>
#include <stddef.h>

/* Frame kinds; frame.rs on the host lists the same letters. */
enum frame_kind {
	FRAME_READY = 'r',  /* payload: the guest kernel's release */
	FRAME_STDOUT = 'o', /* payload: bytes of the command's standard output */
	FRAME_STDERR = 'e', /* payload: bytes of the command's standard error */
	FRAME_EXIT = 'x',   /* payload: exit status as 4 bytes, little-endian */
	FRAME_FATAL = 'f',  /* payload: why the guest could not be set up */
};

#define FRAME_PAYLOAD_MAX 65536
#define HOST_ROOT "/host"

/* config.c: records are NUL-terminated "key=value" strings. */
void config_load(const char *path);
/* The value of the first record with this key, or NULL. */
const char *config_get(const char *key);
/* Walks all the values of a key in order; start with *cursor == 0. NULL at the end. */
const char *config_next(const char *key, size_t *cursor);
/* All the values of a key as a NULL-terminated array. */
char **config_list(const char *key);

/* report.c */
void report_open_kmsg(void);
void report_open_port(void);
void frame_send(enum frame_kind kind, const void *payload, size_t length);
/* Writes one line to the kernel log, and so to the console, where the host reads it. */
void kmsg(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Tells the host why the guest cannot go on and ends it. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Writes the marker by which the host knows that the console has been printed to its end. */
void report_end_of_console(void);
_Noreturn void power_off(void);

/* setup.c */
void setup_devices(void);
void setup_modules(const char *key);
/* The host's tree at HOST_ROOT. */
void mount_host_tree(void);
/* /proc, /sys, /dev and the like in the tree at `root`; "" is the guest's own. */
void setup_files(const char *root);
void setup_network(void);
void setup_limits(const char *root);
void enter_host_tree(void);
/* Writes text to a file that the kernel provides; false if it does not exist or refuses. */
bool write_text(const char *path, const char *text);

/* modules.c */
void setup_module_directory(void);

/* run.c: returns the status as a shell would give it (128 + signal for a killed command). */
int run_command(void);

/* fetch.c: what `fetch` names, copied to where `fetch-to` says. */
void fetch_results(void);

/* check.c */
void kill_everyone(void);
void unload_modules(void);
void look_for_leaks(void);

#endif
