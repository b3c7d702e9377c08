/* SPDX-License-Identifier: Apache-2.0 */
/* What matters where a file system has several faces. In this process it has one. */
#include <errno.h>

#include "api/api.h"

int dfe_fs_mount(struct dfe_fs *fs, int read_only, uint64_t *generation)
{
    *generation = 0;
    return 0;
}

int dfe_fs_inval_next(struct dfe_fs *fs, uint64_t done, struct dfe_inval *out)
{
    return -ENOTSUP;
}

void dfe_fs_inval_stop(struct dfe_fs *fs)
{
}

int dfe_service_query(struct dfe_pool *pool, struct dfe_service_info *out)
{
    return base_refuse(-ENOTSUP, "the pool is open in this process: no service");
}
