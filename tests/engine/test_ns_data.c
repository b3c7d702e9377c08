/* SPDX-License-Identifier: Apache-2.0 */
/* File data through the namespace: sizes, times, space, what a crash leaves, unlink while in use.
 */
#include "base/clock.h"
#include "base/limits.h"
#include "base/clock.h"
#include "ns_help.h"

static const uint64_t ROOT = NS_ROOT_INO;
static struct world w;

static void put(uint64_t ino, uint64_t off, const char *text)
{
    CHECK_EQ(ns_write(w.ns, ino, off, N(text), 0, NULL), (ssize_t)strlen(text));
}

static void expect(uint64_t ino, const char *text)
{
    char got[256];

    CHECK_EQ(ns_read(w.ns, ino, 0, got, sizeof(got), 0), (ssize_t)strlen(text));
    CHECK(memcmp(got, text, strlen(text)) == 0);
    CHECK_EQ(attr_of(&w, ino).size, strlen(text));
}

static uint64_t find(const char *name)
{
    struct dfe_attr attr;

    CHECK_EQ(lookup(&w, ROOT, name, &attr), 0);
    return attr.ino;
}

/* Until the clock of file times has moved on. */
static void await_tick(void)
{
    int64_t start = base_real_ns();

    while (base_real_ns() == start)
        usleep(1000);
}

static void test_read_write(void)
{
    uint64_t f = make_file(&w, ROOT, "rw"), d = make_dir(&w, ROOT, "rw-dir"), at = 0;
    struct dfe_attr before = attr_of(&w, f), after;
    struct cache_pin pin;
    char got[16];

    expect(f, "");
    await_tick();
    put(f, 0, "hello");
    after = attr_of(&w, f);
    CHECK(after.mtime_ns > before.mtime_ns && after.ctime_ns == after.mtime_ns);
    CHECK(after.version != before.version);
    CHECK_EQ(after.used, 4096);
    CHECK_EQ(ns_write(w.ns, f, 0, N(", world"), DFE_APPEND, &at), 7);
    CHECK_EQ(at, 5);
    expect(f, "hello, world");
    CHECK_EQ(ns_pin(w.ns, f, 7, 100, 0, &pin), 0);
    CHECK_EQ(pin.len, 5);
    CHECK(memcmp(pin.ptr, "world", 5) == 0);
    ns_unpin(w.ns, &pin);
    CHECK_EQ(ns_read(w.ns, d, 0, got, 1, 0), -EISDIR);
    CHECK_EQ(ns_write(w.ns, d, 0, got, 1, 0, NULL), -EISDIR);
    CHECK_EQ(ns_read(w.ns, 999, 0, got, 1, 0), -ESTALE);
    CHECK_EQ(ns_write(w.ns, f, DFE_FILE_BYTES, "x", 1, 0, NULL), -EFBIG);
    CHECK_EQ(ns_write(w.ns, f, DFE_FILE_BYTES - 1, "xy", 2, 0, NULL), 1);
    CHECK_EQ(attr_of(&w, f).size, DFE_FILE_BYTES);
    CHECK_EQ(ns_fsync(w.ns, f, DFE_NOWAIT), -EINPROGRESS);
    CHECK_EQ(ns_fsync(w.ns, f, 0), 0);
    CHECK_EQ(ns_fsync(w.ns, d, 0), 0);
}

static void test_truncate(void)
{
    uint64_t f = make_file(&w, ROOT, "trunc");
    struct dfe_attr in = {.size = 3, .mode = 0600, .mtime_ns = 42}, attr;

    put(f, 0, "abcdef");
    CHECK_EQ(ns_setattr(w.ns, f, &in, DFE_SET_SIZE | DFE_SET_MODE, 0, &attr), 0);
    CHECK_EQ(attr.size, 3);
    CHECK_EQ(attr.mode, S_IFREG | 0600);
    expect(f, "abc");
    in.size = 5;
    CHECK_EQ(ns_setattr(w.ns, f, &in, DFE_SET_SIZE | DFE_SET_MTIME, 0, &attr), 0);
    CHECK_EQ(attr.mtime_ns, 42);
    CHECK_EQ(attr.size, 5);
    CHECK_EQ(ns_fsync(w.ns, f, 0), 0);
    CHECK_EQ(attr_of(&w, f).mtime_ns, 42);
    CHECK_EQ(ns_setattr(w.ns, f, &in, DFE_SET_SIZE, 0, &attr), 0);
    CHECK(attr.mtime_ns > 42);
    in.size = 0;
    CHECK_EQ(ns_setattr(w.ns, f, &in, DFE_SET_SIZE, 0, &attr), 0);
    CHECK_EQ(attr.used, 0);
    expect(f, "");
}

