/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the namespace share: a pool of the model store with one namespace in it. */
#ifndef DFE_TEST_NS_HELP_H
#define DFE_TEST_NS_HELP_H

#include <sys/stat.h>

#include "buf/buf.h"
#include "model_obj.h"
#include "ns/ns.h"
#include "test.h"

struct world {
    const char *path;
    struct ns_opts opts;
    struct buf_arena *arena;
    struct obj_pool *pool;
    struct obj_cont *cont;
    struct cache *cache;
    struct ns *ns;
};

extern const struct dfe_cred ROOT_CRED, USER_CRED;

/* A new pool; and what is in it, opened again after world_close or model_crash. */
void world_make(struct world *w, const char *path, unsigned name_hash_bits);
void world_open(struct world *w);
int world_close(struct world *w); /* ns_close's result */
void world_end(struct world *w);  /* checks, closes, destroys */
/* As after a power failure: to what was durable, or a random later commit where seed is given. */
void world_crash(struct world *w, uint64_t *seed);
int world_check(struct world *w); /* faults, printed */

#define N(s) (s), strlen(s)

/* Short forms with root's rights that expect success and return the number. */
uint64_t make_file(struct world *w, uint64_t dir, const char *name);
uint64_t make_dir(struct world *w, uint64_t dir, const char *name);
int lookup(struct world *w, uint64_t dir, const char *name, struct dfe_attr *out);
struct dfe_attr attr_of(struct world *w, uint64_t ino);

/* Waits, at most some seconds, until nothing is left to reclaim. */
void wait_reclaimed(struct world *w);

#endif
