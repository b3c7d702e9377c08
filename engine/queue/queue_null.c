/* SPDX-License-Identifier: Apache-2.0 */
/* Backend `null`: every request completes at once and moves nothing; measures the layers above. */
#include <errno.h>

#include "base/log.h"
#include "queue/queue_backend.h"

#define DEFAULT_BYTES (1ull << 40)

static int null_open(struct queue_dev *dev, const char *name, const struct queue_dev_opts *opts)
{
    if (*name)
        return base_refuse(-EINVAL, "device %s: null: takes no name", dev->uri);
    dev->info.direct = true;
    dev->info.size_bytes = opts->create_bytes ? opts->create_bytes : DEFAULT_BYTES;
    return 0;
}

static void null_close(struct queue_dev *dev)
{
}

static int null_queue_open(struct queue *q)
{
    return 0;
}

static void null_queue_close(struct queue *q)
{
}

static void null_submit(struct queue *q, struct queue_req *req)
{
    queue_done(q, req, (int64_t)queue_rest(req).len);
}

static int null_poll(struct queue *q, bool wait)
{
    return 0;
}

const struct queue_backend queue_null = {
    .scheme = "null",
    .name = "null",
    .depth = 256,
    .open = null_open,
    .close = null_close,
    .queue_open = null_queue_open,
    .queue_close = null_queue_close,
    .submit = null_submit,
    .poll = null_poll,
};
