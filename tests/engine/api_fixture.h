/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the public API share: a small pool on disk, and one container in it. */
#ifndef DFE_TEST_API_FIXTURE_H
#define DFE_TEST_API_FIXTURE_H

#include <dfe.h>

#include "test.h"

static inline const char *api_path(const char *name)
{
    static char path[512];

    snprintf(path, sizeof(path), "%s/%s", test_dir(), name);
    return path;
}

static inline int api_create(const char *path, uint64_t size_bytes)
{
    struct dfe_pool_create_opts opts = {
        .size = sizeof(opts), .path = path, .label = "test", .size_bytes = size_bytes};

    return dfe_pool_create(&opts);
}

static inline int api_open(const char *path, unsigned read_only, struct dfe_pool **pool)
{
    struct dfe_pool_open_opts opts = {.size = sizeof(opts),
                                      .path = path,
                                      .arena_bytes = 64u << 20,
                                      .read_only = read_only,
                                      .no_hugepages = 1};

    return dfe_pool_open(&opts, pool);
}

/* A pool of 64 MiB with the container "c", both open. */
static inline void api_setup(const char *path, int posix, struct dfe_pool **pool,
                             struct dfe_cont **cont)
{
    struct dfe_cred cred = {.uid = 7, .gid = 8};

    CHECK_EQ(api_create(path, 64u << 20), 0);
    CHECK_EQ(api_open(path, 0, pool), 0);
    CHECK_EQ(dfe_cont_create(*pool, "c", posix, &cred, 0755), 0);
    CHECK_EQ(dfe_cont_open(*pool, "c", NULL, cont), 0);
}

static inline void api_teardown(const char *path, struct dfe_pool *pool, struct dfe_cont *cont)
{
    CHECK_EQ(dfe_cont_close(cont), 0);
    CHECK_EQ(dfe_pool_close(pool), 0);
    CHECK_EQ(dfe_pool_destroy(path, 0), 0);
}

#endif
