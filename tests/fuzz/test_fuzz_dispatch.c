/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dispatcher's fuzzer without coverage feedback: random inputs from a seed for DFE_SECONDS, or
 * the files that are named. A failure is replayed by its seed; each input has one of its own, which
 * is printed before it runs where DFE_VERBOSE is set.
 */
#include <time.h>

#include "../engine/test.h"
#include "fuzz_dispatch.h"

#define INPUT_BYTES 4096u

/* The address sanitizer sees what goes wrong, so its run is the long one; the thread sanitizer must
 * not see the race that is meant. */
#if defined(__SANITIZE_ADDRESS__)
enum { SECONDS = 50, HOSTILE = true };
#elif defined(__SANITIZE_THREAD__)
enum { SECONDS = 15, HOSTILE = false };
#else
enum { SECONDS = 5, HOSTILE = true };
#endif

static void run_file(const char *path)
{
    static uint8_t data[1u << 20];
    FILE *f = fopen(path, "rb");
    size_t len;

    CHECK(f != NULL);
    len = fread(data, 1, sizeof(data), f);
    fclose(f);
    fuzz_one(data, len, HOSTILE);
}

static void run_seed(uint64_t seed)
{
    uint8_t data[INPUT_BYTES];
    uint64_t rng = seed | 1;
    size_t len = 64 + test_rand(&rng) % (sizeof(data) - 64);

    for (size_t i = 0; i < len; i++)
        data[i] = (uint8_t)(test_rand(&rng) >> 32);
    if (getenv("DFE_VERBOSE"))
        fprintf(stderr, "input %llu\n", (unsigned long long)seed);
    fuzz_one(data, len, HOSTILE);
}

int main(int argc, char **argv)
{
    const char *seconds = getenv("DFE_SECONDS");
    time_t end = time(NULL) + (seconds ? atol(seconds) : SECONDS);
    uint64_t seed;
    unsigned n = 0;

    for (int i = 1; i < argc; i++)
        run_file(argv[i]);
    if (argc == 1) {
        seed = test_seed();
        while (time(NULL) < end)
            run_seed(seed + n++);
        fprintf(stderr, "%u inputs\n", n);
    }
    fuzz_end();
    return 0;
}
