/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the local store share: a pool on a device in memory, short names for calls. */
#ifndef DFE_TEST_OBJ_RIG_H
#define DFE_TEST_OBJ_RIG_H

#include "base/log.h"
#include "base/words.h"
#include "queue/queue.h"
#include "obj/obj.h"
#include "test.h"

#define RIG_BLK 4096u

struct rig {
    char path[300], device[64];
    struct obj_pool *pool;
    struct obj_cont *cont;
};

/* A pool of size_mib on `device` (NULL: mem:), with container "c", open. */
void rig_make(struct rig *r, const char *name, const char *device, unsigned size_mib);
void rig_open(struct rig *r, uint64_t overlay_bytes);
int rig_try_open(struct rig *r, uint64_t overlay_bytes);
int rig_shut(struct rig *r); /* closes container and pool */
void rig_reopen(struct rig *r);
void rig_destroy(struct rig *r);

struct obj_key rig_key(const char *dkey);
struct obj_id rig_oid(uint64_t lo);

/* One put, del ... in a tx of its own; the commit's result. */
int rig_put(struct rig *r, uint64_t oid, const char *key, const char *value);
int rig_del(struct rig *r, uint64_t oid, const char *key);
/* The value as a string in a static buffer; NULL where there is none. */
const char *rig_get(struct obj_cont *cont, uint64_t oid, const char *key);
/* "k=v k=v " of all keys. */
const char *rig_scan(struct obj_cont *cont, uint64_t oid);

/* Blocks [blk, blk + n) of an array are written with bytes that tag says; the commit's result. */
int rig_write(struct rig *r, uint64_t oid, uint64_t blk, uint64_t n, uint32_t tag, unsigned flags);
/* What rig_write puts into block `blk`. */
void rig_fill(uint8_t *to, uint64_t blk, uint32_t tag);
uint64_t rig_free_blocks(struct rig *r); /* after a checkpoint */
int rig_check(struct rig *r);            /* faults, printed */

#endif
