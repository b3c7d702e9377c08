/* SPDX-License-Identifier: Apache-2.0 */
/* Full pools, limits, calls that may not wait, failing devices. */
#include "obj_rig.h"

#include "sim_device.h"

#define MIB (1ull << 20)

static struct rig rig;

static void quiet(int level, const char *text, void *arg)
{
    (void)level, (void)text, (void)arg;
}

static struct obj_pool_info query(void)
{
    struct obj_pool_info info;

    obj_pool_query(rig.pool, &info);
    return info;
}

static void full(void)
{
    uint64_t free_blocks, n = 0;
    struct obj_tx *tx;
    int rc;

    rig_make(&rig, "full", NULL, 24);
    free_blocks = rig_free_blocks(&rig);
    while ((rc = rig_write(&rig, 1, n * 64, 64, (uint32_t)n, 0)) == 0)
        n++;
    CHECK_EQ(rc, -ENOSPC);
    CHECK_EQ(n, free_blocks / 64);
    CHECK_EQ(obj_reserve(rig.pool, MIB, 0), -ENOSPC);
    CHECK_EQ(rig_put(&rig, 1, "k", "v"), 0); /* names still fit */
    CHECK_EQ(obj_tx_begin(rig.cont, rig_oid(1), &tx), 0);
    CHECK_EQ(obj_tx_punch_array(tx, OBJ_HOME, rig_oid(1), 0, 128 * RIG_BLK), 0);
    CHECK_EQ(obj_tx_commit(tx, 0, NULL), 0);
    CHECK_EQ(obj_reserve(rig.pool, 128 * RIG_BLK, OBJ_NOWAIT), -EINPROGRESS);
    CHECK_EQ(rig_write(&rig, 2, 0, 128, 1, 0), 0); /* waits for a checkpoint */
    CHECK_EQ(obj_tx_begin(rig.cont, rig_oid(1), &tx), 0);
    CHECK_EQ(obj_tx_punch_object(tx, OBJ_HOME, rig_oid(1)), 0);
    CHECK_EQ(obj_tx_punch_object(tx, OBJ_HOME, rig_oid(2)), 0);
    CHECK_EQ(obj_tx_commit(tx, 0, NULL), 0);
    CHECK_EQ(rig_free_blocks(&rig), free_blocks);
    CHECK_EQ(obj_reserve(rig.pool, free_blocks * RIG_BLK, 0), 0);
    CHECK_EQ(rig_write(&rig, 2, 0, 1, 1, 0), -ENOSPC); /* all of it is promised */
    CHECK_EQ(rig_write(&rig, 2, 0, 1, 1, OBJ_STAGE_RESERVED), 0);
    obj_unreserve(rig.pool, free_blocks * RIG_BLK);
    CHECK_EQ(rig_check(&rig), 0);
    rig_destroy(&rig);
}

/* What is written on its way from a reservation is counted once, so that others find the rest. */
static void staged_counts_once(void)
{
    uint64_t half;
    struct obj_stage *st;
    struct obj_io io = {.len = 64 * RIG_BLK, .buf = aligned_alloc(RIG_BLK, 64 * RIG_BLK)};

    CHECK(io.buf);
    memset(io.buf, 1, io.len);
    rig_make(&rig, "staged", NULL, 24);
    half = rig_free_blocks(&rig) - 64;
    CHECK_EQ(obj_reserve(rig.pool, 64 * RIG_BLK, 0), 0);
    CHECK_EQ(obj_array_stage(rig.cont, rig_oid(1), &io, 1, OBJ_STAGE_RESERVED, &st), 0);
    CHECK_EQ(query().free_bytes, half * RIG_BLK);
    CHECK_EQ(obj_reserve(rig.pool, half * RIG_BLK, 0), 0);
    CHECK_EQ(obj_reserve(rig.pool, RIG_BLK, 0), -ENOSPC);
    obj_stage_drop(st); /* failed: the reservation stands, and is for the next attempt */
    CHECK_EQ(query().free_bytes, 0);
    CHECK_EQ(obj_reserve(rig.pool, RIG_BLK, 0), -ENOSPC);
    CHECK_EQ(rig_write(&rig, 1, 0, 64, 1, OBJ_STAGE_RESERVED), 0);
    CHECK_EQ(obj_reserve(rig.pool, RIG_BLK, 0), -ENOSPC);
    obj_unreserve(rig.pool, 64 * RIG_BLK);
    CHECK_EQ(obj_reserve(rig.pool, RIG_BLK, 0), -ENOSPC);
    obj_unreserve(rig.pool, half * RIG_BLK);
    CHECK_EQ(query().free_bytes, half * RIG_BLK);
    free(io.buf);
    rig_destroy(&rig);
}

