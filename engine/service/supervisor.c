/* SPDX-License-Identifier: Apache-2.0 */
/* Supervisor of a pool's worker process. */
#include <dfe.h>
#include <errno.h>

#include "base/log.h"
#include "service/service.h"

int dfe_service_run(const struct dfe_service_opts *opts)
{
    return base_refuse(-ENOTSUP, "no service for %s", opts->path);
}