static void test_sparse(void)
{
    uint64_t f = make_file(&w, ROOT, "sparse"), where;
    struct dfe_attr in = {.size = 1ull << 40}, attr;

    CHECK_EQ(ns_setattr(w.ns, f, &in, DFE_SET_SIZE, 0, &attr), 0);
    CHECK_EQ(attr.used, 0);
    put(f, 1 << 20, "x");
    CHECK_EQ(attr_of(&w, f).used, 4096);
    CHECK_EQ(ns_next(w.ns, f, 0, OBJ_DATA, &where), 0);
    CHECK_EQ(where, 1 << 20);
    CHECK_EQ(ns_next(w.ns, f, where, OBJ_HOLE, &where), 0);
    CHECK_EQ(where, (1 << 20) + 4096);
    CHECK_EQ(ns_next(w.ns, f, 1ull << 40, OBJ_HOLE, &where), -ENXIO);
    CHECK_EQ(ns_fsync(w.ns, f, 0), 0);
    CHECK_EQ(attr_of(&w, f).used, 4096);
    CHECK_EQ(ns_punch(w.ns, f, 1 << 20, 4096, 0), 0);
    CHECK_EQ(ns_punch(w.ns, f, 0, 0, 0), -EINVAL);
    CHECK_EQ(ns_fsync(w.ns, f, 0), 0);
    CHECK_EQ(attr_of(&w, f).used, 0);
    CHECK_EQ(attr_of(&w, f).size, 1ull << 40);
}

/* What was synced survives; the rest of a file is one of its moments. */
static void test_crash(void)
{
    uint64_t f = make_file(&w, ROOT, "crash"), g = make_file(&w, ROOT, "late");
    struct dfe_attr in = {.mode = 0400}, attr;

    put(f, 0, "first");
    CHECK_EQ(ns_fsync(w.ns, f, 0), 0);
    put(f, 0, "other and longer");
    put(g, 0, "unpublished");
    CHECK_EQ(ns_setattr(w.ns, f, &in, DFE_SET_MODE, 0, &attr), 0);
    CHECK_EQ(attr.size, 16);
    CHECK_EQ(obj_sync(w.pool), 0); /* the mode alone */
    world_crash(&w, NULL);
    f = find("crash");
    expect(f, "first");
    CHECK_EQ(attr_of(&w, f).mode, S_IFREG | 0400);
    expect(find("late"), "");
    CHECK_EQ(world_check(&w), 0);
}

static void test_rename_over(void)
{
    uint64_t old = make_file(&w, ROOT, "target"), new = make_file(&w, ROOT, "target.tmp");

    put(old, 0, "old");
    CHECK_EQ(ns_fsync(w.ns, old, 0), 0);
    put(new, 0, "new");
    CHECK_EQ(ns_rename(w.ns, ROOT, N("target.tmp"), ROOT, N("target"), DFE_NOWAIT), -EINPROGRESS);
    expect(find("target"), "old");
    CHECK_EQ(ns_rename(w.ns, ROOT, N("target.tmp"), ROOT, N("target"), 0), 0);
    CHECK_EQ(obj_sync(w.pool), 0);
    world_crash(&w, NULL);
    expect(find("target"), "new");
}

static void test_orphan(void)
{
    uint64_t f = make_file(&w, ROOT, "orphan");
    struct dfe_attr attr;

    put(f, 0, "data");
    CHECK_EQ(ns_ref(w.ns, f), 0);
    CHECK_EQ(ns_unlink(w.ns, ROOT, N("orphan"), 0), 0);
    put(f, 4, " and more");
    expect(f, "data and more");
    CHECK_EQ(ns_fsync(w.ns, f, 0), 0);
    CHECK_EQ(world_check(&w), 0);
    world_crash(&w, NULL); /* still in use: the next opening reclaims it */
    wait_reclaimed(&w);
    CHECK_EQ(world_check(&w), 0);
    CHECK_EQ(ns_getattr(w.ns, f, 0, &attr), -ESTALE);
    f = make_file(&w, ROOT, "orphan");
    put(f, 0, "dirty when it dies");
    CHECK_EQ(ns_unlink(w.ns, ROOT, N("orphan"), 0), 0);
    wait_reclaimed(&w);
    CHECK_EQ(world_check(&w), 0);
}