static void limits(void)
{
    static char big[70000];
    struct obj_key k = rig_key("k"), wide = {.dkey = big, .dkey_len = 500};
    struct obj_tx *tx;
    int rc = 0;
    unsigned n;

    rig_make(&rig, "limits", NULL, 64);
    memset(big, 'b', sizeof(big));
    CHECK_EQ(obj_tx_begin(rig.cont, rig_oid(1), &tx), 0);
    CHECK_EQ(obj_tx_put(tx, OBJ_HOME, rig_oid(1), &k, big, 65601), -E2BIG);
    CHECK_EQ(obj_tx_put(tx, OBJ_HOME, rig_oid(1), &k, big, 65600), 0);
    CHECK_EQ(obj_tx_put(tx, OBJ_HOME, rig_oid(1), &wide, "", 0), -ENAMETOOLONG);
    CHECK_EQ(obj_tx_commit(tx, 0, NULL), 0);
    CHECK_EQ(strlen(rig_get(rig.cont, 1, "k")), 65600);
    CHECK_EQ(obj_checkpoint(rig.pool), 0);
    CHECK_EQ(strlen(rig_get(rig.cont, 1, "k")), 65600);
    CHECK_EQ(obj_tx_begin(rig.cont, rig_oid(1), &tx), 0);
    for (n = 0; rc == 0; n++) {
        char name[20];
        snprintf(name, sizeof(name), "n%u", n);
        k = rig_key(name);
        rc = obj_tx_put(tx, OBJ_HOME, rig_oid(1), &k, big, 65600);
    }
    CHECK_EQ(rc, -E2BIG);
    CHECK(n > 60);
    CHECK_EQ(obj_tx_commit(tx, OBJ_SYNC, NULL), 0); /* what it took is whole, and fits the ring */
    for (unsigned i = 0; i < 20; i++) { /* much more than the ring holds */
        CHECK_EQ(obj_tx_begin(rig.cont, rig_oid(2), &tx), 0);
        for (unsigned j = 0; j < 30; j++) {
            char name[20];
            snprintf(name, sizeof(name), "m%u", j);
            k = rig_key(name);
            CHECK_EQ(obj_tx_put(tx, OBJ_HOME, rig_oid(2), &k, big, 65600), 0);
        }
        CHECK_EQ(obj_tx_commit(tx, 0, NULL), 0);
    }
    rig_reopen(&rig);
    CHECK_EQ(strlen(rig_get(rig.cont, 2, "m29")), 65600);
    rig_destroy(&rig);
}

static void nowait(void)
{
    struct obj_key k = rig_key("k");
    char v[8];
    size_t len;
    unsigned waited = 0;

    rig_make(&rig, "nowait", NULL, 64);
    CHECK_EQ(rig_put(&rig, 1, "k", "v"), 0);
    CHECK_EQ(obj_kv_get_nowait(rig.cont, rig_oid(1), &k, v, sizeof(v), &len), 0);
    CHECK_EQ(obj_checkpoint(rig.pool), 0);
    CHECK_EQ(obj_kv_get_nowait(rig.cont, rig_oid(1), &k, v, sizeof(v), &len), -EINPROGRESS);
    for (unsigned i = 0; i < 30000; i++) {
        struct obj_tx *tx;
        char name[20], value[600];
        int rc;
        memset(value, 'x', sizeof(value));
        snprintf(name, sizeof(name), "f%u", i);
        struct obj_key f = rig_key(name);
        CHECK_EQ(obj_tx_begin(rig.cont, rig_oid(1), &tx), 0);
        CHECK_EQ(obj_tx_guard_absent(tx, &f), 0);
        CHECK_EQ(obj_tx_put(tx, OBJ_HOME, rig_oid(1), &f, value, sizeof(value)), 0);
        while ((rc = obj_tx_commit(tx, OBJ_NOWAIT, NULL)) == -EINPROGRESS) {
            waited++;
            CHECK_EQ(obj_wait_room(rig.pool), 0);
        }
        CHECK_EQ(rc, 0);
    }
    fprintf(stderr, "   waited %u times\n", waited);
    CHECK_EQ(rig_check(&rig), 0);
    rig_destroy(&rig);
}

