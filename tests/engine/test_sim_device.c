/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated device does what its header says: crash tests of other layers rest on it. */
#include "sim_device.h"

#include "base/assert.h"
#include "queue/queue.h"
#include "test.h"

#define BLOCK 4096u
#define DEV_BYTES (4u << 20)
#define SECTORS (DEV_BYTES / SIM_SECTOR_BYTES)

static uint64_t seed;

static struct queue_dev *open_sim(const char *uri)
{
    struct queue_dev *dev;
    CHECK_EQ(queue_dev_open(uri, NULL, &dev), 0);
    return dev;
}

static uint8_t *blocks(unsigned n)
{
    uint8_t *p = aligned_alloc(BLOCK, (size_t)n * BLOCK);
    CHECK(p);
    memset(p, 0, (size_t)n * BLOCK);
    return p;
}

/* Writes blocks whose sectors all say `tag`. */
static int write_tag(struct queue_dev *dev, unsigned block, unsigned n, uint8_t tag)
{
    uint8_t *buf = blocks(n);
    memset(buf, tag, (size_t)n * BLOCK);
    int rc = queue_write(dev, (uint64_t)block * BLOCK, buf, (size_t)n * BLOCK);
    free(buf);
    return rc;
}

static void flushed_data_survives(void)
{
    struct queue_dev *dev;
    uint8_t back[BLOCK];

    CHECK_EQ(sim_create("s", DEV_BYTES, test_rand(&seed)), 0);
    dev = open_sim("sim:s");
    for (unsigned b = 0; b < 100; b++)
        CHECK_EQ(write_tag(dev, b, 1, 1), 0);
    CHECK_EQ(sim_volatile_bytes("s"), 100 * BLOCK);
    CHECK_EQ(queue_flush(dev), 0);
    CHECK_EQ(sim_volatile_bytes("s"), 0);
    CHECK_EQ(sim_changes("s"), 101);
    sim_power_cut("s", 0);
    CHECK_EQ(write_tag(dev, 200, 1, 2), -EIO);
    CHECK(sim_power_is_off("s"));
    CHECK_EQ(queue_flush(dev), -EIO);
    queue_dev_close(dev);
    dev = open_sim("sim:s");
    CHECK(!sim_power_is_off("s"));
    for (unsigned b = 0; b < 100; b++) {
        sim_peek("s", (uint64_t)b * BLOCK, back, BLOCK);
        for (unsigned i = 0; i < BLOCK; i++)
            CHECK_EQ(back[i], 1);
    }
    CHECK_EQ(write_tag(dev, 0, 1, 3), 0);
    queue_dev_close(dev);
    CHECK_EQ(sim_destroy("s"), 0);
}

/* Every sector of a survivor is one of the versions since its last flush, never older, and over
 * many losses torn blocks and reordered writes do occur. */
static void unflushed_sectors_are_one_version(void)
{
    unsigned torn = 0, reordered = 0, lost = 0, whole = 0;
    uint8_t *image = blocks(DEV_BYTES / BLOCK);
    struct queue_dev *dev;

    CHECK_EQ(sim_create("s", DEV_BYTES, test_rand(&seed)), 0);
    dev = open_sim("sim:s");
    CHECK_EQ(write_tag(dev, 0, 64, 1), 0);
    CHECK_EQ(queue_flush(dev), 0);
    for (unsigned b = 0; b < 64; b++)
        CHECK_EQ(write_tag(dev, b, 1, 2), 0);
    CHECK_EQ(write_tag(dev, 0, 32, 3), 0);
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(sim_clone("s", "c", test_rand(&seed)), 0);
        sim_peek_durable("c", 0, image, DEV_BYTES);
        bool gap = false;
        for (unsigned b = 0; b < 64; b++) {
            unsigned versions = 0;
            for (unsigned s = 0; s < BLOCK / SIM_SECTOR_BYTES; s++) {
                const uint8_t *sector = image + b * BLOCK + s * SIM_SECTOR_BYTES;
                CHECK(sector[0] >= 1 && sector[0] <= (b < 32 ? 3 : 2));
                CHECK(memcmp(sector, sector + 1, SIM_SECTOR_BYTES - 1) == 0); /* all the same */
                versions |= 1u << sector[0];
            }
            torn += (versions & (versions - 1)) != 0;
            lost += versions == 1u << 1;
            whole += versions == 1u << 2 || versions == 1u << 3;
            reordered += gap && versions != 1u << 1;
            gap |= versions == 1u << 1;
        }
        CHECK_EQ(sim_destroy("c"), 0);
    }
    fprintf(stderr, "of 6400 blocks: %u whole, %u lost, %u torn, %u after a lost one\n", whole,
            lost, torn, reordered);
    CHECK(torn && lost && whole && reordered);
    queue_dev_close(dev);
    CHECK_EQ(sim_destroy("s"), 0);
    free(image);
}

