/* SPDX-License-Identifier: Apache-2.0 */
/* A program deletes, replaces or empties the file that fills the pool, and writes at once: it finds
 * room, however late its face gives the old file back. */
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

#include "api_fixture.h"

#define ROOT 1u
#define PIECE (256u << 10)
#define ROUNDS 24u

static const struct dfe_cred cred = {.uid = 7, .gid = 8};
static struct dfe_fs *fs;
static uint8_t bytes[PIECE];

static uint64_t make(const char *name)
{
    struct dfe_attr attr;

    CHECK_EQ(dfe_fs_mknod(fs, ROOT, name, strlen(name), S_IFREG | 0644, 0, &cred, DFE_REF, &attr),
             0);
    return attr.ino;
}

/* As the mount does: from memory first, else where a call may wait. */
static ssize_t put(uint64_t ino, uint64_t off)
{
    ssize_t n = dfe_fs_write(fs, ino, off, bytes, PIECE, DFE_NOWAIT, NULL);

    return n == -EINPROGRESS ? dfe_fs_write(fs, ino, off, bytes, PIECE, 0, NULL) : n;
}

static uint64_t fill(uint64_t ino)
{
    uint64_t at = 0;
    ssize_t n;

    while ((n = put(ino, at)) == PIECE)
        at += PIECE;
    CHECK_EQ(n, -ENOSPC);
    return at;
}

struct late {
    uint64_t ino;
    unsigned us;
};

/* The kernel forgets when it likes. */
static void *forget(void *arg)
{
    struct late *late = arg;

    usleep(late->us);
    dfe_fs_unref(fs, late->ino, 1);
    return NULL;
}

static void take_away(unsigned way, uint64_t ino)
{
    struct dfe_attr attr, in = {.size = 0};

    if (way == 0) {
        CHECK_EQ(dfe_fs_unlink(fs, ROOT, "large", 5, 0), 0);
    } else if (way == 1) {
        dfe_fs_unref(fs, make("small"), 1);
        CHECK_EQ(dfe_fs_rename(fs, ROOT, "small", 5, ROOT, "large", 5, 0), 0);
        CHECK_EQ(dfe_fs_unlink(fs, ROOT, "large", 5, 0), 0);
    } else {
        CHECK_EQ(dfe_fs_setattr(fs, ino, &in, DFE_SET_SIZE, 0, &attr), 0);
        CHECK_EQ(dfe_fs_unlink(fs, ROOT, "large", 5, 0), 0);
    }
}

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(void)
{
    static const unsigned late_us[] = {0, 0, 1000, 100000};
    const char *path = api_path("pool");
    struct dfe_pool *pool;
    struct dfe_cont *cont;
    uint64_t ino, full, got;
    double begun;

    api_setup(path, 1, &pool, &cont);
    CHECK_EQ(dfe_fs_open(cont, &fs), 0);
    ino = make("large");
    full = fill(ino);
    CHECK(full > 16u << 20);
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct late late = {ino, late_us[i / 3 % 4]};
        pthread_t thread;

        if (i % 2)
            CHECK_EQ(dfe_fs_fsync(fs, ino, 0), 0);
        take_away(i % 3, ino);
        CHECK_EQ(pthread_create(&thread, NULL, forget, &late), 0);
        ino = make("large");
        got = fill(ino);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        fprintf(stderr, "round %u: %llu of %llu bytes\n", i, (unsigned long long)got,
                (unsigned long long)full);
        CHECK(got >= full / 10 * 9);
    }
    begun = now_s();
    for (unsigned i = 0; i < 5; i++)
        CHECK_EQ(put(ino, full), -ENOSPC);
    CHECK(now_s() - begun < 2); /* nothing to hope for: no waiting */
    dfe_fs_unref(fs, ino, 1);
    CHECK_EQ(dfe_cont_check(cont, 1, NULL, 0, NULL, NULL), 0);
    CHECK_EQ(dfe_fs_close(fs), 0);
    api_teardown(path, pool, cont);
    return 0;
}
