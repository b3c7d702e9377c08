/* SPDX-License-Identifier: Apache-2.0 */
/* Public API: pools, containers, properties, snapshots; refusals change nothing. */
#include <sys/stat.h>

#include "api_session.h"

static void life_of_a_pool(void)
{
    const char *path = api_path("pool");
    struct dfe_pool_info info, peek;
    struct dfe_pool *pool, *second;

    CHECK_EQ(api_create(path, 64u << 20), 0);
    CHECK_EQ(api_create(path, 64u << 20), -EEXIST);
    CHECK(dfe_errmsg()[0]);
    CHECK_EQ(dfe_pool_peek(path, &peek), 0);
    CHECK(strcmp(peek.label, "test") == 0);
    CHECK_EQ(strlen(peek.uuid), 36);

    CHECK_EQ(api_open(path, 0, &pool), 0);
    CHECK_EQ(api_open(path, 0, &second), -EBUSY);
    CHECK_EQ(dfe_pool_destroy(path, 1), -EBUSY);
    CHECK_EQ(dfe_pool_query(pool, &info), 0);
    CHECK(strcmp(info.label, "test") == 0);
    CHECK(strcmp(info.uuid, peek.uuid) == 0);
    CHECK_EQ(info.read_only, 0);
    CHECK(info.damage[0] == '\0');
    CHECK_EQ(info.arena_bound_bytes, 64u << 20);
    CHECK(info.dirty_bound_bytes > 0 && info.dirty_bound_bytes <= info.arena_bound_bytes);
    CHECK_EQ(dfe_pool_sync(pool), 0);
    CHECK_EQ(dfe_pool_checkpoint(pool), 0);
    CHECK_EQ(dfe_pool_drop_caches(pool), 0);
    CHECK_EQ(dfe_pool_close(pool), 0);

    CHECK_EQ(dfe_pool_destroy(path, 0), 0);
    CHECK_EQ(dfe_pool_peek(path, &peek), -ENOENT);
    CHECK_EQ(api_open(path, 0, &pool), -ENOENT);
}

/* Chosen from the host's memory, in whole extents. */
static void default_memory(void)
{
    const char *path = api_path("memory");
    struct dfe_pool_open_opts open = {.size = sizeof(open), .path = path};
    struct dfe_pool_info info;
    struct dfe_pool *pool;

    CHECK_EQ(api_create(path, 64u << 20), 0);
    CHECK_EQ(dfe_pool_open(&open, &pool), 0);
    CHECK_EQ(dfe_pool_query(pool, &info), 0);
    CHECK(info.arena_bound_bytes >= 64u << 20 && info.arena_bound_bytes <= 4ull << 30);
    CHECK_EQ(info.arena_bound_bytes % (64u << 20), 0);
    CHECK(info.arena_bytes <= info.arena_bound_bytes);
    CHECK_EQ(dfe_pool_close(pool), 0);
    CHECK_EQ(dfe_pool_destroy(path, 0), 0);
}

static void options_that_make_no_sense(void)
{
    const char *path = api_path("refused");
    struct dfe_pool_create_opts create = {
        .size = sizeof(create), .path = path, .label = "x", .size_bytes = 64u << 20};
    struct dfe_pool_open_opts open = {.size = sizeof(open), .path = path};
    struct dfe_pool *pool = NULL;
    struct stat st;

    CHECK_EQ(dfe_pool_create(NULL), -EINVAL);
    create.size = sizeof(create) + 8;
    CHECK_EQ(dfe_pool_create(&create), -E2BIG);
    create.size = 4;
    CHECK_EQ(dfe_pool_create(&create), -EINVAL);
    create.size = sizeof(create);
    create.path = NULL;
    CHECK_EQ(dfe_pool_create(&create), -EINVAL);
    create.path = path;
    create.label = NULL;
    CHECK_EQ(dfe_pool_create(&create), -EINVAL);
    create.label = "../x";
    CHECK_EQ(dfe_pool_create(&create), -EINVAL);
    create.label = "x";
    create.size_bytes = 4096;
    CHECK(dfe_pool_create(&create) < 0);
    CHECK(stat(path, &st) < 0 && errno == ENOENT);

    open.path = "";
    CHECK_EQ(dfe_pool_open(&open, &pool), -EINVAL);
    open.path = path;
    open.arena_bytes = 64u << 20;
    open.dirty_bytes = 65u << 20;
    CHECK_EQ(dfe_pool_open(&open, &pool), -EINVAL);
    open.arena_bytes = UINT64_MAX;
    CHECK_EQ(dfe_pool_open(&open, &pool), -EINVAL);
    CHECK(dfe_errmsg()[0]);
    CHECK(pool == NULL);
    CHECK_EQ(dfe_pool_destroy("", 0), -EINVAL);
    CHECK_EQ(dfe_pool_destroy(path, 0), -ENOENT);
}

