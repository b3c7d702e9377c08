/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C and SipHash: published vectors, alignments, chaining, hardware against tables. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/hash.h"
#include "test.h"

static uint64_t seed;

/* RFC 3720, B.4 and the usual check value. */
static void crc_vectors(void)
{
    uint8_t b[32];

    CHECK_EQ(base_crc32c(0, "", 0), 0);
    CHECK_EQ(base_crc32c(0, "123456789", 9), 0xE3069283u);
    memset(b, 0, sizeof(b));
    CHECK_EQ(base_crc32c(0, b, 32), 0x8A9136AAu);
    memset(b, 0xff, sizeof(b));
    CHECK_EQ(base_crc32c(0, b, 32), 0x62A8AB43u);
    for (int i = 0; i < 32; i++)
        b[i] = (uint8_t)i;
    CHECK_EQ(base_crc32c(0, b, 32), 0x46DD794Eu);
    CHECK_EQ(base_crc32c_portable(0, b, 32), 0x46DD794Eu);
}

/* The definition, one bit at a time. */
static uint32_t crc_slow(uint32_t crc, const uint8_t *p, size_t n)
{
    crc = ~crc;
    while (n--) {
        crc ^= *p++;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0x82F63B78u & -(crc & 1));
    }
    return ~crc;
}

static void crc_lengths_and_alignments(void)
{
    static uint8_t b[20000];

    for (size_t i = 0; i < sizeof(b); i++)
        b[i] = (uint8_t)test_rand(&seed);
    for (size_t n = 0; n < 1200; n++) {
        size_t at = test_rand(&seed) % 64;
        uint32_t want = crc_slow(0, b + at, n);
        CHECK_EQ(base_crc32c(0, b + at, n), want);
        CHECK_EQ(base_crc32c_portable(0, b + at, n), want);
    }
    for (int i = 0; i < 3000; i++) {
        size_t at = test_rand(&seed) % 64, n = test_rand(&seed) % (sizeof(b) - 64);
        uint32_t start = (uint32_t)test_rand(&seed);
        CHECK_EQ(base_crc32c(start, b + at, n), base_crc32c_portable(start, b + at, n));
    }
}

static void crc_chains(void)
{
    static uint8_t b[9000];

    for (size_t i = 0; i < sizeof(b); i++)
        b[i] = (uint8_t)test_rand(&seed);
    uint32_t whole = base_crc32c(0, b, sizeof(b));
    for (int i = 0; i < 500; i++) {
        size_t cut = test_rand(&seed) % (sizeof(b) + 1);
        uint32_t first = base_crc32c(0, b, cut);
        CHECK_EQ(base_crc32c(first, b + cut, sizeof(b) - cut), whole);
    }
}

/* Reported, not asserted. */
static void crc_speed(void)
{
    static uint8_t b[4096] __attribute__((aligned(4096)));
    const int rounds = 200000;
    uint32_t crc = 0;
    uint64_t t = base_mono_ns();

    for (int i = 0; i < rounds; i++)
        crc = base_crc32c(crc, b, sizeof(b));
    t = base_mono_ns() - t;
    fprintf(stderr, "crc32c of 4 KiB: %.1f GB/s (%08x)\n",
            (double)rounds * sizeof(b) / (double)t, crc);
}

/* Key and data 00 01 02 ...; the first is the vector of the Rust core library's tests. */
static void siphash_vectors(void)
{
    static const struct {
        size_t len;
        uint64_t sum;
    } want[] = {
        {0, 0xabac0158050fc4dcull}, {1, 0xc9f49bf37d57ca93ull},  {7, 0xd3927d989bb11140ull},
        {8, 0x369095118d299a8eull}, {15, 0xd320d86d2a519956ull}, {63, 0x9d199062b7bbb3a8ull},
    };
    uint8_t key[16], data[65];

    for (int i = 0; i < 16; i++)
        key[i] = (uint8_t)i;
    for (int at = 0; at < 2; at++) {
        for (int i = 0; i < 64; i++)
            data[at + i] = (uint8_t)i;
        for (size_t i = 0; i < DFE_ARRAY_LEN(want); i++)
            CHECK_EQ(base_siphash(key, data + at, want[i].len), want[i].sum);
    }
}

int main(void)
{
    seed = test_seed();
    RUN(crc_vectors);
    RUN(crc_lengths_and_alignments);
    RUN(crc_chains);
    RUN(crc_speed);
    RUN(siphash_vectors);
    return 0;
}
