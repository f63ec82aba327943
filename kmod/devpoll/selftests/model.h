/* SPDX-License-Identifier: GPL-2.0 */
/* A model of a set: the interests that the set must contain. */
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
/* Writes the interests to an array for poll(2); returns its length. */
int model_array(const struct model *model, struct pollfd *array);
/* Changes some interests with one call, of a random kind. */
void model_change(struct model *model);
void model_interest(struct model *model, struct slot *slot);
void model_forget(struct model *model, struct slot *slot);
/*
 * Opens another file under the slot's number, for all sets. The interests need not be removed
 * before.
 */
void models_replace(struct model *models, int count, struct slot *slot);
/* Checks that a wait with timeout 0 returns the results of poll(2). */
void model_agrees(const struct model *model);

/* Checks that DP_HPOLL of a random array returns the results of poll(2). */
void hpoll_agrees(int set);

/*
 * One thread waits, with a call of a random kind, for descriptors that are not ready, while files
 * and interests change; or two threads wait, and one of them may, for example, get a signal. They
 * must return when a descriptor is ready. @which is the index of the model of their set; @set is
 * for DP_HPOLL, which only one thread can use at a time.
 */
void sleepers_are_woken(struct model *models, int count, int which, int set);
/*
 * Adds the notifier that ends sleepers' waits when no other event does; it is always in their set.
 */
void notifier_add(const struct model *model);
void notifier_close(void);

#endif /* MODEL_H */
