/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the model store: what its files share. */
#ifndef DFE_TEST_MODEL_INT_H
#define DFE_TEST_MODEL_INT_H

#include <pthread.h>

#include "base/limits.h"
#include "base/list.h"
#include "model_obj.h"
#include "model_state.h"
#include "test.h"

struct model_snap {
    struct list link; /* model_cont.snaps, oldest first */
    struct obj_snap_info info;
    struct state state;
};

struct model_prop {
    struct list link;
    char *name, *value;
};

struct model_cont {
    struct list link; /* model_media.conts */
    struct obj_cont_info info;
    struct state state;
    struct list snaps, props;
    unsigned opens;
};

/* A pool as it lies on its device. */
struct model_media {
    struct list link;
    char *path, *label;
    uint64_t number, generation; /* a crash makes a new generation: old handles are dead */
    bool open;
    uint64_t capacity_bytes, used_blocks, reserved_bytes;
    uint64_t epoch, durable_epoch;
    uint32_t next_cont;
    struct list conts;
    struct undo_log undo; /* of the commits that are not durable yet */
    size_t *marks;        /* undo.n before each of them */
    size_t n_marks, cap_marks;
};

struct obj_pool {
    struct model_media *media;
    uint64_t generation;
    bool read_only;
};

struct obj_cont {
    struct obj_pool *pool;
    struct model_cont *cont;
    struct model_snap *snap; /* NULL: the newest state */
};

extern pthread_mutex_t model_lock;

/* Delay, count and injected error of one call; takes and drops the lock. */
int model_enter(enum model_call call);
void model_linger(enum model_call call); /* the delay once more; without the lock */
bool model_would_wait(void); /* NOWAIT's dice; under the lock */
int model_alive(const struct obj_pool *pool); /* 0 or -EIO after a crash; under the lock */
struct state *model_state(const struct obj_cont *cont);
void model_make_durable(struct model_media *m);
int model_space(struct model_media *m, uint64_t bytes, bool nowait);
char *model_strdup(const char *s);

#endif
