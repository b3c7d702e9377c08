/* SPDX-License-Identifier: Apache-2.0 */
/* Superblock and pool record: geometry, copies, a damaged byte at every offset. */
#include <fcntl.h>
#include <sys/stat.h>

#include "base/limits.h"
#include "base/log.h"
#include "obj/super.h"
#include "sim_device.h"
#include "test.h"

static uint64_t seed;
static uint8_t block[2 * DFE_BLOCK_BYTES] __attribute__((aligned(4096)));
static uint8_t copy_of[2 * DFE_BLOCK_BYTES] __attribute__((aligned(4096)));

static struct queue_dev *fresh_dev(uint64_t bytes)
{
    struct queue_dev_opts o = {.size = sizeof(o), .create = true, .create_bytes = bytes};
    struct queue_dev *dev;

    queue_mem_forget("super");
    CHECK_EQ(queue_dev_open("mem:super", &o, &dev), 0);
    return dev;
}

static void quiet(int level, const char *text, void *arg)
{
}

static void layouts(void)
{
    struct super s;

    for (uint64_t size = 0; size < 1ull << 50; size = size * 3 / 2 + 999999) {
        int err = super_layout(size, 0, &s);
        CHECK_EQ(err, size < 10 << 20 ? -ENOSPC : 0);
        if (err)
            continue;
        CHECK_EQ(s.size_blk, size / DFE_BLOCK_BYTES);
        CHECK(s.journal_blk >= 2 && s.journal_blk + s.journal_len_blk <= s.data_blk);
        CHECK(s.data_len_blk > 0 && s.data_blk + s.data_len_blk == s.size_blk);
        CHECK(s.journal_len_blk >= 2048 && s.journal_len_blk <= 65536);
    }
    CHECK_EQ(super_layout(1 << 30, 4096, &s), -EINVAL);
    CHECK_EQ(super_layout(1 << 30, UINT64_MAX, &s), -EINVAL);
    CHECK_EQ(super_layout(1 << 30, 1 << 30, &s), -ENOSPC);
    CHECK(strstr(base_last_error(), "needed"));
    CHECK_EQ(super_layout(1 << 30, 64 << 20, &s), 0);
    CHECK_EQ(s.journal_len_blk, 16384);
}

static void round_trip_and_states(void)
{
    struct queue_dev *dev = fresh_dev(32 << 20);
    struct super s, r;
    bool bad;

    CHECK_EQ(super_read(dev, &r, &bad), -ENODATA);
    CHECK_EQ(super_layout(32 << 20, 0, &s), 0);
    CHECK_EQ(uuid_make(s.uuid), 0);
    s.least_checkpoint = 42;
    for (uint64_t gen = 1; gen < 5; gen++) {
        CHECK_EQ(super_write(dev, &s), 0);
        CHECK_EQ(s.generation, gen);
        CHECK_EQ(super_read(dev, &r, &bad), 0);
        CHECK(!bad && memcmp(&s, &r, sizeof(s)) == 0);
    }
    /* A crash between the copies: the newer one counts, whichever it is. */
    CHECK_EQ(queue_read(dev, 0, block, sizeof(block)), 0);
    CHECK_EQ(super_write(dev, &s), 0);
    CHECK_EQ(queue_write(dev, DFE_BLOCK_BYTES, block + DFE_BLOCK_BYTES, DFE_BLOCK_BYTES), 0);
    CHECK_EQ(super_read(dev, &r, &bad), 0);
    CHECK(!bad && r.generation == s.generation);
    CHECK_EQ(super_write(dev, &s), 0);
    CHECK_EQ(queue_write(dev, 0, block, DFE_BLOCK_BYTES), 0);
    CHECK_EQ(super_read(dev, &r, &bad), 0);
    CHECK(!bad && r.generation == s.generation);
    s.format = SUPER_FORMAT + 1;
    CHECK_EQ(super_write(dev, &s), 0);
    CHECK_EQ(super_read(dev, &r, &bad), -EPROTONOSUPPORT);
    CHECK_EQ(super_wipe(dev), 0);
    CHECK_EQ(super_read(dev, &r, &bad), -ENODATA);
    queue_dev_close(dev);
}

static void short_device(void)
{
    struct queue_dev *dev = fresh_dev(16 << 20);
    struct super s, r;
    bool bad;

    CHECK_EQ(super_layout(32 << 20, 0, &s), 0);
    CHECK_EQ(super_write(dev, &s), 0);
    CHECK_EQ(super_read(dev, &r, &bad), -EUCLEAN);
    queue_dev_close(dev);
    dev = fresh_dev(4096);
    CHECK_EQ(super_read(dev, &r, &bad), -ENODATA);
    queue_dev_close(dev);
}

