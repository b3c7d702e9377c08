/* SPDX-License-Identifier: Apache-2.0 */
/* A host over a small pool, and requests as a client makes them. */
#include "dispatch_rig.h"

#include <sys/stat.h>

#include "api_fixture.h"

struct host *rig_open(const char *path, uint64_t inval_ms, struct keep *keep)
{
    struct host_opts opts = {.size = sizeof(opts),
                             .path = path,
                             .arena_bytes = 64u << 20,
                             .no_hugepages = true,
                             .keep = keep,
                             .inval_ms = inval_ms};
    struct dfe_cred cred = {.uid = geteuid(), .gid = getegid()};
    struct host *host;

    CHECK_EQ(api_create(path, 64u << 20), 0);
    CHECK_EQ(host_open(&opts, &host), 0);
    CHECK_EQ(dfe_cont_create(host_pool(host), "c", 1, &cred, 0777), 0);
    return host;
}

void rig_close(struct host *host, const char *path)
{
    CHECK_EQ(host_close(host), 0);
    CHECK_EQ(dfe_pool_destroy(path, 0), 0);
}

struct session *rig_session(struct host *host, uint32_t role, uid_t uid, gid_t gid, uint64_t id)
{
    struct session_who who = {.role = role, .uid = uid, .gid = gid};
    struct session *s;

    CHECK_EQ(session_new(host, &who, id, &s), 0);
    return s;
}

int64_t rig_do(struct session *s, struct rig_call *call)
{
    struct request req = {.e = call->e, .push = call->push, .reply = call->reply};
    int ret;

    if (!req.e.reply_cap)
        req.e.reply_cap = sizeof(call->reply);
    ret = dispatch(s, &req, false, &call->cqe);
    call->waited = ret == -EINPROGRESS;
    if (call->waited)
        ret = dispatch(s, &req, true, &call->cqe);
    CHECK_EQ(ret, 0);
    CHECK(call->cqe.reply_len <= req.e.reply_cap);
    return call->cqe.result;
}

int64_t rig_simple(struct session *s, uint32_t op, uint32_t handle, uint64_t ino, uint64_t off,
                   uint32_t arg)
{
    struct rig_call call = {
        .e = {.op = op, .handle = handle, .ino = ino, .off = off, .arg = arg}};

    return rig_do(s, &call);
}

static void take_attr(const struct rig_call *call, struct dfe_attr *out)
{
    if (!out || call->cqe.result < 0)
        return;
    CHECK_EQ(call->cqe.reply_len, sizeof(*out));
    memcpy(out, call->reply, sizeof(*out));
}

int64_t rig_name(struct session *s, uint32_t op, uint32_t handle, uint64_t dir, const char *name,
                 unsigned flags, struct dfe_attr *out)
{
    struct rig_call call = {.e = {.op = op,
                                  .handle = handle,
                                  .ino = dir,
                                  .flags = flags,
                                  .push_len = (uint32_t)strlen(name)},
                            .push = name};

    rig_do(s, &call);
    take_attr(&call, out);
    return call.cqe.result;
}

int64_t rig_make(struct session *s, uint32_t handle, uint64_t dir, const char *name, uint32_t mode,
                 unsigned flags, struct dfe_attr *out)
{
    struct dfe_cred cred = {.uid = geteuid(), .gid = getegid()};
    uint8_t push[sizeof(cred) + 256];
    struct rig_call call = {.e = {.op = S_ISDIR(mode) ? PROTO_MKDIR : PROTO_MKNOD,
                                  .handle = handle,
                                  .ino = dir,
                                  .flags = flags,
                                  .arg = S_ISDIR(mode) ? mode & 07777 : mode,
                                  .push_len = (uint32_t)(sizeof(cred) + strlen(name))},
                            .push = push};

    memcpy(push, &cred, sizeof(cred));
    memcpy(push + sizeof(cred), name, strlen(name));
    rig_do(s, &call);
    take_attr(&call, out);
    return call.cqe.result;
}

int64_t rig_read(struct session *s, uint32_t handle, uint64_t ino, uint64_t off, void *dst,
                 uint32_t len)
{
    struct rig_call call = {
        .e = {.op = PROTO_READ, .handle = handle, .ino = ino, .off = off, .len = len}};

    rig_do(s, &call);
    if (call.cqe.result >= 0) {
        CHECK_EQ(call.cqe.reply_len, call.cqe.result);
        memcpy(dst, call.reply, (size_t)call.cqe.result);
    }
    return call.cqe.result;
}

int64_t rig_write(struct session *s, uint32_t handle, uint64_t ino, uint64_t off, const void *src,
                  uint32_t len, unsigned flags, uint64_t *at)
{
    struct rig_call call = {.e = {.op = PROTO_WRITE,
                                  .handle = handle,
                                  .ino = ino,
                                  .off = off,
                                  .flags = flags,
                                  .push_len = len},
                            .push = src};

    rig_do(s, &call);
    if (at)
        *at = call.cqe.value;
    return call.cqe.result;
}

int64_t rig_getattr(struct session *s, uint32_t handle, uint64_t ino, struct dfe_attr *out)
{
    struct rig_call call = {.e = {.op = PROTO_GETATTR, .handle = handle, .ino = ino}};

    rig_do(s, &call);
    take_attr(&call, out);
    return call.cqe.result;
}

int64_t rig_setattr(struct session *s, uint32_t handle, uint64_t ino, const struct dfe_attr *in,
                    unsigned set)
{
    struct rig_call call = {.e = {.op = PROTO_SETATTR,
                                  .handle = handle,
                                  .ino = ino,
                                  .arg = set,
                                  .push_len = sizeof(*in)},
                            .push = in};

    return rig_do(s, &call);
}

int64_t rig_fs(struct session *s, uint32_t handle, const char *label)
{
    struct rig_call call = {.e = {.op = PROTO_FS_OPEN,
                                  .handle = handle,
                                  .arg = PROTO_NO_HANDLE,
                                  .push_len = (uint32_t)strlen(label)},
                            .push = label};

    return rig_do(s, &call);
}
