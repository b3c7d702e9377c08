/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Power losses under the whole stack: files are written, cut, punched, replaced and synced on the
 * simulated device, which loses power at a random change. What opens afterwards is whole, passes
 * the check, and each file is what it was at one moment, no earlier than its last fsync. Then the
 * work goes on on what is left.
 */
#include <sys/stat.h>

#include "api_fixture.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "sim_device.h"

#define DEVICE "power"
#define ROOT 1u
#define FILES 8u
#define FILE_BYTES 70000u
#define MOMENTS 2000u /* of one file between two power losses; a round has fewer steps */
#define STEPS 600u
#define ROUNDS 8u

static const struct dfe_cred cred = {.uid = 7, .gid = 8};

/* A file as it should be, and digests of all that it has been since the last power loss. */
struct shadow {
    uint64_t ino;
    uint8_t data[FILE_BYTES];
    uint32_t size;
    uint64_t moment[MOMENTS];
    unsigned n, synced; /* moment[synced] is durable */
};

static struct shadow files[FILES];
static struct dfe_pool *pool;
static struct dfe_cont *cont;
static struct dfe_fs *fs;
static char pool_path[600];
static uint64_t seed;
static uint8_t buf[FILE_BYTES];

/* A rename that has been asked for: it may have happened where the power failed meanwhile. */
static struct {
    struct shadow *file; /* NULL: none */
    uint8_t data[FILE_BYTES];
    uint32_t size;
} replacing;

static uint64_t rnd(uint64_t below)
{
    return test_rand(&seed) % below;
}

static void quiet(int level, const char *text, void *arg)
{
    (void)level, (void)text, (void)arg;
}

static uint64_t digest(const uint8_t *data, uint32_t size)
{
    return (uint64_t)size << 32 | base_crc32c(0, data, size);
}

static void note(struct shadow *x)
{
    CHECK(x->n < MOMENTS);
    x->moment[x->n++] = digest(x->data, x->size);
}

static const char *file_name(const struct shadow *x)
{
    static char name[8];

    snprintf(name, sizeof(name), "f%u", (unsigned)(x - files));
    return name;
}

/* -- the stack ------------------------------------------------------------------------------- */

static int open_all(void)
{
    struct dfe_pool_open_opts o = {.size = sizeof(o), .path = pool_path, .arena_bytes = 64u << 20,
                                   .no_hugepages = 1,
                                   .commit_interval_ms = (uint32_t)(1 + rnd(40))};
    int rc = dfe_pool_open(&o, &pool);

    if (rc < 0)
        return rc;
    rc = dfe_cont_open(pool, "c", NULL, &cont);
    if (rc < 0)
        goto close_pool;
    rc = dfe_fs_open(cont, &fs);
    if (rc == 0)
        return 0;
    dfe_cont_close(cont);
close_pool:
    dfe_pool_close(pool);
    return rc;
}

static void close_all(void)
{
    dfe_fs_close(fs);
    dfe_cont_close(cont);
    dfe_pool_close(pool);
}

static void make_all(void)
{
    struct dfe_pool_create_opts o = {.size = sizeof(o), .path = pool_path, .label = "t",
                                     .device = "sim:" DEVICE};
    struct dfe_pool_open_opts p = {.size = sizeof(p), .path = pool_path, .arena_bytes = 64u << 20,
                                   .no_hugepages = 1};
    struct dfe_attr a;

    snprintf(pool_path, sizeof(pool_path), "%s/p", test_dir());
    CHECK_EQ(sim_create(DEVICE, 40u << 20, seed), 0);
    CHECK_EQ(dfe_pool_create(&o), 0);
    CHECK_EQ(dfe_pool_open(&p, &pool), 0);
    CHECK_EQ(dfe_cont_create(pool, "c", 1, &cred, 0755), 0);
    dfe_pool_close(pool);
    CHECK_EQ(open_all(), 0);
    memset(files, 0, sizeof(files));
    for (struct shadow *x = files; x < files + FILES; x++) {
        const char *name = file_name(x);
        CHECK_EQ(dfe_fs_mknod(fs, ROOT, name, strlen(name), S_IFREG | 0644, 0, &cred, DFE_REF, &a),
                 0);
        x->ino = a.ino;
        note(x);
    }
    CHECK_EQ(dfe_fs_sync(fs), 0);
}

