/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Knobs of the model store: obj.h in memory, simple enough to be obviously right.
 *
 * Tests of the layers above link it in place of engine/obj (see meson.build), and differential
 * tests compare the local store with it. Pools live in this process, by path, until destroyed or
 * model_reset. Where obj.h leaves a choice the model takes the plainest one:
 *   - a pool path that exists is -EEXIST, a property never set -ENOENT, one longer than cap is
 *     -ERANGE;
 *   - a tx on a read-only container is refused by obj_tx_begin (-EROFS), an oversized one by the
 *     call that would make it so (-E2BIG);
 *   - the inline bytes of an array become its block 0 when blocks are written beside them;
 *   - inline data of length 0 is no data: the object does not exist by it.
 */
#ifndef DFE_TEST_MODEL_OBJ_H
#define DFE_TEST_MODEL_OBJ_H

#include "obj/obj.h"

/* What can be made to fail or to take time. */
enum model_call {
    MODEL_KV_GET,  /* obj_kv_get and its nowait form */
    MODEL_KV_SCAN,
    MODEL_READ,    /* obj_array_read: every run gets the error */
    MODEL_NEXT,    /* obj_array_next, obj_array_stat */
    MODEL_STAGE,   /* obj_array_stage and its inline form */
    MODEL_RESERVE,
    MODEL_COMMIT,  /* the tx is ended, nothing changed */
    MODEL_SYNC,    /* obj_sync, and the sync part of OBJ_SYNC commits */
    MODEL_CALLS
};

/* Calls nth, nth + 1, ... nth + count - 1 from now on (1 is the next one) fail with err (negative).
 * count 0 ends it. */
void model_fail(enum model_call call, uint64_t nth, uint64_t count, int err);
/* Every call takes this long before it starts, reads as long again before they return (what they
 * bring may be old by then); 0 ends it. */
void model_delay(enum model_call call, unsigned delay_us);
/* One in `one_in` NOWAIT calls answers -EINPROGRESS, from the seed; 0: none does. */
void model_nowait(uint64_t seed, unsigned one_in);
/* Data bytes that the pool at path can hold from now on. */
void model_capacity(const char *path, uint64_t bytes);
/* Calls of this kind so far. */
uint64_t model_calls(enum model_call call);

/* Power fails: the pool at path goes back to its last durable state, or to a random later commit
 * (from *seed, advanced; NULL: exactly the last durable one). Handles that are open lose touch with
 * it: their calls fail with -EIO, closing them only frees memory. The pool can be opened again. */
void model_crash(const char *path, uint64_t *seed);

/* Forgets all pools and knobs. No handle may be open. */
void model_reset(void);

#endif
