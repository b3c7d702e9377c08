/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads on one pool while checkpoints run all the time: counters add up, scans see what exists
 * during them exactly once, arrays are read whole, nothing tears.
 */
#include "obj_rig.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdatomic.h>

#define FIXED 300 /* keys that stay */

static struct rig rig;
static atomic_bool stop;
static atomic_ullong added, scans, reads;

static void *adder(void *arg)
{
    uint64_t n = (uintptr_t)arg + 1;
    struct obj_key k = rig_key("sum");

    while (!stop) {
        struct obj_tx *tx;
        char name[32];
        int rc;
        snprintf(name, sizeof(name), "f%llu-%llu", (unsigned long long)(uintptr_t)arg,
                 (unsigned long long)(n % 500));
        CHECK_EQ(obj_tx_begin(rig.cont, rig_oid(1), &tx), 0);
        CHECK_EQ(obj_tx_add(tx, OBJ_HOME, rig_oid(1), &k, (int64_t)n), 0);
        struct obj_key f = rig_key(name);
        if (n % 3)
            CHECK_EQ(obj_tx_put(tx, OBJ_HOME, rig_oid(2), &f, name, strlen(name)), 0);
        else
            CHECK_EQ(obj_tx_del(tx, OBJ_HOME, rig_oid(2), &f), 0);
        rc = obj_tx_commit(tx, n % 64 ? 0 : OBJ_SYNC, NULL);
        CHECK_EQ(rc, 0);
        added += n++;
    }
    return NULL;
}

static int count_fixed(const struct obj_key *key, const void *value, size_t len, void *arg)
{
    if (*(const char *)key->dkey == 'k')
        ++*(unsigned *)arg;
    return 0;
}

static void *scanner(void *arg)
{
    (void)arg;
    while (!stop) {
        unsigned n = 0;
        CHECK_EQ(obj_kv_scan(rig.cont, rig_oid(2), NULL, 0, count_fixed, &n), 0);
        CHECK_EQ(n, FIXED);
        scans++;
    }
    return NULL;
}

/* Each write covers 8 blocks with one tag: a read must see one tag. */
static void *array_writer(void *arg)
{
    uint32_t tag = 1;

    (void)arg;
    for (; !stop; tag++)
        CHECK_EQ(rig_write(&rig, 3, 0, 8, tag, tag % 3 ? 0 : OBJ_STAGE_JOURNAL), 0);
    return NULL;
}

static void *array_reader(void *arg)
{
    uint8_t *buf = aligned_alloc(RIG_BLK, 8 * RIG_BLK);
    struct obj_io io = {.buf = buf, .len = 8 * RIG_BLK};

    (void)arg;
    CHECK(buf);
    while (!stop) {
        CHECK_EQ(obj_array_read(rig.cont, rig_oid(3), &io, 1), 0);
        for (unsigned i = 1; i < 8; i++) {
            uint64_t base = get_le64(buf) - 0x632BE59BD9B4E019ull;
            CHECK_EQ(get_le64(buf + i * RIG_BLK) - 0x632BE59BD9B4E019ull - base,
                     i * 0x9E3779B97F4A7C15ull);
        }
        reads++;
    }
    free(buf);
    return NULL;
}

static void *checkpointer(void *arg)
{
    (void)arg;
    while (!stop) {
        CHECK_EQ(obj_checkpoint(rig.pool), 0);
        usleep(2000);
    }
    return NULL;
}

int main(void)
{
    void *(*fn[])(void *) = {adder, adder, scanner, array_writer, array_reader, checkpointer};
    const unsigned n = sizeof(fn) / sizeof(fn[0]);
    pthread_t t[sizeof(fn) / sizeof(fn[0])];
    struct obj_key k = rig_key("sum");
    uint8_t v[8];
    size_t len;

    rig_make(&rig, "threads", NULL, 64);
    for (unsigned i = 0; i < FIXED; i++) {
        char name[16];
        snprintf(name, sizeof(name), "k%u", i);
        CHECK_EQ(rig_put(&rig, 2, name, "x"), 0);
    }
    CHECK_EQ(rig_write(&rig, 3, 0, 8, 0, 0), 0);
    for (unsigned i = 0; i < n; i++)
        CHECK_EQ(pthread_create(&t[i], NULL, fn[i], (void *)(uintptr_t)i), 0);
    usleep(3000000);
    stop = true;
    for (unsigned i = 0; i < n; i++)
        pthread_join(t[i], NULL);
    CHECK_EQ(obj_kv_get(rig.cont, rig_oid(1), &k, v, 8, &len), 0);
    CHECK_EQ(get_le64(v), added);
    CHECK_EQ(rig_check(&rig), 0);
    rig_reopen(&rig);
    CHECK_EQ(obj_kv_get(rig.cont, rig_oid(1), &k, v, 8, &len), 0);
    CHECK_EQ(get_le64(v), added);
    fprintf(stderr, "%llu scans, %llu reads\n", (unsigned long long)scans,
            (unsigned long long)reads);
    rig_destroy(&rig);
    return 0;
}