static void containers(void)
{
    const char *path = api_path("containers");
    struct dfe_cont_info list[2], info;
    struct dfe_cont *a, *b;
    struct dfe_pool *pool;

    session_setup(path, 0, &pool, &a);
    CHECK_EQ(dfe_cont_create(pool, "c", 0, NULL, 0), -EEXIST);
    CHECK_EQ(dfe_cont_create(pool, "-bad", 0, NULL, 0), -EINVAL);
    CHECK_EQ(dfe_cont_create(pool, "", 0, NULL, 0), -EINVAL);
    CHECK_EQ(dfe_cont_create(pool, "d", 1, NULL, 0755), -EINVAL);
    CHECK_EQ(dfe_cont_create(pool, "d", 0, NULL, 0), 0);
    CHECK_EQ(dfe_cont_create(pool, "e", 0, NULL, 0), 0);
    CHECK_EQ(dfe_cont_list(pool, list, 2), 3);
    CHECK_EQ(dfe_cont_list(pool, NULL, 0), 3);
    CHECK_EQ(dfe_cont_query(a, &info), 0);
    CHECK(strcmp(info.label, "c") == 0);
    CHECK(info.created_ns > 0);

    CHECK_EQ(dfe_cont_open(pool, "none", NULL, &b), -ENOENT);
    CHECK_EQ(dfe_cont_destroy(pool, "c"), -EBUSY);
    CHECK_EQ(dfe_cont_destroy(pool, "none"), -ENOENT);
    CHECK_EQ(dfe_cont_destroy(pool, "d"), 0);
    CHECK_EQ(dfe_cont_list(pool, list, 2), 2);
    CHECK_EQ(dfe_pool_close(pool), -EBUSY);
    session_teardown(path, pool, a);
}

static void properties(void)
{
    const char *path = api_path("properties");
    struct dfe_pool *pool;
    struct dfe_cont *cont;
    char value[16];

    session_setup(path, 0, &pool, &cont);
    CHECK_EQ(dfe_cont_prop_get(cont, "colour", value, sizeof(value)), -ENOENT);
    CHECK_EQ(dfe_cont_prop_set(cont, "colour", "blue"), 0);
    CHECK_EQ(dfe_cont_prop_get(cont, "colour", value, sizeof(value)), 0);
    CHECK(strcmp(value, "blue") == 0);
    CHECK_EQ(dfe_cont_prop_set(cont, "", "blue"), -EINVAL);
    CHECK_EQ(dfe_cont_prop_set(cont, "colour", NULL), -EINVAL);
    session_teardown(path, pool, cont);
}

