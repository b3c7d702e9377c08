/* SPDX-License-Identifier: Apache-2.0 */
/* Several threads create, link, rename, remove, list and write in the same few directories, with a
 * store that makes some wait and caches that evict; nothing is lost, nothing is left over. */
#include <pthread.h>

#include "ns_help.h"

#define THREADS 4
#define DIRS 3
#define STEPS 6000
#define NAMES 20

static struct world w;
static uint64_t dirs[DIRS];

static void allowed(int err)
{
    switch (err) {
    case 0:
    case -EEXIST:
    case -ENOENT:
    case -ENOTDIR:
    case -EISDIR:
    case -ENOTEMPTY:
    case -EINVAL:
    case -ESTALE:
        return;
    default:
        CHECK_EQ(err, 0);
    }
}

static void list(uint64_t dir, unsigned flags)
{
    char page[2048];
    uint64_t cookie = 0;
    ssize_t n;

    while ((n = ns_readdir(w.ns, dir, cookie, page, sizeof(page), flags | DFE_REF)) > 0) {
        struct dfe_dirent ent;

        for (ssize_t at = 0; at < n; at += ent.rec_len) {
            memcpy(&ent, page + at, sizeof(ent));
            CHECK(ent.cookie > cookie);
            cookie = ent.cookie;
            ns_unref(w.ns, ent.attr.ino, 1);
        }
    }
    allowed((int)n);
}

static void use_file(uint64_t dir, const char *name, uint64_t *seed)
{
    struct dfe_attr attr, in = {.mode = 0600, .size = test_rand(seed) % 9000, .mtime_ns = 77};
    char data[5000] = {0};

    if (ns_lookup(w.ns, dir, N(name), DFE_REF, &attr))
        return;
    if (S_ISREG(attr.mode)) {
        uint64_t what = test_rand(seed) % 6;

        if (what < 2)
            CHECK_EQ(ns_write(w.ns, attr.ino, test_rand(seed) % 9000, data, sizeof(data), 0, NULL),
                     (ssize_t)sizeof(data));
        else if (what == 2)
            CHECK_EQ(ns_setattr(w.ns, attr.ino, &in, DFE_SET_SIZE | DFE_SET_MODE, 0, &attr), 0);
        else if (what == 3)
            CHECK_EQ(ns_setattr(w.ns, attr.ino, &in, DFE_SET_MTIME, 0, &attr), 0);
        else if (what == 4)
            CHECK_EQ(ns_fsync(w.ns, attr.ino, 0), 0);
        else
            CHECK(ns_read(w.ns, attr.ino, 0, data, sizeof(data), 0) >= 0);
        CHECK_EQ(ns_getattr(w.ns, attr.ino, 0, &attr), 0);
        allowed(ns_setxattr(w.ns, attr.ino, N("user.t"), "t", 1, 0));
    }
    ns_unref(w.ns, attr.ino, 1);
}

static void step(uint64_t *seed)
{
    uint64_t dir = dirs[test_rand(seed) % DIRS], other = dirs[test_rand(seed) % DIRS];
    char name[16], second[16];
    struct dfe_attr attr;

    sprintf(name, "n%u", (unsigned)(test_rand(seed) % NAMES));
    sprintf(second, "n%u", (unsigned)(test_rand(seed) % NAMES));
    switch (test_rand(seed) % 10) {
    case 0:
    case 1:
        allowed(ns_mknod(w.ns, dir, N(name), S_IFREG | 0644, 0, &ROOT_CRED, 0, &attr));
        break;
    case 2:
        allowed(ns_mkdir(w.ns, dir, N(name), 0755, &ROOT_CRED, 0, &attr));
        break;
    case 3:
        allowed(ns_unlink(w.ns, dir, N(name), 0));
        break;
    case 4:
        allowed(ns_rmdir(w.ns, dir, N(name), 0));
        break;
    case 5:
        allowed(ns_rename(w.ns, dir, N(name), other, N(second), 0));
        break;
    case 6:
        allowed(ns_rename(w.ns, dir, N(name), other, N(second), DFE_EXCHANGE));
        break;
    case 7:
        if (ns_lookup(w.ns, dir, N(name), DFE_REF, &attr) == 0) {
            if (!S_ISDIR(attr.mode))
                allowed(ns_link(w.ns, attr.ino, other, N(second), 0, &attr));
            ns_unref(w.ns, attr.ino, 1);
        }
        break;
    case 8:
        list(dir, test_rand(seed) % 2 ? DFE_PLUS : 0);
        break;
    default:
        use_file(dir, name, seed);
    }
}

static void *run(void *arg)
{
    uint64_t seed = *(uint64_t *)arg;

    for (unsigned i = 0; i < STEPS; i++)
        step(&seed);
    return NULL;
}

static void *check(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < 10; i++) {
        usleep(30000);
        CHECK_EQ(world_check(&w), 0);
    }
    return NULL;
}

/* -- a check meets a reclaim that waits for a publication -------------------------------------- */

