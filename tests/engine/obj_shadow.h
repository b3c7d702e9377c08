/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random transactions on a few objects, and beside them what the objects must hold then.
 *
 * The shadow is a plain copy of everything after each commit, by epoch: snapshots and recovered
 * pools are compared with the state of their epoch.
 */
#ifndef DFE_TEST_OBJ_SHADOW_H
#define DFE_TEST_OBJ_SHADOW_H

#include "obj_rig.h"

#define SHADOW_OBJS 3u
#define SHADOW_KEYS 24u
#define SHADOW_BLKS 1300u /* more one-block extents than one transaction removes */

struct shadow_obj {
    uint32_t key[SHADOW_KEYS]; /* value; 0: absent */
    uint32_t blk[SHADOW_BLKS]; /* tag; 0: a hole */
    uint32_t inline_len;       /* block 0 is inline where not 0 */
};

struct shadow {
    struct shadow_obj obj[SHADOW_OBJS];
};

struct shadow_log {
    struct {
        uint64_t epoch;
        struct shadow *state;
    } *v;
    size_t n;
    uint64_t synced; /* epoch that must survive */
};

/* One random tx on top of the newest state. rc of the commit; what may have been committed is in
 * the log. */
int shadow_step(struct rig *r, struct shadow_log *log, uint64_t *seed);
/* Snapshots, checkpoints, syncs now and then. */
int shadow_admin(struct rig *r, struct shadow_log *log, uint64_t *seed);
/* The state that the newest commit at or before epoch left. */
const struct shadow *shadow_at(const struct shadow_log *log, uint64_t epoch);
/* Aborts with what differs. */
void shadow_verify(struct obj_cont *cont, const struct shadow *s);
/* Every snapshot of the container against its epoch. */
void shadow_verify_snapshots(struct rig *r, const struct shadow_log *log);
void shadow_log_init(struct shadow_log *log);
/* Forgets what is after the epoch (lost in a crash). */
void shadow_log_cut(struct shadow_log *log, uint64_t epoch);
void shadow_log_free(struct shadow_log *log);

#endif