/* A write that completes after a flush was submitted is not covered by it. */
static void flush_covers_what_had_completed(void)
{
    unsigned survived = 0;
    struct queue_dev *dev;
    uint8_t *buf = blocks(1), back[BLOCK];

    memset(buf, 7, BLOCK);
    for (int i = 0; i < 60; i++) {
        struct queue_req reqs[2] = {{.op = QUEUE_WRITE, .off = 0, .buf = buf, .len = BLOCK},
                                    {.op = QUEUE_FLUSH}};
        struct queue *q;
        CHECK_EQ(sim_create("s", DEV_BYTES, test_rand(&seed)), 0);
        dev = open_sim("sim:s");
        CHECK_EQ(queue_borrow(dev, &q), 0);
        CHECK_EQ(queue_run(q, reqs, 2), 0);
        queue_return(dev, q);
        CHECK_EQ(sim_volatile_bytes("s"), BLOCK);
        CHECK_EQ(sim_clone("s", "c", test_rand(&seed)), 0);
        sim_peek_durable("c", 0, back, BLOCK);
        survived += back[0] == 7 && back[BLOCK - 1] == 7;
        queue_dev_close(dev);
        CHECK_EQ(sim_destroy("c"), 0);
        CHECK_EQ(sim_destroy("s"), 0);
    }
    CHECK(survived > 0 && survived < 60);
    free(buf);
}

static void same_seed_same_survivor(void)
{
    uint8_t *one = blocks(DEV_BYTES / BLOCK), *two = blocks(DEV_BYTES / BLOCK);
    struct queue_dev *dev;

    CHECK_EQ(sim_create("s", DEV_BYTES, 42), 0);
    dev = open_sim("sim:s");
    for (unsigned b = 0; b < 200; b++)
        CHECK_EQ(write_tag(dev, b, 2, (uint8_t)b), 0);
    CHECK_EQ(sim_clone("s", "a", 99), 0);
    CHECK_EQ(sim_clone("s", "b", 99), 0);
    sim_peek("a", 0, one, DEV_BYTES);
    sim_peek("b", 0, two, DEV_BYTES);
    CHECK(memcmp(one, two, DEV_BYTES) == 0);
    CHECK_EQ(sim_destroy("b"), 0);
    CHECK_EQ(sim_clone("s", "b", 100), 0);
    sim_peek("b", 0, two, DEV_BYTES);
    CHECK(memcmp(one, two, DEV_BYTES) != 0);
    CHECK_EQ(sim_clone("s", "b", 1), -EEXIST);
    CHECK_EQ(sim_destroy("s"), -EBUSY);
    queue_dev_close(dev);
    CHECK_EQ(sim_destroy("s"), 0);
    CHECK_EQ(sim_destroy("a"), 0);
    CHECK_EQ(sim_destroy("b"), 0);
    CHECK_EQ(sim_destroy("b"), -ENOENT);
    free(one);
    free(two);
}

