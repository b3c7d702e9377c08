/* SPDX-License-Identifier: Apache-2.0 */
/* SipHash-1-3 (Aumasson and Bernstein): one round a word, three at the end, 64-bit result. */
#include "base/hash.h"

#include "base/words.h"

struct sip {
    uint64_t v0, v1, v2, v3;
};

static inline uint64_t rotl(uint64_t x, int n)
{
    return (x << n) | (x >> (64 - n));
}

static inline void sip_round(struct sip *s)
{
    s->v0 += s->v1;
    s->v1 = rotl(s->v1, 13) ^ s->v0;
    s->v0 = rotl(s->v0, 32);
    s->v2 += s->v3;
    s->v3 = rotl(s->v3, 16) ^ s->v2;
    s->v0 += s->v3;
    s->v3 = rotl(s->v3, 21) ^ s->v0;
    s->v2 += s->v1;
    s->v1 = rotl(s->v1, 17) ^ s->v2;
    s->v2 = rotl(s->v2, 32);
}

static inline void sip_word(struct sip *s, uint64_t word)
{
    s->v3 ^= word;
    sip_round(s);
    s->v0 ^= word;
}

uint64_t base_siphash(const uint8_t key[16], const void *data, size_t len_bytes)
{
    const uint8_t *p = data;
    uint64_t k0 = get_le64(key), k1 = get_le64(key + 8);
    uint64_t last = (uint64_t)len_bytes << 56;
    struct sip s = {
        .v0 = k0 ^ 0x736f6d6570736575ull,
        .v1 = k1 ^ 0x646f72616e646f6dull,
        .v2 = k0 ^ 0x6c7967656e657261ull,
        .v3 = k1 ^ 0x7465646279746573ull,
    };

    for (; len_bytes >= 8; p += 8, len_bytes -= 8)
        sip_word(&s, get_le64(p));
    for (size_t i = 0; i < len_bytes; i++)
        last |= (uint64_t)p[i] << (8 * i);
    sip_word(&s, last);
    s.v2 ^= 0xff;
    for (int i = 0; i < 3; i++)
        sip_round(&s);
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}
