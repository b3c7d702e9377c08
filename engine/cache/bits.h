/* SPDX-License-Identifier: Apache-2.0 */
/* A bit for each 4 KiB block of a slot: 256 at most. */
#ifndef DFE_CACHE_BITS_H
#define DFE_CACHE_BITS_H

#include <stdbool.h>
#include <stdint.h>

#define BITS 256u

struct bits {
    uint64_t w[BITS / 64];
};

/* Ones at [i, i + n) of one word's 64; word is the word's number. */
static inline uint64_t bits_mask(unsigned word, unsigned i, unsigned n)
{
    unsigned lo = word * 64, hi = lo + 64;
    unsigned from = i > lo ? i : lo, to = i + n < hi ? i + n : hi;

    if (from >= to)
        return 0;
    return (to - from == 64 ? ~0ull : (1ull << (to - from)) - 1) << (from - lo);
}

static inline bool bits_test(const struct bits *b, unsigned i)
{
    return b->w[i / 64] >> (i % 64) & 1;
}

static inline void bits_set(struct bits *b, unsigned i, unsigned n)
{
    for (unsigned k = i / 64; k < BITS / 64 && k * 64 < i + n; k++)
        b->w[k] |= bits_mask(k, i, n);
}

static inline void bits_clear(struct bits *b, unsigned i, unsigned n)
{
    for (unsigned k = i / 64; k < BITS / 64 && k * 64 < i + n; k++)
        b->w[k] &= ~bits_mask(k, i, n);
}

static inline bool bits_any(const struct bits *b)
{
    return (b->w[0] | b->w[1] | b->w[2] | b->w[3]) != 0;
}

static inline unsigned bits_count(const struct bits *b)
{
    unsigned n = 0;

    for (unsigned k = 0; k < BITS / 64; k++)
        n += (unsigned)__builtin_popcountll(b->w[k]);
    return n;
}

/* Runs of ones. */
static inline unsigned bits_runs(const struct bits *b)
{
    unsigned n = 0;
    uint64_t carry = 0;

    for (unsigned k = 0; k < BITS / 64; k++) {
        n += (unsigned)__builtin_popcountll(b->w[k] & ~(b->w[k] << 1 | carry));
        carry = b->w[k] >> 63;
    }
    return n;
}

/* First bit >= i that is `one`; BITS: none. */
static inline unsigned bits_next(const struct bits *b, unsigned i, bool one)
{
    for (unsigned k = i / 64; k < BITS / 64; k++) {
        uint64_t w = (one ? b->w[k] : ~b->w[k]) & bits_mask(k, i, BITS - i);
        if (w)
            return k * 64 + (unsigned)__builtin_ctzll(w);
    }
    return BITS;
}

#endif
