/* SPDX-License-Identifier: GPL-2.0 */
/* Descriptors for random histories, with random changes of their files, and the random numbers. */
#ifndef SLOTS_H
#define SLOTS_H

#include "util.h"

#define SLOTS 24
/* Descriptors of the slots. Each slot keeps its number, whichever file is open under it. */
#define FIRST_SLOT 300

enum kind { UNIX, TCP, DATAGRAM, UDP, LISTENER, PIPE, KINDS };

struct slot {
	enum kind kind;
	int fd, peer;
	/*
	 * Identifies the open file; two slots have the same value if one is a duplicate of the
	 * other.
	 */
	unsigned long file;
};

extern struct slot slots[SLOTS];

/* Seeds the random numbers. Histories with the same seed make the same calls. */
void picks_begin(uint64_t seed);
uint64_t picks_began(void);
unsigned int pick(unsigned int below);
short pick_events(void);
struct slot *pick_slot(void);

void slots_open(void);
void slots_close(void);
/* Opens another file under the slot's number, which closes the old one. */
void slot_open(struct slot *slot);
/* Sends data to the slot. */
void slot_feed(struct slot *slot);
/*
 * Sends data, reads it, fills the buffer or ends the stream: changes that may make the slot ready
 * or not ready.
 */
void slot_data(struct slot *slot);

#endif /* SLOTS_H */