/* A write of data that fails is its caller's error and nobody else's. */
static void failing_data(void)
{
    const struct sim_fault f = {.ops = 1u << QUEUE_WRITE, .off = 9 * MIB, .len = 64 * MIB,
                                .err = -EIO, .count = 1};
    uint64_t free_blocks;

    CHECK_EQ(sim_create("fd", 64 * MIB, 1), 0);
    rig_make(&rig, "fd", "sim:fd", 64);
    free_blocks = rig_free_blocks(&rig);
    sim_fault_add("fd", &f);
    CHECK_EQ(rig_write(&rig, 1, 0, 20, 1, 0), -EIO);
    CHECK_EQ(query().io_errors, 1);
    CHECK_EQ(rig_free_blocks(&rig), free_blocks);
    CHECK_EQ(rig_write(&rig, 1, 0, 20, 1, 0), 0);
    CHECK_EQ(rig_check(&rig), 0);
    rig_destroy(&rig);
    CHECK_EQ(sim_destroy("fd"), 0);
}

/* Each write of a workload fails once: either its caller hears of it, or it is done again. */
static void nth_write(void)
{
    for (unsigned n = 0; n < 60; n++) {
        const struct sim_fault f = {.ops = 1u << QUEUE_WRITE | 1u << QUEUE_FLUSH, .skip = n,
                                    .count = 1, .err = -EIO, .partial = true};
        bool synced = false;
        unsigned last = 0;
        CHECK_EQ(sim_create("nth", 64 * MIB, n + 1), 0);
        rig_make(&rig, "nth", "sim:nth", 64);
        sim_fault_add("nth", &f);
        for (unsigned i = 1; i <= 12; i++) {
            char v[16];
            snprintf(v, sizeof(v), "%u", i);
            if (rig_put(&rig, 1, "k", v) < 0 || rig_write(&rig, 1, i, 1, i, 0) < 0)
                continue;
            if (i % 5 == 0)
                obj_checkpoint(rig.pool);
            synced = obj_sync(rig.pool) == 0;
            last = synced ? i : last;
        }
        rig_shut(&rig);
        sim_fault_clear("nth");
        rig_open(&rig, 0);
        CHECK(query().damage[0] == '\0');
        CHECK(last == 0 || strtoul(rig_get(rig.cont, 1, "k"), NULL, 10) >= last);
        CHECK_EQ(rig_check(&rig), 0);
        rig_destroy(&rig);
        CHECK_EQ(sim_destroy("nth"), 0);
    }
}

/* A commit that needs n keys of the index. */
static struct obj_tx *wanting(unsigned n)
{
    struct obj_tx *tx;
    char name[20];

    CHECK_EQ(obj_tx_begin(rig.cont, rig_oid(1), &tx), 0);
    for (unsigned i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "k%u", i);
        struct obj_key k = rig_key(name);
        CHECK_EQ(obj_tx_guard_equal(tx, &k, "v", 1), 0);
        CHECK_EQ(obj_tx_put(tx, OBJ_HOME, rig_oid(1), &k, "v", 1), 0);
    }
    return tx;
}

/* Who must not wait does not read much of the index either. */
static void nowait_index(void)
{
    struct obj_tx *tx;
    char name[20];

    rig_make(&rig, "index", NULL, 64);
    for (unsigned i = 0; i < 100; i++) {
        snprintf(name, sizeof(name), "k%u", i);
        CHECK_EQ(rig_put(&rig, 1, name, "v"), 0);
    }
    CHECK_EQ(obj_checkpoint(rig.pool), 0);
    tx = wanting(100);
    for (unsigned i = 0; i < 3; i++) {
        CHECK_EQ(obj_tx_commit(tx, OBJ_NOWAIT, NULL), -EINPROGRESS);
        CHECK_EQ(obj_wait_room(rig.pool), 0);
    }
    CHECK_EQ(obj_tx_commit(tx, 0, NULL), 0);
    CHECK_EQ(obj_tx_commit(wanting(100), OBJ_NOWAIT, NULL), 0); /* all in memory */
    CHECK_EQ(obj_checkpoint(rig.pool), 0);
    CHECK_EQ(obj_tx_commit(wanting(60), OBJ_NOWAIT, NULL), 0);
    tx = wanting(1);
    CHECK_EQ(obj_tx_guard_exists(tx), 0);
    CHECK_EQ(obj_tx_commit(tx, OBJ_NOWAIT, NULL), -EINPROGRESS);
    CHECK_EQ(obj_tx_commit(tx, 0, NULL), 0);
    rig_destroy(&rig);
}

int main(void)
{
    base_log_set(quiet, NULL);
    RUN(full);
    RUN(staged_counts_once);
    RUN(limits);
    RUN(nowait);
    RUN(nowait_index);
    RUN(failing_data);
    RUN(nth_write);
    return 0;
}