static void faults_hit_what_they_name(void)
{
    uint8_t back[2 * BLOCK] __attribute__((aligned(4096)));
    struct queue_dev *dev;

    CHECK_EQ(sim_create("s", DEV_BYTES, test_rand(&seed)), 0);
    dev = open_sim("sim:s");
    /* The third and fourth write. */
    sim_fault_add("s", &(struct sim_fault){
                           .ops = 1u << QUEUE_WRITE, .skip = 2, .count = 2, .err = -ENOSPC});
    for (int i = 0; i < 6; i++)
        CHECK_EQ(write_tag(dev, 0, 1, (uint8_t)(i + 1)), i == 2 || i == 3 ? -ENOSPC : 0);
    sim_fault_clear("s");

    /* A bad range, for reads only, for ever. */
    sim_fault_add("s", &(struct sim_fault){
                           .ops = 1u << QUEUE_READ, .off = 8 * BLOCK, .len = BLOCK, .err = -EIO});
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(queue_read(dev, 8 * BLOCK, back, BLOCK), -EIO);
        CHECK_EQ(queue_read(dev, 7 * BLOCK, back, BLOCK), 0);
        CHECK_EQ(queue_read(dev, 9 * BLOCK, back, BLOCK), 0);
        CHECK_EQ(queue_read(dev, 7 * BLOCK, back, 2 * BLOCK), -EIO);
        CHECK_EQ(write_tag(dev, 8, 1, 5), 0);
    }
    sim_fault_clear("s");
    CHECK_EQ(queue_read(dev, 8 * BLOCK, back, BLOCK), 0);

    /* A flush that fails leaves everything volatile, and is the last that counts. */
    sim_fault_add("s", &(struct sim_fault){.ops = 1u << QUEUE_FLUSH, .count = 1, .err = -EIO});
    CHECK(sim_volatile_bytes("s") > 0);
    CHECK_EQ(queue_flush(dev), -EIO);
    CHECK(sim_volatile_bytes("s") > 0);
    CHECK_EQ(queue_flush(dev), -EIO);
    CHECK(sim_volatile_bytes("s") > 0);
    queue_dev_close(dev);
    dev = open_sim("sim:s");
    CHECK_EQ(queue_flush(dev), 0);
    CHECK_EQ(sim_volatile_bytes("s"), 0);

    /* A failing write that moves some sectors, not others. */
    CHECK_EQ(write_tag(dev, 20, 2, 1), 0);
    sim_fault_add("s", &(struct sim_fault){
                           .ops = 1u << QUEUE_WRITE, .count = 1, .err = -EIO, .partial = true});
    CHECK_EQ(write_tag(dev, 20, 2, 9), -EIO);
    sim_peek("s", 20 * BLOCK, back, sizeof(back));
    for (unsigned i = 0; i < sizeof(back); i++)
        CHECK(back[i] == 1 || back[i] == 9);
    queue_dev_close(dev);
    CHECK_EQ(sim_destroy("s"), 0);
}

static void damage_is_durable(void)
{
    uint8_t back[BLOCK] __attribute__((aligned(4096)));
    struct queue_dev *dev;

    CHECK_EQ(sim_create("s", DEV_BYTES, test_rand(&seed)), 0);
    dev = open_sim("sim:s");
    CHECK_EQ(write_tag(dev, 3, 1, 0x10), 0);
    sim_flip_bit("s", 3 * BLOCK + 5, 0);
    CHECK_EQ(queue_flush(dev), 0);
    queue_dev_close(dev);
    dev = open_sim("sim:s");
    CHECK_EQ(queue_read(dev, 3 * BLOCK, back, BLOCK), 0);
    for (unsigned i = 0; i < BLOCK; i++)
        CHECK_EQ(back[i], i == 5 ? 0x11 : 0x10);
    sim_scribble("s", 3 * BLOCK, 16);
    CHECK_EQ(queue_read(dev, 3 * BLOCK, back, BLOCK), 0);
    CHECK_EQ(back[16], 0x10);
    queue_dev_close(dev);
    CHECK_EQ(sim_destroy("s"), 0);
}

/* The power fails at each change of a small workload in turn: what was flushed before is there. */
static void power_fails_everywhere(void)
{
    uint64_t at, same = test_rand(&seed);

    for (at = 0;; at++) {
        unsigned flushed = 0, tag;
        uint8_t back[BLOCK];
        struct queue_dev *dev;

        CHECK_EQ(sim_create("s", DEV_BYTES, same), 0);
        sim_power_cut("s", at);
        dev = open_sim("sim:s");
        for (tag = 1; tag <= 10; tag++) {
            if (write_tag(dev, 5, 1, (uint8_t)tag) < 0 || queue_flush(dev) < 0)
                break;
            flushed = tag;
        }
        bool off = sim_power_is_off("s");
        queue_dev_close(dev);
        dev = open_sim("sim:s");
        sim_peek("s", 5 * BLOCK, back, BLOCK);
        for (unsigned i = 0; i < BLOCK; i++)
            CHECK(back[i] == flushed || back[i] == flushed + 1);
        queue_dev_close(dev);
        CHECK_EQ(sim_destroy("s"), 0);
        if (!off)
            break;
    }
    CHECK_EQ(at, 20);
}

int main(void)
{
    seed = test_seed();
    RUN(flushed_data_survives);
    RUN(unflushed_sectors_are_one_version);
    RUN(flush_covers_what_had_completed);
    RUN(same_seed_same_survivor);
    RUN(faults_hit_what_they_name);
    RUN(damage_is_durable);
    RUN(power_fails_everywhere);
    return 0;
}