/* utimens after a write, as cp -a does: the time goes with the data. */
static void test_times(void)
{
    uint64_t f = make_file(&w, ROOT, "times");
    struct dfe_attr in = {.mtime_ns = 1000}, attr;

    put(f, 0, "data");
    CHECK_EQ(ns_setattr(w.ns, f, &in, DFE_SET_MTIME, 0, &attr), 0);
    CHECK_EQ(attr.mtime_ns, 1000);
    CHECK(attr.ctime_ns > 1000);
    CHECK_EQ(world_close(&w), 0);
    world_open(&w);
    f = find("times");
    expect(f, "data");
    CHECK_EQ(attr_of(&w, f).mtime_ns, 1000);
    for (unsigned i = 0; i < 200; i++) { /* at every moment of a publication */
        char text[2] = {(char)('a' + i % 26), 0};

        put(f, 0, text);
        if (i % 4 == 0)
            CHECK_EQ(ns_fsync(w.ns, f, 0), 0);
        in.mtime_ns = 2000 + i;
        CHECK_EQ(ns_setattr(w.ns, f, &in, DFE_SET_MTIME, 0, &attr), 0);
        CHECK_EQ(attr.mtime_ns, 2000 + i);
        if (i % 7 == 0) {
            CHECK_EQ(ns_fsync(w.ns, f, 0), 0);
            world_crash(&w, NULL);
            f = find("times");
            CHECK_EQ(attr_of(&w, f).mtime_ns, 2000 + i);
        }
    }
}

/* A write-back error stays with the file until its data has been rewritten. */
static void test_error(void)
{
    uint64_t f = make_file(&w, ROOT, "error");

    put(f, 0, "data");
    model_fail(MODEL_COMMIT, 1, 1000000, -EIO);
    CHECK_EQ(ns_fsync(w.ns, f, 0), -EIO);
    CHECK_EQ(ns_sync(w.ns), -EIO);
    model_fail(MODEL_COMMIT, 0, 0, 0);
    expect(f, "data");
    for (unsigned i = 0; i < 100 && ns_fsync(w.ns, f, 0) != 0; i++)
        usleep(100000);
    CHECK_EQ(ns_fsync(w.ns, f, 0), 0);
    world_crash(&w, NULL);
    expect(find("error"), "data");
}

/* Who waits for two small files gets their neighbours without waiting; one alone brings none. */
static void test_prefetch(void)
{
    enum { FILES = 20 };
    uint64_t ino[FILES];
    char name[32], back[8];
    unsigned ready = 0;

    for (unsigned i = 0; i < FILES; i++) {
        snprintf(name, sizeof(name), "small-%u", i);
        ino[i] = make_file(&w, ROOT, name);
        put(ino[i], 0, name);
    }
    CHECK_EQ(ns_sync(w.ns), 0);
    CHECK_EQ(world_close(&w), 0);
    world_open(&w);
    for (unsigned i = 0; i < FILES; i++) {
        snprintf(name, sizeof(name), "small-%u", i);
        CHECK_EQ(find(name), ino[i]);
    }
    CHECK_EQ(ns_read(w.ns, ino[0], 0, back, sizeof(back), DFE_NOWAIT), -EINPROGRESS);
    usleep(50000);
    CHECK_EQ(ns_read(w.ns, ino[2], 0, back, sizeof(back), DFE_NOWAIT), -EINPROGRESS);
    for (unsigned tries = 0; tries < 500 && ready < FILES - 4; tries++) {
        usleep(10000);
        ready = 0;
        for (unsigned i = 0; i < FILES; i++)
            ready += ns_read(w.ns, ino[i], 0, back, sizeof(back), DFE_NOWAIT) > 0;
    }
    CHECK(ready >= FILES - 4); /* the numbers may lie in two groups */
}

int main(void)
{
    for (unsigned wait = 0; wait <= 2; wait += 2) {
        world_make(&w, "data", 0);
        model_nowait(5, wait);
        RUN(test_read_write);
        RUN(test_truncate);
        RUN(test_sparse);
        RUN(test_crash);
        RUN(test_rename_over);
        RUN(test_orphan);
        RUN(test_times);
        RUN(test_error);
        RUN(test_prefetch);
        world_end(&w);
    }
    return 0;
}
