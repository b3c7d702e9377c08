/* SPDX-License-Identifier: Apache-2.0 */
/* What the dispatcher's tests share: a host over a small pool, and requests as a client makes them.
 */
#ifndef DFE_TEST_DISPATCH_RIG_H
#define DFE_TEST_DISPATCH_RIG_H

#include <dfe.h>
#include <stdbool.h>

#include "service/dispatch.h"
#include "test.h"

#define RIG_ROOT 1u
#define RIG_REPLY (64u << 10)

/* A host over a new pool of 64 MiB that holds the container "c", whose root anybody may write. */
struct host *rig_open(const char *path, uint64_t inval_ms, struct keep *keep);
void rig_close(struct host *host, const char *path);
/* The uid of the pool's owner where it is 0. */
struct session *rig_session(struct host *host, uint32_t role, uid_t uid, gid_t gid, uint64_t id);

/* One request of one session, by one thread at a time. */
struct rig_call {
    struct proto_sqe e;
    const void *push;
    struct proto_cqe cqe;
    bool waited;                               /* it was refused where it must not wait */
    uint8_t reply[RIG_REPLY] __attribute__((aligned(64)));
};
/* First as on a thread that must not wait, then on one that may: the result. */
int64_t rig_do(struct session *s, struct rig_call *call);
int64_t rig_name(struct session *s, uint32_t op, uint32_t handle, uint64_t dir, const char *name,
                 unsigned flags, struct dfe_attr *out); /* LOOKUP, UNLINK, RMDIR */
int64_t rig_make(struct session *s, uint32_t handle, uint64_t dir, const char *name, uint32_t mode,
                 unsigned flags, struct dfe_attr *out); /* MKNOD or MKDIR by mode's type */
int64_t rig_read(struct session *s, uint32_t handle, uint64_t ino, uint64_t off, void *dst,
                 uint32_t len);
int64_t rig_write(struct session *s, uint32_t handle, uint64_t ino, uint64_t off, const void *src,
                  uint32_t len, unsigned flags, uint64_t *at);
int64_t rig_getattr(struct session *s, uint32_t handle, uint64_t ino, struct dfe_attr *out);
int64_t rig_setattr(struct session *s, uint32_t handle, uint64_t ino, const struct dfe_attr *in,
                    unsigned set);
int64_t rig_simple(struct session *s, uint32_t op, uint32_t handle, uint64_t ino, uint64_t off,
                   uint32_t arg);
/* A handle of the container's file system. */
int64_t rig_fs(struct session *s, uint32_t handle, const char *label);

#endif