static void *publish(void *arg)
{
    (void)arg;
    CHECK_EQ(cache_publish_all(w.cache, w.cont, 0), 0);
    return NULL;
}

static void check_during_reclaim(void)
{
    pthread_t publisher;
    struct dfe_attr attr;

    world_make(&w, "reclaim", 0);
    CHECK_EQ(ns_mknod(w.ns, NS_ROOT_INO, N("f"), S_IFREG | 0644, 0, &ROOT_CRED, DFE_REF, &attr),
             0);
    CHECK_EQ(ns_write(w.ns, attr.ino, 0, "data", 4, 0, NULL), 4);
    CHECK_EQ(ns_unlink(w.ns, NS_ROOT_INO, N("f"), 0), 0);
    model_delay(MODEL_STAGE, 300000);
    CHECK_EQ(pthread_create(&publisher, NULL, publish, NULL), 0);
    usleep(100000);
    ns_unref(w.ns, attr.ino, 1); /* the last: it is reclaimed */
    usleep(100000);
    CHECK_EQ(world_check(&w), 0);
    CHECK_EQ(pthread_join(publisher, NULL), 0);
    model_delay(MODEL_STAGE, 0);
    wait_reclaimed(&w);
    world_end(&w);
}

/* -- a publication between a write and its ctime ---------------- */

enum { LATE_FILES = 1500 };
static _Atomic uint64_t late_ino; /* 0: the end */

static void *late_publish(void *arg)
{
    uint64_t ino;

    (void)arg;
    while ((ino = late_ino) != 0)
        CHECK_EQ(ns_fsync(w.ns, ino, 0), 0);
    return NULL;
}

/* Keeps the lock in use, so that others have to wait for it. */
static void *late_look(void *arg)
{
    struct dfe_attr attr;

    (void)arg;
    while (late_ino != 0)
        CHECK_EQ(ns_getattr(w.ns, NS_ROOT_INO, 0, &attr), 0);
    return NULL;
}

/* What is told of a file is also what will be told when it is opened again. */
static void test_late(void)
{
    static struct dfe_attr told[LATE_FILES];
    static uint8_t block[4096];
    struct dfe_attr again;
    pthread_t publish, look;
    char name[16];

    world_make(&w, "late", 0);
    late_ino = make_file(&w, NS_ROOT_INO, "late-0");
    CHECK_EQ(pthread_create(&publish, NULL, late_publish, NULL), 0);
    CHECK_EQ(pthread_create(&look, NULL, late_look, NULL), 0);
    for (unsigned i = 0; i < LATE_FILES; i++) {
        if (i > 0) {
            snprintf(name, sizeof(name), "late-%u", i);
            late_ino = make_file(&w, NS_ROOT_INO, name);
        }
        told[i].ino = late_ino;
        for (uint64_t k = 0; k < 3; k++)
            CHECK_EQ(ns_write(w.ns, told[i].ino, k * 4096, block, 4096, 0, NULL), 4096);
    }
    late_ino = 0;
    CHECK_EQ(pthread_join(publish, NULL), 0);
    CHECK_EQ(pthread_join(look, NULL), 0);
    CHECK_EQ(ns_sync(w.ns), 0);
    for (unsigned i = 0; i < LATE_FILES; i++)
        told[i] = attr_of(&w, told[i].ino);
    world_crash(&w, NULL);
    for (unsigned i = 0; i < LATE_FILES; i++) {
        snprintf(name, sizeof(name), "late-%u", i);
        CHECK_EQ(lookup(&w, NS_ROOT_INO, name, &again), 0);
        CHECK_EQ(again.used, told[i].used);
        CHECK_EQ(again.ctime_ns, told[i].ctime_ns);
        CHECK_EQ(again.mtime_ns, told[i].mtime_ns);
    }
    world_end(&w);
}

int main(void)
{
    uint64_t seed = test_seed(), seeds[THREADS];
    pthread_t threads[THREADS], checker;

    RUN(check_during_reclaim);
    RUN(test_late);
    world_make(&w, "threads", 4);
    CHECK_EQ(world_close(&w), 0);
    w.opts.inode_bound = 10;
    world_open(&w);
    model_nowait(test_rand(&seed), 5);
    for (unsigned i = 0; i < DIRS; i++) {
        char name[16];

        sprintf(name, "dir%u", i);
        dirs[i] = make_dir(&w, NS_ROOT_INO, name);
        CHECK_EQ(ns_ref(w.ns, dirs[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        seeds[i] = test_rand(&seed);
        CHECK_EQ(pthread_create(&threads[i], NULL, run, &seeds[i]), 0);
    }
    CHECK_EQ(pthread_create(&checker, NULL, check, NULL), 0);
    for (unsigned i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_EQ(pthread_join(checker, NULL), 0);
    wait_reclaimed(&w);
    CHECK_EQ(ns_sync(w.ns), 0);
    CHECK_EQ(world_check(&w), 0);
    CHECK_EQ(world_close(&w), 0);
    world_open(&w);
    world_end(&w);
    return 0;
}