/* Power fails during the opening, where the cut of before has not come yet. */
static void open_again(void)
{
    for (unsigned tries = 0;; tries++) {
        int rc = open_all();

        if (rc == 0 && !sim_power_is_off(DEVICE)) {
            sim_power_cut(DEVICE, UINT64_MAX / 2);
            if (!sim_power_is_off(DEVICE))
                return;
        }
        if (rc == 0)
            close_all();
        CHECK(tries < 10);
    }
}

/* -- the work: each step returns 0 or the error of the power loss ---------------------------- */

static void fill(uint8_t tag, uint64_t len)
{
    for (uint64_t i = 0; i < len; i++)
        buf[i] = (uint8_t)(tag + i * 3);
}

/* Bytes between the end and `to` read as zeros. */
static void extend(struct shadow *x, uint64_t to)
{
    if (to > x->size)
        memset(x->data + x->size, 0, to - x->size);
}

static int step_write(struct shadow *x)
{
    uint64_t off = rnd(rnd(3) ? 5000 : 60000), len = 1 + rnd(rnd(2) ? 300 : 9000);
    ssize_t rc;

    fill((uint8_t)rnd(256), len);
    rc = dfe_fs_write(fs, x->ino, off, buf, len, 0, NULL);
    if (rc < 0)
        return (int)rc;
    CHECK_EQ(rc, len);
    extend(x, off);
    memcpy(x->data + off, buf, len);
    if (off + len > x->size)
        x->size = (uint32_t)(off + len);
    note(x);
    return 0;
}

static int step_truncate(struct shadow *x)
{
    struct dfe_attr a, in = {.size = rnd(3) ? rnd(60000) : 0};
    int rc = dfe_fs_setattr(fs, x->ino, &in, DFE_SET_SIZE, 0, &a);

    if (rc < 0)
        return rc;
    extend(x, in.size);
    x->size = (uint32_t)in.size;
    note(x);
    return 0;
}

static int step_punch(struct shadow *x)
{
    uint64_t off = rnd(60000), len = 1 + rnd(20000);
    int rc;

    if (off >= x->size)
        return 0;
    rc = dfe_fs_punch(fs, x->ino, off, len, 0);
    if (rc < 0)
        return rc;
    memset(x->data + off, 0, off + len > x->size ? x->size - off : len);
    note(x);
    return 0;
}

static int step_fsync(struct shadow *x)
{
    int rc = dfe_fs_fsync(fs, x->ino, 0);

    if (rc == 0)
        x->synced = x->n - 1;
    return rc;
}

/* A new file takes the name, as editors do it; with or without an fsync before. */
static int step_replace(struct shadow *x)
{
    uint64_t len = 1 + rnd(20000);
    const char *name = file_name(x);
    struct dfe_attr a;
    ssize_t rc;

    fill((uint8_t)rnd(256), len);
    rc = dfe_fs_mknod(fs, ROOT, "tmp", 3, S_IFREG | 0600, 0, &cred, DFE_REF, &a);
    if (rc == 0)
        rc = dfe_fs_write(fs, a.ino, 0, buf, len, 0, NULL);
    if (rc >= 0 && rnd(3) == 0)
        rc = dfe_fs_fsync(fs, a.ino, 0);
    if (rc < 0)
        return (int)rc;
    replacing.file = x;
    replacing.size = (uint32_t)len;
    memcpy(replacing.data, buf, len);
    rc = dfe_fs_rename(fs, ROOT, "tmp", 3, ROOT, name, strlen(name), 0);
    if (rc < 0)
        return (int)rc;
    replacing.file = NULL;
    dfe_fs_unref(fs, x->ino, 1);
    x->ino = a.ino;
    x->size = (uint32_t)len;
    memcpy(x->data, buf, len);
    note(x);
    return 0;
}

static int step_look(struct shadow *x)
{
    ssize_t n = dfe_fs_read(fs, x->ino, 0, buf, FILE_BYTES, 0);

    if (n < 0)
        return (int)n;
    CHECK_EQ(n, x->size);
    CHECK(memcmp(buf, x->data, x->size) == 0);
    return 0;
}

