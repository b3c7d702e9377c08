/* SPDX-License-Identifier: Apache-2.0 */
/* Kept memory under the stack, one thing each: orphans and their grace, another program that came
 * in between, a log that is full. */
#include "base/log.h"
#include "keep_rig.h"

static void make(void)
{
    rig_make(256u << 20);
}

#define SEGMENT (64u << 10)

static uint64_t *held; /* two inodes without a name, known to later processes */
static uint8_t big[SEGMENT];

static void open_kept(void)
{
    CHECK_EQ(keep_open(keep_mem, keep_mem_bytes, &keep), 0);
    rig_open(keep);
}

static void orphans_make(void)
{
    struct dfe_attr a;

    open_kept();
    for (unsigned i = 0; i < 2; i++) {
        CHECK_EQ(ns_mknod(ns, NS_ROOT_INO, "o", 1, S_IFREG | 0600, 0, &cred, DFE_REF, &a), 0);
        CHECK_EQ(ns_unlink(ns, NS_ROOT_INO, "o", 1, 0), 0);
        CHECK_EQ(ns_write(ns, a.ino, 0, "held", 4, 0, NULL), 4);
        held[i] = a.ino;
    }
}

static bool orphans_become(uint64_t n)
{
    struct ns_info info;

    for (unsigned i = 0; i < 500; i++) {
        ns_query(ns, &info);
        if (info.orphans == n)
            return true;
        usleep(10000);
    }
    return false;
}

static void orphans_wait(void)
{
    char got[8];

    grace_ms = 500;
    open_kept();
    CHECK_EQ(ns_ref(ns, held[0]), 0);
    CHECK_EQ(ns_read(ns, held[1], 0, got, sizeof(got), 0), 4);
    CHECK(orphans_become(1)); /* the other one's holder did not come */
    CHECK_EQ(ns_ref(ns, held[1]), -ESTALE);
    CHECK_EQ(ns_read(ns, held[0], 0, got, sizeof(got), 0), 4);
    CHECK_EQ(memcmp(got, "held", 4), 0);
    ns_unref(ns, held[0], 1);
    CHECK(orphans_become(0));
    rig_close();
}

static void orphans(void)
{
    rig_start("orphans", make);
    rig_killed(orphans_make);
    rig_child(orphans_wait);
}

/* Another program writes to the pool before the next worker comes. */
static void change(void)
{
    struct dfe_attr a;

    open_kept();
    CHECK_EQ(ns_mknod(ns, NS_ROOT_INO, "mine", 4, S_IFREG | 0600, 0, &cred, 0, &a), 0);
}

static void change_again(void)
{
    struct dfe_attr a;

    open_kept();
    CHECK_EQ(ns_mknod(ns, NS_ROOT_INO, "again", 5, S_IFREG | 0600, 0, &cred, 0, &a), 0);
}

static void intrude(void)
{
    struct dfe_attr a;

    rig_open(NULL);
    CHECK_EQ(ns_mknod(ns, NS_ROOT_INO, "other", 5, S_IFREG | 0600, 0, &cred, 0, &a), 0);
    rig_close();
}

static void quiet(int level, const char *line, void *arg)
{
    (void)level, (void)line, (void)arg;
}

static void refuse(void)
{
    struct obj_pool_open_opts p = {.size = sizeof(p), .path = pool_path};

    base_log_set(quiet, NULL);
    CHECK_EQ(keep_open(keep_mem, keep_mem_bytes, &p.keep), 0);
    CHECK_EQ(obj_pool_open(&p, &pool), -ESTALE);
}

static void found(void)
{
    struct dfe_attr a;

    open_kept();
    CHECK_EQ(ns_lookup(ns, NS_ROOT_INO, "mine", 4, 0, &a), 0);
    rig_close();
}

static void intruder(void)
{
    rig_start("intruder", make);
    rig_killed(change);
    rig_child(found);
    rig_killed(change_again);
    rig_child(intrude);
    rig_child(refuse);
}

/* More is written than the log holds, over and over the same bytes. */
static void overwrite(void)
{
    struct dfe_attr a;

    open_kept();
    CHECK_EQ(ns_mknod(ns, NS_ROOT_INO, "big", 3, S_IFREG | 0600, 0, &cred, DFE_REF, &a), 0);
    for (unsigned i = 1; i <= 1000; i++) {
        ssize_t n;

        memset(big, (int)i, sizeof(big));
        n = ns_write(ns, a.ino, i % 4 * 100, big, sizeof(big), DFE_NOWAIT, NULL);
        if (n == -EINPROGRESS)
            n = ns_write(ns, a.ino, i % 4 * 100, big, sizeof(big), 0, NULL);
        CHECK_EQ(n, sizeof(big));
    }
}

static void overwritten(void)
{
    struct dfe_attr a;

    open_kept();
    CHECK_EQ(ns_lookup(ns, NS_ROOT_INO, "big", 3, 0, &a), 0);
    CHECK_EQ(a.size, sizeof(big) + 300);
    CHECK_EQ(a.version, 1000);
    CHECK_EQ(ns_read(ns, a.ino, 0, big, sizeof(big), 0), sizeof(big));
    for (size_t i = 0; i < sizeof(big); i++)
        CHECK_EQ(big[i], 1000 & 255);
    rig_close();
}

static void full_log(void)
{
    rig_start("log", make);
    rig_killed(overwrite);
    rig_child(overwritten);
}

int main(void)
{
    seed = test_seed();
    held = rig_shared(4096);
    RUN(orphans);
    RUN(intruder);
    RUN(full_log);
    return 0;
}
