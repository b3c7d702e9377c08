/* SPDX-License-Identifier: Apache-2.0 */
/* What the cache's tests share. */
#include "cache_rig.h"

static const struct obj_key CUT_KEY = {.dkey = "cut", .dkey_len = 3};

static int rig_publish(void *arg, struct obj_tx *tx, const struct cache_cut *cut,
                       unsigned commit_flags)
{
    struct rig_owner *owner = arg;
    int rc = __atomic_load_n(&owner->err, __ATOMIC_RELAXED);

    if (rc == 0)
        rc = obj_tx_put(tx, OBJ_HOME, owner->oid, &CUT_KEY, cut, sizeof(*cut));
    if (rc < 0) {
        obj_tx_abort(tx);
        return rc;
    }
    return obj_tx_commit(tx, commit_flags, NULL);
}

static const struct cache_owner_ops RIG_OPS = {.publish = rig_publish};

void rig_make(struct rig *rig, uint64_t capacity_bytes)
{
    struct obj_pool_create_opts opts = {
        .size = sizeof(opts), .path = RIG_PATH, .label = "rig", .size_bytes = capacity_bytes};
    struct obj_pool_open_opts open = {.size = sizeof(open), .path = RIG_PATH};

    memset(rig, 0, sizeof(*rig));
    CHECK_EQ(buf_arena_open(64u << 20, BUF_PAGES, &rig->arena), 0);
    CHECK_EQ(obj_pool_create(&opts), 0);
    CHECK_EQ(obj_pool_open(&open, &rig->pool), 0);
    CHECK_EQ(obj_cont_create(rig->pool, "c"), 0);
    CHECK_EQ(obj_pool_close(rig->pool), 0);
}

void rig_open(struct rig *rig, const struct cache_opts *opts)
{
    struct obj_pool_open_opts open = {.size = sizeof(open), .path = RIG_PATH};

    CHECK_EQ(obj_pool_open(&open, &rig->pool), 0);
    CHECK_EQ(obj_cont_open(rig->pool, "c", NULL, &rig->cont), 0);
    CHECK_EQ(cache_open(rig->pool, rig->arena, opts, &rig->cache), 0);
}

void rig_close(struct rig *rig, bool failing)
{
    struct obj_pool_info info;
    int rc = cache_forget(rig->cache, rig->cont);

    CHECK(rc == 0 || failing);
    if (!failing) {
        obj_pool_query(rig->pool, &info);
        CHECK_EQ(info.reserved_bytes, 0);
    }
    CHECK_EQ(cache_close(rig->cache), 0);
    obj_cont_close(rig->cont);
    CHECK_EQ(obj_pool_close(rig->pool), 0);
}

void rig_free(struct rig *rig)
{
    buf_arena_close(rig->arena);
    model_reset();
}

struct cache_file *rig_file(struct rig *rig, struct rig_owner *owner, uint64_t id)
{
    struct cache_file *file;
    size_t len;
    int rc;

    memset(owner, 0, sizeof(*owner));
    owner->oid = (struct obj_id){1, id};
    rc = obj_kv_get(rig->cont, owner->oid, &CUT_KEY, &owner->cut, sizeof(owner->cut), &len);
    if (rc == -ENOENT)
        owner->cut.version = 1;
    else
        CHECK(rc == 0 && len == sizeof(owner->cut));
    CHECK_EQ(cache_file_get(rig->cache, rig->cont, owner->oid, &RIG_OPS, owner, &owner->cut, &file),
             0);
    return file;
}
