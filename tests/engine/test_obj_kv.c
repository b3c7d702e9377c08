/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of the local store: puts, guards, counters, scans, across checkpoints and openings. */
#include "obj_rig.h"

static struct rig rig;

static void check_text(const char *got, const char *want)
{
    if (strcmp(got, want) != 0)
        fprintf(stderr, "got  %s\nwant %s\n", got, want);
    CHECK(strcmp(got, want) == 0);
}

static void basics(void)
{
    rig_make(&rig, "basics", NULL, 64);
    CHECK(rig_get(rig.cont, 1, "a") == NULL);
    CHECK_EQ(rig_put(&rig, 1, "a", "1"), 0);
    CHECK_EQ(rig_put(&rig, 1, "b", "2"), 0);
    CHECK_EQ(rig_put(&rig, 2, "a", "other"), 0);
    check_text(rig_get(rig.cont, 1, "a"), "1");
    check_text(rig_scan(rig.cont, 1), "a=1 b=2 ");
    CHECK_EQ(obj_checkpoint(rig.pool), 0);
    check_text(rig_scan(rig.cont, 1), "a=1 b=2 ");
    CHECK_EQ(rig_del(&rig, 1, "a"), 0);
    CHECK_EQ(rig_put(&rig, 1, "ab", "3"), 0);
    check_text(rig_scan(rig.cont, 1), "ab=3 b=2 ");
    CHECK(rig_get(rig.cont, 1, "a") == NULL);
    rig_reopen(&rig);
    check_text(rig_scan(rig.cont, 1), "ab=3 b=2 ");
    check_text(rig_get(rig.cont, 2, "a"), "other");
    rig_destroy(&rig);
}

static int guarded_put(const char *key, const char *old, const char *value)
{
    struct obj_key k = rig_key(key);
    struct obj_tx *tx;

    CHECK_EQ(obj_tx_begin(rig.cont, rig_oid(1), &tx), 0);
    if (old)
        CHECK_EQ(obj_tx_guard_equal(tx, &k, old, strlen(old)), 0);
    else
        CHECK_EQ(obj_tx_guard_absent(tx, &k), 0);
    CHECK_EQ(obj_tx_put(tx, OBJ_HOME, rig_oid(1), &k, value, strlen(value)), 0);
    return obj_tx_commit(tx, 0, NULL);
}

static int exists_put(uint64_t oid, bool exists)
{
    struct obj_key k = rig_key("x");
    struct obj_tx *tx;

    CHECK_EQ(obj_tx_begin(rig.cont, rig_oid(oid), &tx), 0);
    CHECK_EQ(exists ? obj_tx_guard_exists(tx) : obj_tx_guard_empty(tx, NULL, NULL), 0);
    CHECK_EQ(obj_tx_put(tx, OBJ_HOME, rig_oid(99), &k, "", 0), 0);
    return obj_tx_commit(tx, 0, NULL);
}

static void guards(void)
{
    rig_make(&rig, "guards", NULL, 64);
    for (int round = 0; round < 2; round++) {
        CHECK_EQ(guarded_put("k", NULL, "1"), 0);
        CHECK_EQ(guarded_put("k", NULL, "2"), -EAGAIN);
        if (round)
            CHECK_EQ(obj_checkpoint(rig.pool), 0);
        CHECK_EQ(guarded_put("k", NULL, "2"), -EAGAIN);
        CHECK_EQ(guarded_put("k", "0", "2"), -EAGAIN);
        CHECK_EQ(guarded_put("k", "1", "2"), 0);
        CHECK_EQ(exists_put(1, true), 0);
        CHECK_EQ(exists_put(1, false), -EAGAIN);
        CHECK_EQ(exists_put(3, true), -EAGAIN);
        CHECK_EQ(exists_put(3, false), 0);
        CHECK_EQ(rig_del(&rig, 1, "k"), 0);
        CHECK_EQ(exists_put(1, true), -EAGAIN);
        CHECK_EQ(exists_put(1, false), 0);
    }
    CHECK_EQ(rig_write(&rig, 5, 0, 1, 1, 0), 0);
    CHECK_EQ(exists_put(5, true), 0);
    CHECK_EQ(exists_put(5, false), 0); /* no key */
    rig_destroy(&rig);
}

static uint64_t counter(const char *key)
{
    uint8_t v[8];
    size_t len;
    struct obj_key k = rig_key(key);

    CHECK_EQ(obj_kv_get(rig.cont, rig_oid(1), &k, v, 8, &len), 0);
    CHECK_EQ(len, 8);
    return get_le64(v);
}

