/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, creating and locking a regular file or block device, for the backends that use one. */
#ifndef DFE_QUEUE_FILE_H
#define DFE_QUEUE_FILE_H

#include "queue/queue_backend.h"

/* Descriptor (>= 0) or a negative errno with its message; sets dev->info.direct and size_bytes.
 * The lock belongs to the description that does the I/O, so that it ends with the last request. */
int queue_file_open(struct queue_dev *dev, const char *path, const struct queue_dev_opts *opts);

/* Performs the request's rest by an ordinary system call; returns what queue_done takes. */
int64_t queue_file_perform(int fd, const struct queue_req *req);

#endif
