// SPDX-License-Identifier: MIT OR Apache-2.0
/* The order of events in the guest. */
#define _GNU_SOURCE
#include "init.h"

#include <stdint.h>
#include <string.h>
#include <sys/klog.h>
#include <sys/utsname.h>
#include <unistd.h>

#define CONSOLE_LEVEL_ACTION 8 /* SYSLOG_ACTION_CONSOLE_LEVEL */
#define CONSOLE_LEVEL_ALL 8

int main(void)
{
	struct utsname name;
	uint8_t status[4];
	bool sealed;
	int code;

	setup_devices();
	report_open_kmsg();
	/*
	 * "quiet" keeps the boot short; from here on every record counts, for the host judges
	 * the run by what it reads on the console (kmemleak, for one, speaks at level 6).
	 */
	klogctl(CONSOLE_LEVEL_ACTION, NULL, CONSOLE_LEVEL_ALL);
	config_load("/pollux/config");
	setup_modules("module");
	report_open_port();
	sealed = config_get("sealed");
	if (!sealed)
		mount_host_tree();
	setup_files(sealed ? "" : HOST_ROOT);
	setup_network();
	setup_limits(sealed ? "" : HOST_ROOT);
	setup_modules("insmod");
	if (!sealed) {
		enter_host_tree();
		setup_module_directory();
	}

	uname(&name);
	frame_send(FRAME_READY, name.release, strlen(name.release));
	code = run_command();

	kill_everyone();
	if (sealed) {
		/* What differs from run to run is known only now: until here all were the same. */
		config_load("/pollux/after");
		fetch_results();
	}
	unload_modules();
	look_for_leaks();
	sync();
	report_end_of_console();
	for (int i = 0; i < 4; i++)
		status[i] = (uint8_t)((uint32_t)code >> (8 * i));
	frame_send(FRAME_EXIT, status, sizeof(status));
	/* The host ends the guest when it has read the status; do so ourselves if it does not. */
	sleep(60);
	power_off();
}
