/* SPDX-License-Identifier: Apache-2.0 */
/* A program that is killed: reads and writes through descriptors what victims.py describes.
 *
 *     victim MOUNTPOINT PLACE SEED ACKS SHARED
 *
 * SHARED is a copy of the shared file, to compare with. It ends by itself only when something is
 * wrong. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCK = 4096, BLOCKS = 48, ROW = BLOCKS + 2, PLACES = 4, SHARED_BYTES = 4 << 20 };
#define MASK 0x5A5AA5A53C3CC3C3u
#define MUST(cond)                                                                                 \
    ((cond) ? (void)0 : (fprintf(stderr, "victim: line %d: %m\n", __LINE__), exit(1)))

static uint64_t state;

static uint32_t roll(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static void fill(uint64_t *words, uint64_t place, uint64_t number, uint64_t version)
{
    for (unsigned i = 0; i < BLOCK / 8; i += 4) {
        words[i] = place;
        words[i + 1] = number;
        words[i + 2] = version;
        words[i + 3] = version ^ MASK;
    }
}

static void own_block(int fd, uint64_t place, volatile uint64_t *acks)
{
    uint64_t number = roll(BLOCKS), is[BLOCK / 8], wanted[BLOCK / 8];
    off_t off = (off_t)number * BLOCK;

    if (roll(2)) {
        fill(wanted, place, number, acks[number] + 1);
        MUST(pwrite(fd, wanted, BLOCK, off) == BLOCK);
        acks[number]++;
        return;
    }
    memset(wanted, 0, BLOCK);
    if (acks[number])
        fill(wanted, place, number, acks[number]);
    MUST(pread(fd, is, BLOCK, off) == BLOCK);
    MUST(memcmp(is, wanted, BLOCK) == 0);
}

int main(int argc, char **argv)
{
    static uint8_t buf[65536];
    char name[4096];
    uint64_t place, *acks;
    const uint8_t *expected;
    int mine, shared, fd;

    if (argc != 6)
        return 2;
    place = strtoull(argv[2], NULL, 10);
    state = strtoull(argv[3], NULL, 10);
    fd = open(argv[4], O_RDWR);
    acks = mmap(NULL, PLACES * ROW * 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(fd >= 0 && acks != MAP_FAILED);
    fd = open(argv[5], O_RDONLY);
    expected = mmap(NULL, SHARED_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    MUST(fd >= 0 && expected != MAP_FAILED);
    snprintf(name, sizeof(name), "%s/file-%" PRIu64, argv[1], place);
    mine = open(name, O_RDWR);
    snprintf(name, sizeof(name), "%s/shared", argv[1]);
    shared = open(name, O_RDONLY);
    MUST(mine >= 0 && shared >= 0);
    for (;;) {
        size_t len = 1 + roll(sizeof(buf));
        off_t off = roll(SHARED_BYTES - sizeof(buf));
        MUST(pread(shared, buf, len, off) == (ssize_t)len);
        MUST(memcmp(buf, expected + off, len) == 0);
        own_block(mine, place, acks + place * ROW);
        if (roll(200) == 0)
            MUST(fdatasync(mine) == 0);
    }
}
