/* SPDX-License-Identifier: Apache-2.0 */
/* A stack of pool, cache and namespace over kept memory, in processes that may be killed. */
#ifndef DFE_TEST_KEEP_RIG_H
#define DFE_TEST_KEEP_RIG_H

#include <sys/stat.h>

#include "base/keep.h"
#include "ns/ns.h"
#include "test.h"

extern const struct dfe_cred cred;
extern uint64_t seed;
extern uint32_t grace_ms; /* of rig_open with kept memory */
extern void *keep_mem;
extern size_t keep_mem_bytes;

/* Of this process. */
extern struct keep *keep;
extern struct obj_pool *pool;
extern struct cache *cache;
extern struct obj_cont *cont;
extern struct ns *ns;

void *rig_shared(size_t bytes); /* memory that children share */
/* Fresh kept memory, the path of a pool of that name; fn makes it, in a child. */
void rig_start(const char *name, void (*fn)(void));
void rig_make(uint64_t bytes); /* the pool, with an empty namespace */
/* With options at random; with NULL: without kept memory. */
void rig_open(struct keep *with);
void rig_close(void);

/* fn in a process of its own (this one has no threads, so that it may fork), which must succeed; or
 * which is killed at the end. */
void rig_child(void (*fn)(void));
void rig_killed(void (*fn)(void));
extern char pool_path[600];

#endif
