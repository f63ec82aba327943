/* SPDX-License-Identifier: GPL-2.0 */
/* Descriptors to which anything may happen, for random histories, and where these come from. */
#ifndef SLOTS_H
#define SLOTS_H

#include "util.h"

#define SLOTS 24
/* Descriptors of the slots: each keeps its own, whatever is opened under it. */
#define FIRST_SLOT 300

enum kind { UNIX, TCP, DATAGRAM, UDP, LISTENER, PIPE, KINDS };

struct slot {
	enum kind kind;
	int fd, peer;
	/* The open file: equal where one is a duplicate of the other. */
	unsigned long file;
};

extern struct slot slots[SLOTS];

/* Histories that begin with the same number make the same calls. */
void picks_begin(uint64_t seed);
uint64_t picks_began(void);
unsigned int pick(unsigned int below);
short pick_events(void);
struct slot *pick_slot(void);

void slots_open(void);
void slots_close(void);
/* Another file under the slot's number, which closes what it was before. */
void slot_open(struct slot *slot);
/* Data comes. */
void slot_feed(struct slot *slot);
/* Data comes, is taken, fills up or ends: whatever may make the slot ready, or not ready. */
void slot_data(struct slot *slot);

#endif /* SLOTS_H */
