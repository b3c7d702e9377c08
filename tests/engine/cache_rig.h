/* SPDX-License-Identifier: Apache-2.0 */
/* A cache over the model store, and the simplest owner of files: the cut is a key of the object. */
#ifndef DFE_TEST_CACHE_RIG_H
#define DFE_TEST_CACHE_RIG_H

#include "base/assert.h"
#include "cache/cache.h"
#include "model_obj.h"
#include "test.h"

#define RIG_PATH "rig"

struct rig {
    struct buf_arena *arena;
    struct obj_pool *pool;
    struct obj_cont *cont;
    struct cache *cache;
};

struct rig_owner {
    struct obj_id oid;
    struct cache_cut cut; /* as published */
    int err;              /* publish fails with it (negative) */
};

void rig_make(struct rig *rig, uint64_t capacity_bytes);
void rig_open(struct rig *rig, const struct cache_opts *opts);
/* failing: the store is gone, data cannot be published. Files were put. */
void rig_close(struct rig *rig, bool failing);
void rig_free(struct rig *rig);
/* The file of object id, with its published cut in owner. */
struct cache_file *rig_file(struct rig *rig, struct rig_owner *owner, uint64_t id);

#endif