static int step(void)
{
    struct shadow *x = &files[rnd(FILES)];
    struct dfe_attr a, in = {.mode = 0600 + (uint32_t)rnd(64)};

    switch (rnd(14)) {
    case 0: case 1: case 2: case 3: case 4:
        return step_write(x);
    case 5: case 6:
        return step_truncate(x);
    case 7:
        return step_punch(x);
    case 8: case 9:
        return step_fsync(x);
    case 10:
        return dfe_fs_setattr(fs, x->ino, &in, DFE_SET_MODE, 0, &a);
    case 11:
        if (rnd(4) == 0)
            return dfe_pool_checkpoint(pool);
        if (rnd(3) == 0)
            return step_look(x);
        usleep((unsigned)rnd(15000));
        return 0;
    default:
        return step_replace(x);
    }
}

/* Until the power fails, which the last sync meets at the latest. */
static void work(void)
{
    int rc = 0;

    sim_power_cut(DEVICE, rnd(rnd(3) ? 300 : 30));
    for (unsigned i = 0; i < STEPS && rc == 0; i++)
        rc = step();
    if (rc == 0) {
        sim_power_cut(DEVICE, 0);
        dfe_fs_sync(fs);
    } else if (!sim_power_is_off(DEVICE)) {
        fprintf(stderr, "power is on, and a call failed: %s\n", dfe_errmsg());
        CHECK_EQ(rc, 0);
    }
}

/* -- what is left ---------------------------------------------------------------------------- */

static void verify_file(struct shadow *x)
{
    const char *name = file_name(x);
    struct dfe_attr a;
    unsigned k;
    ssize_t n;

    CHECK_EQ(dfe_fs_lookup(fs, ROOT, name, strlen(name), DFE_REF, &a), 0);
    n = dfe_fs_read(fs, a.ino, 0, buf, FILE_BYTES, 0);
    CHECK_EQ(n, a.size);
    for (k = x->n; k > x->synced; k--)
        if (x->moment[k - 1] == digest(buf, (uint32_t)n))
            break;
    if (k == x->synced)
        fprintf(stderr, "%s: %zd bytes are none of the moments %u to %u\n", name, n, x->synced,
                x->n - 1);
    CHECK(k > x->synced);
    x->ino = a.ino;
    x->size = (uint32_t)n;
    memcpy(x->data, buf, (size_t)n);
    x->n = x->synced = 0;
    note(x);
}

static void verify(void)
{
    static char report[4000];
    struct dfe_pool_info info;
    struct shadow *x = replacing.file;
    ssize_t faults;
    int rc = dfe_fs_unlink(fs, ROOT, "tmp", 3, 0);

    CHECK(rc == 0 || rc == -ENOENT);
    if (x) {
        CHECK(x->n < MOMENTS);
        x->moment[x->n++] = digest(replacing.data, replacing.size);
        replacing.file = NULL;
    }
    for (x = files; x < files + FILES; x++)
        verify_file(x);
    dfe_pool_query(pool, &info);
    if (info.damage[0])
        fprintf(stderr, "damage: %s\n", info.damage);
    CHECK(info.damage[0] == '\0');
    faults = dfe_cont_check(cont, 1, report, sizeof(report), NULL, NULL);
    if (faults)
        fprintf(stderr, "check: %s\n", report);
    CHECK_EQ(faults, 0);
}

static void one_seed(uint64_t s)
{
    seed = s;
    fprintf(stderr, "   workload %llu\n", (unsigned long long)s);
    make_all();
    for (unsigned round = 0; round < ROUNDS; round++) {
        work();
        close_all();
        open_again();
        verify();
    }
    close_all();
    CHECK_EQ(dfe_pool_destroy(pool_path, 1), 0);
    CHECK_EQ(sim_destroy(DEVICE), 0);
}

int main(void)
{
    const char *secs = getenv("DFE_CRASH_SECONDS");
    uint64_t first = test_seed(), next = first;
    uint64_t until = base_mono_ns() + (secs ? strtoull(secs, NULL, 10) : 15) * 1000000000ull;

    dfe_log_set(quiet, NULL);
    do
        one_seed(next++);
    while (base_mono_ns() < until);
    fprintf(stderr, "%llu power losses\n", (unsigned long long)(next - first) * ROUNDS);
    return 0;
}
