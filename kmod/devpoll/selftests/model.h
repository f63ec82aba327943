/* SPDX-License-Identifier: GPL-2.0 */
/* What a set must hold, kept beside it. */
#ifndef MODEL_H
#define MODEL_H

#include "slots.h"

struct model {
	int set, options;
	struct {
		bool in_set;
		short events;
	} interests[SLOTS];
};

void model_open(struct model *model, int options);
unsigned int model_entries(const struct model *model);
/* The interests as an array for poll(2); its length. */
int model_array(const struct model *model, struct pollfd *array);
/* Changes of some interests in one call, by any of the ways there are. */
void model_change(struct model *model);
void model_interest(struct model *model, struct slot *slot);
void model_forget(struct model *model, struct slot *slot);
/* Another file under the slot's number, for all sets, which need not be told before. */
void models_replace(struct model *models, int count, struct slot *slot);
/* A wait of 0 says what poll(2) says. */
void model_agrees(const struct model *model);

/* DP_HPOLL of a random array says what poll(2) says. */
void hpoll_agrees(int set);

/*
 * A thread waits, by any of the calls there are, for what is not ready, while things happen; or
 * two do, of whom one may get a signal, say. They must return when something is. @which of the
 * models is that of their set; @set is for DP_HPOLL, which has one thread at a time.
 */
void sleepers_are_woken(struct model *models, int count, int which, int set);
/* What ends sleepers' waits when nothing else does; always in their set. */
void bell_hang(const struct model *model);
void bell_take_down(void);

#endif /* MODEL_H */