static void snapshots(void)
{
    struct dfe_key key = {.dkey = "k", .dkey_len = 1};
    const char *path = api_path("snapshots");
    struct dfe_oid oid = {1, 2};
    struct dfe_snap_info list[1];
    struct dfe_cont *cont, *then;
    struct dfe_pool *pool;
    struct dfe_tx *tx;
    uint64_t epoch = 0;
    char value[8];
    size_t len;

    session_setup(path, 0, &pool, &cont);
    CHECK_EQ(dfe_tx_begin(cont, &oid, &tx), 0);
    CHECK_EQ(dfe_tx_put(tx, &oid, &key, "old", 3), 0);
    CHECK_EQ(dfe_tx_commit(tx, 0, NULL), 0);
    CHECK_EQ(dfe_snap_create(cont, "monday", &epoch), 0);
    CHECK(epoch > 0);
    CHECK_EQ(dfe_snap_create(cont, "monday", NULL), -EEXIST);
    CHECK_EQ(dfe_snap_create(cont, "", NULL), -EINVAL);
    CHECK_EQ(dfe_snap_create(cont, ".x", NULL), -EINVAL);
    CHECK_EQ(dfe_snap_list(cont, list, 1), 1);
    CHECK(strcmp(list[0].name, "monday") == 0);
    CHECK_EQ(list[0].epoch, epoch);

    CHECK_EQ(dfe_tx_begin(cont, &oid, &tx), 0);
    CHECK_EQ(dfe_tx_put(tx, &oid, &key, "new", 3), 0);
    CHECK_EQ(dfe_tx_commit(tx, 1, NULL), 0);
    CHECK_EQ(dfe_cont_open(pool, "c", "sunday", &then), -ENOENT);
    CHECK_EQ(dfe_cont_open(pool, "c", "monday", &then), 0);
    CHECK_EQ(dfe_kv_get(then, &oid, &key, value, sizeof(value), &len), 0);
    CHECK(len == 3 && memcmp(value, "old", 3) == 0);
    CHECK_EQ(dfe_tx_begin(then, &oid, &tx), -EROFS);
    CHECK_EQ(dfe_array_write(then, &oid, 0, "x", 1, 0), -EROFS);
    CHECK_EQ(dfe_array_punch(then, &oid, 0, 1), -EROFS);
    CHECK_EQ(dfe_snap_create(then, "tuesday", NULL), -EROFS);
    CHECK_EQ(dfe_cont_close(then), 0);

    CHECK_EQ(dfe_snap_destroy(cont, "sunday"), -ENOENT);
    CHECK_EQ(dfe_snap_destroy(cont, "monday"), 0);
    CHECK_EQ(dfe_snap_list(cont, list, 1), 0);
    CHECK_EQ(dfe_kv_get(cont, &oid, &key, value, sizeof(value), &len), 0);
    CHECK(len == 3 && memcmp(value, "new", 3) == 0);
    session_teardown(path, pool, cont);
}

static void read_only_pool(void)
{
    struct dfe_cred cred = {0};
    struct dfe_key key = {.dkey = "k", .dkey_len = 1};
    const char *path = api_path("read-only");
    struct dfe_oid oid = {1, 2};
    struct dfe_pool_info info;
    struct dfe_pool *pool;
    struct dfe_cont *cont;
    struct dfe_tx *tx;
    char value[8];
    size_t len;

    session_setup(path, 0, &pool, &cont);
    CHECK_EQ(dfe_tx_begin(cont, &oid, &tx), 0);
    CHECK_EQ(dfe_tx_put(tx, &oid, &key, "old", 3), 0);
    CHECK_EQ(dfe_tx_commit(tx, 0, NULL), 0);
    CHECK_EQ(dfe_cont_close(cont), 0);
    CHECK_EQ(dfe_pool_close(pool), 0);

    CHECK_EQ(api_open(path, 1, &pool), 0);
    CHECK_EQ(dfe_pool_query(pool, &info), 0);
    CHECK_EQ(info.read_only, 1);
    CHECK_EQ(dfe_cont_create(pool, "d", 1, &cred, 0755), -EROFS);
    CHECK_EQ(dfe_cont_open(pool, "c", NULL, &cont), 0);
    CHECK_EQ(dfe_tx_begin(cont, &oid, &tx), -EROFS);
    CHECK_EQ(dfe_kv_get(cont, &oid, &key, value, sizeof(value), &len), 0);
    CHECK_EQ(len, 3);
    session_teardown(path, pool, cont);
}

int main(void)
{
    if (!session_wanted()) { /* of an engine in this process */
        RUN(life_of_a_pool);
        RUN(default_memory);
        RUN(options_that_make_no_sense);
        RUN(read_only_pool);
    }
    RUN(containers);
    RUN(properties);
    RUN(snapshots);
    return 0;
}
