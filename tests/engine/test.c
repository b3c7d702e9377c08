/* SPDX-License-Identifier: Apache-2.0 */
/* Seed and scratch folder of the C tests. */
#include "test.h"

#include <ftw.h>
#include <time.h>

static char dir[256];

uint64_t test_seed(void)
{
    const char *env = getenv("DFE_SEED");
    uint64_t seed = env ? strtoull(env, NULL, 0) : (uint64_t)time(NULL) * 2654435761u + getpid();

    if (seed == 0)
        seed = 1;
    fprintf(stderr, "seed: DFE_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void remove_dir(void)
{
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *test_dir(void)
{
    if (dir[0] == '\0') {
        const char *tmp = getenv("TMPDIR");
        snprintf(dir, sizeof(dir), "%s/dfe-test-XXXXXX", tmp ? tmp : "/tmp");
        CHECK(mkdtemp(dir));
        atexit(remove_dir);
    }
    return dir;
}