/* One copy damaged: the other answers. Both: refused, never believed. */
static void every_byte(void)
{
    struct queue_dev *dev = fresh_dev(32 << 20);
    struct super s, r;
    bool bad;

    CHECK_EQ(super_layout(32 << 20, 0, &s), 0);
    CHECK_EQ(super_write(dev, &s), 0);
    CHECK_EQ(queue_read(dev, 0, copy_of, sizeof(copy_of)), 0);
    for (size_t at = 0; at < sizeof(block); at++) {
        memcpy(block, copy_of, sizeof(block));
        block[at] ^= (uint8_t)(1u << (test_rand(&seed) % 8));
        CHECK_EQ(queue_write(dev, 0, block, sizeof(block)), 0);
        CHECK_EQ(super_read(dev, &r, &bad), 0);
        CHECK(bad && r.newest == (at < DFE_BLOCK_BYTES));
        r.newest = s.newest;
        CHECK(memcmp(&r, &s, sizeof(s)) == 0);
        block[(at + DFE_BLOCK_BYTES) % sizeof(block)] ^= (uint8_t)(1 + test_rand(&seed) % 255);
        CHECK_EQ(queue_write(dev, 0, block, sizeof(block)), 0);
        CHECK_EQ(super_read(dev, &r, &bad), at % DFE_BLOCK_BYTES < 8 ? -ENODATA : -EUCLEAN);
    }
    queue_dev_close(dev);
}

/* However often the power fails while it is written, a superblock never goes back in time. */
static void power_losses(void)
{
    struct queue_dev_opts o = {.size = sizeof(o)};
    struct queue_dev *dev;
    struct super s, r;
    bool bad;

    CHECK_EQ(sim_create("super", 32 << 20, seed), 0);
    CHECK_EQ(queue_dev_open("sim:super", &o, &dev), 0);
    CHECK_EQ(super_layout(32 << 20, 0, &s), 0);
    CHECK_EQ(super_write(dev, &s), 0);
    for (unsigned i = 0; i < 2000; i++) {
        struct super before = s;
        s.least_checkpoint++;
        sim_power_cut("super", test_rand(&seed) % 6);
        while (super_write(dev, &s) == 0)
            before = s;
        queue_dev_close(dev);
        CHECK_EQ(queue_dev_open("sim:super", &o, &dev), 0);
        CHECK_EQ(super_read(dev, &r, &bad), 0);
        CHECK(r.least_checkpoint >= before.least_checkpoint && r.generation >= before.generation);
        s = r;
    }
    queue_dev_close(dev);
    CHECK_EQ(sim_destroy("super"), 0);
}

static void put_text(const char *text, size_t len)
{
    char path[300];
    int fd;

    snprintf(path, sizeof(path), "%s/pool", test_dir());
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, text, len) == (ssize_t)len);
    close(fd);
}

static void records(void)
{
    struct pool_record r = {.format = SUPER_FORMAT}, back;
    char path[300], text[1024];
    ssize_t n;
    int fd;

    CHECK_EQ(record_read(test_dir(), &back), -ENOENT);
    strcpy(r.label, "my.pool-1_x");
    strcpy(r.device, "file:/dev/some thing=1");
    CHECK_EQ(uuid_make(r.uuid), 0);
    CHECK_EQ(record_write(test_dir(), &r), 0);
    CHECK_EQ(record_read(test_dir(), &back), 0);
    CHECK_EQ(memcmp(&r, &back, sizeof(r)), 0);
    strcpy(r.label, ".x");
    CHECK_EQ(record_write(test_dir(), &r), -EINVAL);
    strcpy(r.label, "x");
    strcpy(r.device, "a\nlabel=b");
    CHECK_EQ(record_write(test_dir(), &r), -EINVAL);
    CHECK_EQ(record_read(test_dir(), &back), 0);
    CHECK(strcmp(back.label, "my.pool-1_x") == 0);

    snprintf(path, sizeof(path), "%s/pool", test_dir());
    fd = open(path, O_RDONLY);
    n = read(fd, text, sizeof(text));
    close(fd);
    CHECK(n > 0);
    for (ssize_t cut = 0; cut < n; cut++) {
        put_text(text, (size_t)cut);
        CHECK_EQ(record_read(test_dir(), &back), -EUCLEAN);
    }
    for (int i = 0; i < 2000; i++) { /* whatever it says, it does not crash */
        char bad[1024];
        memcpy(bad, text, (size_t)n);
        bad[test_rand(&seed) % (size_t)n] = (char)test_rand(&seed);
        put_text(bad, (size_t)n);
        (void)record_read(test_dir(), &back);
    }
    put_text("dfusepy pool\nformat=2\n", 22);
    CHECK_EQ(record_read(test_dir(), &back), -EPROTONOSUPPORT);
}

static void uuids(void)
{
    uint8_t u[16], v[16];
    char text[37];

    for (int i = 0; i < 100; i++) {
        CHECK_EQ(uuid_make(u), 0);
        uuid_text(u, text);
        CHECK_EQ(strlen(text), 36);
        CHECK(text[14] == '4');
        CHECK_EQ(uuid_parse(text, v), 0);
        CHECK_EQ(memcmp(u, v, 16), 0);
        text[test_rand(&seed) % 36] = 'g';
        CHECK_EQ(uuid_parse(text, v), -EINVAL);
    }
    CHECK_EQ(uuid_parse("", v), -EINVAL);
    CHECK(label_ok("a") && !label_ok("") && !label_ok("-a") && !label_ok("a/b"));
}

int main(void)
{
    seed = test_seed();
    base_log_set(quiet, NULL);
    RUN(layouts);
    RUN(round_trip_and_states);
    RUN(short_device);
    RUN(every_byte);
    RUN(power_losses);
    RUN(records);
    RUN(uuids);
    queue_mem_forget("super");
    return 0;
}
