/* SPDX-License-Identifier: Apache-2.0 */
/* What every C test uses: checks that name file, line and values; a printed seed; a scratch dir. */
#ifndef DFE_TEST_H
#define DFE_TEST_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(cond) \
    do { \
        if (!(cond)) { \
            fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #cond); \
            abort(); \
        } \
    } while (0)

/* Both sides as long long: CHECK_EQ(func(), -ENOENT). */
#define CHECK_EQ(a, b) \
    do { \
        long long a_ = (long long)(a), b_ = (long long)(b); \
        if (a_ != b_) { \
            fprintf(stderr, "%s:%d: %s is %lld, expected %s = %lld\n", __FILE__, __LINE__, #a, \
                    a_, #b, b_); \
            abort(); \
        } \
    } while (0)

#define RUN(fn) \
    do { \
        fprintf(stderr, "-- %s\n", #fn); \
        fn(); \
    } while (0)

/* xorshift64*: seeded from DFE_SEED or the clock, printed, so that a failure replays. */
static inline uint64_t test_rand(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545F4914F6CDD1Dull;
}

uint64_t test_seed(void);
/* A folder of this test's own under $TMPDIR or /tmp, removed at exit. */
const char *test_dir(void);

#endif
