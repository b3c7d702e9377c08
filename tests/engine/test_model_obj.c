/* SPDX-License-Identifier: Apache-2.0 */
/* The model store itself: what the tests above it rely on. */
#include "base/limits.h"
#include "model_obj.h"
#include "test.h"

static const struct obj_id ID = {1, 2};

static struct obj_pool *pool_open(const char *path)
{
    struct obj_pool *pool;

    CHECK_EQ(obj_pool_open(&(struct obj_pool_open_opts){.size = sizeof(struct obj_pool_open_opts),
                                                        .path = path},
                           &pool),
             0);
    return pool;
}

static struct obj_cont *cont_make(const char *path, struct obj_pool **pool)
{
    struct obj_cont *cont;
    struct obj_pool_create_opts opts = {
        .size = sizeof(opts), .path = path, .label = "p", .size_bytes = 1 << 20};

    CHECK_EQ(obj_pool_create(&opts), 0);
    *pool = pool_open(path);
    CHECK_EQ(obj_cont_create(*pool, "c"), 0);
    CHECK_EQ(obj_cont_open(*pool, "c", NULL, &cont), 0);
    return cont;
}

static struct obj_key key_of(const char *s)
{
    return (struct obj_key){.dkey = s, .dkey_len = (uint16_t)strlen(s)};
}

static int put(struct obj_cont *cont, const char *k, const char *v, unsigned flags)
{
    struct obj_key key = key_of(k);
    struct obj_tx *tx;

    CHECK_EQ(obj_tx_begin(cont, ID, &tx), 0);
    CHECK_EQ(obj_tx_guard_absent(tx, &key), 0);
    CHECK_EQ(obj_tx_put(tx, OBJ_HOME, ID, &key, v, strlen(v)), 0);
    return obj_tx_commit(tx, flags, NULL);
}

static int get(struct obj_cont *cont, const char *k)
{
    struct obj_key key = key_of(k);
    char value[16];
    size_t len;
    int rc = obj_kv_get(cont, ID, &key, value, sizeof(value), &len);

    return rc < 0 ? rc : (int)len;
}

static int count_key(const struct obj_key *key, const void *value, size_t len, void *arg)
{
    ++*(int *)arg;
    return 0;
}

static void test_keys(void)
{
    struct obj_pool *pool;
    struct obj_cont *cont = cont_make("keys", &pool);
    struct obj_cont *snap;
    int n = 0;

    CHECK_EQ(put(cont, "b", "22", 0), 0);
    CHECK_EQ(put(cont, "a", "1", 0), 0);
    CHECK_EQ(put(cont, "a", "1", 0), -EAGAIN);
    CHECK_EQ(get(cont, "b"), 2);
    CHECK_EQ(get(cont, "c"), -ENOENT);
    CHECK_EQ(obj_snap_create(cont, "s", NULL), 0);
    CHECK_EQ(put(cont, "c", "333", 0), 0);
    CHECK_EQ(obj_kv_scan(cont, ID, NULL, 0, count_key, &n), 0);
    CHECK_EQ(n, 3);
    CHECK_EQ(obj_cont_open(pool, "c", "s", &snap), 0);
    CHECK_EQ(get(snap, "c"), -ENOENT);
    CHECK_EQ(get(snap, "b"), 2);
    obj_cont_close(snap);
    obj_cont_close(cont);
    CHECK_EQ(obj_pool_close(pool), 0);
    model_reset();
}

static void test_crash(void)
{
    struct obj_pool *pool;
    struct obj_cont *cont = cont_make("crash", &pool);

    CHECK_EQ(put(cont, "a", "1", OBJ_SYNC), 0);
    CHECK_EQ(put(cont, "b", "2", 0), 0);
    model_crash("crash", NULL);
    CHECK_EQ(get(cont, "a"), -EIO);
    CHECK_EQ(put(cont, "d", "4", 0), -EIO);
    obj_cont_close(cont);
    CHECK_EQ(obj_pool_close(pool), 0);
    pool = pool_open("crash");
    CHECK_EQ(obj_cont_open(pool, "c", NULL, &cont), 0);
    CHECK_EQ(get(cont, "a"), 1);
    CHECK_EQ(get(cont, "b"), -ENOENT);
    obj_cont_close(cont);
    CHECK_EQ(obj_pool_close(pool), 0);
    model_reset();
}

static void commit_stage(struct obj_cont *cont, struct obj_stage *stage)
{
    struct obj_tx *tx;

    CHECK_EQ(obj_tx_begin(cont, ID, &tx), 0);
    CHECK_EQ(obj_tx_write(tx, OBJ_HOME, ID, stage), 0);
    CHECK_EQ(obj_tx_commit(tx, 0, NULL), 0);
}

static void test_arrays(void)
{
    static char buf[8192], zero[8192];
    struct obj_pool *pool;
    struct obj_cont *cont = cont_make("arrays", &pool);
    struct obj_stage *stage;
    struct obj_io io = {.off = 8192, .buf = buf, .len = 4096};
    uint64_t at, end;

    CHECK_EQ(obj_array_stage_inline(cont, ID, "inline", 6, &stage), 0);
    commit_stage(cont, stage);
    CHECK_EQ(obj_array_stat(cont, ID, &at, &end), 0);
    CHECK_EQ(at, 6);
    memset(buf, 7, sizeof(buf));
    CHECK_EQ(obj_array_stage(cont, ID, &io, 1, 0, &stage), 0);
    commit_stage(cont, stage);
    CHECK_EQ(obj_array_next(cont, ID, 4096, OBJ_DATA, &at), 0);
    CHECK_EQ(at, 8192);
    CHECK_EQ(obj_array_next(cont, ID, 100, OBJ_HOLE, &at), 0);
    CHECK_EQ(at, 4096);
    CHECK_EQ(obj_array_next(cont, ID, 12288, OBJ_DATA, &at), -ENXIO);
    io = (struct obj_io){.off = 0, .buf = buf, .len = sizeof(buf)};
    CHECK_EQ(obj_array_read(cont, ID, &io, 1), 0);
    CHECK(memcmp(buf, "inline\0", 7) == 0 && memcmp(buf + 6, zero, sizeof(buf) - 6) == 0);
    CHECK_EQ(obj_reserve(pool, (1 << 20) - 4096, 0), -ENOSPC);
    CHECK_EQ(obj_reserve(pool, (1 << 20) - 8192, 0), 0);
    CHECK_EQ(obj_array_stage(cont, ID, &io, 1, 0, &stage), -ENOSPC);
    CHECK_EQ(obj_array_stage(cont, ID, &io, 1, OBJ_STAGE_RESERVED, &stage), 0);
    obj_stage_drop(stage);
    obj_unreserve(pool, (1 << 20) - 8192);
    obj_cont_close(cont);
    CHECK_EQ(obj_pool_close(pool), 0);
    model_reset();
}

int main(void)
{
    RUN(test_keys);
    RUN(test_crash);
    RUN(test_arrays);
    return 0;
}