static void counters(void)
{
    struct obj_key k = rig_key("n"), m = rig_key("m");
    struct obj_tx *tx;

    rig_make(&rig, "counters", NULL, 64);
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(obj_tx_begin(rig.cont, rig_oid(1), &tx), 0);
        CHECK_EQ(obj_tx_add(tx, OBJ_HOME, rig_oid(1), &k, 5), 0);
        CHECK_EQ(obj_tx_add(tx, OBJ_HOME, rig_oid(1), &k, -2), 0);
        CHECK_EQ(obj_tx_max(tx, OBJ_HOME, rig_oid(1), &m, (uint64_t)(i * 7 % 10)), 0);
        CHECK_EQ(obj_tx_commit(tx, 0, NULL), 0);
        if (i == 4)
            CHECK_EQ(obj_checkpoint(rig.pool), 0);
    }
    CHECK_EQ(counter("n"), 30);
    CHECK_EQ(counter("m"), 9);
    rig_destroy(&rig);
}

static int count(const struct obj_key *key, const void *value, size_t len, void *arg)
{
    ++*(unsigned *)arg;
    return 0;
}

static unsigned keys(struct obj_cont *cont, uint64_t oid)
{
    unsigned n = 0;

    CHECK_EQ(obj_kv_scan(cont, rig_oid(oid), NULL, 0, count, &n), 0);
    return n;
}

static int scan_object(struct obj_id oid, void *arg)
{
    ++*(unsigned *)arg;
    return 0;
}

static unsigned objects(struct obj_cont *cont)
{
    unsigned n = 0;

    CHECK_EQ(obj_scan_objects(cont, NULL, scan_object, &n), 0);
    return n;
}

/* More keys than one transaction removes: gone at once, kept for a snapshot, and what comes later
 * stays, also when the pool is closed in between. */
static void long_punch(void)
{
    struct obj_cont *old;
    struct obj_tx *tx;
    char name[16];

    rig_make(&rig, "punch", NULL, 64);
    for (unsigned i = 0; i < 3000; i++) {
        snprintf(name, sizeof(name), "k%u", i);
        CHECK_EQ(rig_put(&rig, 1, name, "old"), 0);
        if (i == 1500)
            CHECK_EQ(obj_checkpoint(rig.pool), 0);
    }
    CHECK_EQ(obj_snap_create(rig.cont, "s", NULL), 0);
    CHECK_EQ(exists_put(1, true), 0);
    CHECK_EQ(obj_tx_begin(rig.cont, rig_oid(1), &tx), 0);
    CHECK_EQ(obj_tx_punch_object(tx, OBJ_HOME, rig_oid(1)), 0);
    struct obj_key k = rig_key("k7");
    CHECK_EQ(obj_tx_put(tx, OBJ_HOME, rig_oid(1), &k, "new", 3), 0);
    CHECK_EQ(
        obj_tx_add(tx, OBJ_HOME, rig_oid(1), &(struct obj_key){.dkey = "k9", .dkey_len = 2}, 5),
        0); /* absent by now, though "old" is still there */
    CHECK_EQ(obj_tx_commit(tx, 0, NULL), 0);
    CHECK_EQ(keys(rig.cont, 1), 2);
    CHECK(rig_get(rig.cont, 1, "k8") == NULL);
    CHECK_EQ(rig_put(&rig, 1, "k2000", "newer"), 0);
    rig_reopen(&rig);
    CHECK_EQ(keys(rig.cont, 1), 3);
    check_text(rig_get(rig.cont, 1, "k7"), "new");
    check_text(rig_get(rig.cont, 1, "k2000"), "newer");
    CHECK_EQ(obj_cont_open(rig.pool, "c", "s", &old), 0);
    CHECK_EQ(keys(old, 1), 3000);
    check_text(rig_get(old, 1, "k7"), "old");
    CHECK_EQ(objects(rig.cont), 2);
    CHECK_EQ(objects(old), 1);
    obj_cont_close(old);
    CHECK_EQ(obj_snap_destroy(rig.cont, "s"), 0);
    CHECK_EQ(rig_check(&rig), 0);
    CHECK_EQ(keys(rig.cont, 1), 3);
    rig_destroy(&rig);
}

int main(void)
{
    RUN(long_punch);
    RUN(basics);
    RUN(guards);
    RUN(counters);
    return 0;
}
