/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File data of the public API behind a session.
 *
 * Reads copy straight out of the engine's memory by lease and need no message where the lease is
 * known; what has no lease (holes, other read domains, no room in the engine's tables) is asked
 * for. A pin is a loan of the engine's, or where none is to be had a copy: callers see no
 * difference. Writes are pushed; one that is longer than a request is several, and others may see
 * the state between them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/remote.h"
#include "base/limits.h"

#define READ_PIECE_BYTES (1u << 20)

static int64_t ask(struct remote_fs *fs, struct client_call *call)
{
    call->sqe.handle = fs->handle;
    return remote_ask(fs->cont->pool, call);
}

/* -- reading ------------------------------------------------------------------------------------
 */

/* Bytes by one lease; 0 at the end of the file, -ESTALE where it is no good. *end: they were the
 * file's last. */
static ssize_t read_by(struct remote_fs *fs, const struct proto_lease *lease, uint64_t off,
                       void *dst, size_t len, bool *end)
{
    struct client *client = fs->cont->pool->client;
    ssize_t n = client_lease_read(client, lease, off, dst, len);
    struct proto_record record;

    if (n == 0 || (n > 0 && (size_t)n < len &&
                   client_record_read(client, lease->record, lease->ino, &record) == 0 &&
                   record.size <= off + (uint64_t)n))
        *end = true;
    return n;
}

/* -ESTALE: this has to be asked for. */
static ssize_t read_by_lease(struct remote_fs *fs, uint64_t ino, uint64_t off, void *dst,
                             size_t len, unsigned flags, bool *end)
{
    struct client *client = fs->cont->pool->client;
    uint64_t epoch = client_epoch(client);
    struct client_call call = {
        .sqe = {.op = PROTO_LEASE, .ino = ino, .off = off, .flags = flags},
    };
    struct proto_lease lease;
    int64_t ret;

    if (leases_find(fs->leases, epoch, ino, off, &lease)) {
        ssize_t n = read_by(fs, &lease, off, dst, len, end);

        if (n >= 0)
            return n;
    }
    if (atomic_load_explicit(&fs->no_leases, memory_order_relaxed))
        return -ESTALE;
    call.sqe.handle = fs->handle;
    ret = remote_ask_for(fs->cont->pool, &call, &lease, sizeof(lease));
    if (ret == -EINPROGRESS || ret == -EOWNERDEAD)
        return (ssize_t)ret;
    if (ret == -ENOTSUP || ret == -EACCES)
        atomic_store(&fs->no_leases, true);
    if (ret < 0 || !client_map_extent(client, lease.extent, lease.stamp))
        return -ESTALE;
    leases_add(fs->leases, epoch, &lease);
    return read_by(fs, &lease, off, dst, len, end);
}

static ssize_t read_by_message(struct remote_fs *fs, uint64_t ino, uint64_t off, void *dst,
                               size_t len, unsigned flags, bool *end)
{
    size_t n = len < READ_PIECE_BYTES ? len : READ_PIECE_BYTES;
    struct client_call call = {
        .sqe = {.op = PROTO_READ, .ino = ino, .off = off, .len = (uint32_t)n, .flags = flags},
        .reply_cap = n,
    };
    int64_t ret = ask(fs, &call);

    if (ret < 0)
        return (ssize_t)ret;
    ret = (int64_t)remote_take(&call, dst, n);
    *end = (size_t)ret < n;
    return (ssize_t)ret;
}

ssize_t remote_fs_read(struct dfe_fs *handle, uint64_t ino, uint64_t off, void *dst, size_t len,
                       unsigned flags)
{
    struct remote_fs *fs = remote_fs(handle);
    size_t done = 0;
    bool end = false;
    int ret = remote_alive(fs->cont->pool);

    if (ret < 0)
        return ret;
    do {
        uint8_t *to = (uint8_t *)dst + done;
        ssize_t n = -ESTALE;

        if (len > 0)
            n = read_by_lease(fs, ino, off + done, to, len - done, flags, &end);
        if (n == -ESTALE)
            n = read_by_message(fs, ino, off + done, to, len - done, flags, &end);
        if (n < 0)
            return n;
        done += (size_t)n;
    } while (done < len && !end);
    base_clear_error(); /* of leases that were not to be had */
    return (ssize_t)done;
}

/* -- writing ------------------------------------------------------------------------------------
 */

ssize_t remote_fs_write(struct dfe_fs *handle, uint64_t ino, uint64_t off, const void *src,
                        size_t len, unsigned flags, uint64_t *at)
{
    struct remote_fs *fs = remote_fs(handle);
    size_t max = fs->cont->pool->push_bytes, done = 0;

    do {
        struct iovec push = {
            .iov_base = (uint8_t *)(uintptr_t)src + done,
            .iov_len = len - done < max ? len - done : max,
        };
        struct client_call call = {
            .sqe = {.op = PROTO_WRITE,
                    .ino = ino,
                    .off = off + done,
                    .len = (uint32_t)push.iov_len,
                    .flags = flags},
            .push = &push,
            .n_push = 1,
        };
        int64_t n = ask(fs, &call);

        if (n < 0)
            return done ? (ssize_t)done : (ssize_t)n;
        if (done == 0 && at)
            *at = call.cqe.value;
        done += (size_t)n;
        if (flags & DFE_APPEND || (size_t)n < push.iov_len)
            break;
        flags &= ~(unsigned)DFE_NOWAIT; /* it has begun, and has to end */
    } while (done < len);
    return (ssize_t)done;
}

/* -- loans --------------------------------------------------------------------------------------
 */

struct loan {
    uint64_t number;
    void *copy; /* in place of a loan */
};

static void give_back(struct remote_fs *fs, const struct loan *loan)
{
    struct remote_pool *pool = fs->cont->pool;
    struct client_call call = {.sqe = {.op = PROTO_DROP, .off = loan->number}};

    atomic_fetch_sub(&pool->loans, 1);
    /* One of an earlier worker ended with it, and this one does not know its number: its memory
     * stays as long as we map it. */
    if (!atomic_load(&pool->forked))
        ask(fs, &call);
}

/* *out is empty at the end of the file. -ENOBUFS and the like: a copy has to do. */
static int64_t borrow(struct remote_fs *fs, uint64_t ino, uint64_t off, size_t len, unsigned flags,
                      struct loan *loan, struct dfe_pin *out)
{
    struct client *client = fs->cont->pool->client;
    struct client_call call = {
        .sqe = {.op = PROTO_LOAN,
                .handle = fs->handle,
                .ino = ino,
                .off = off,
                .len = len < UINT32_MAX ? (uint32_t)len : UINT32_MAX,
                .flags = flags},
    };
    struct proto_lease lease;
    const uint8_t *base;
    uint64_t skip;
    int64_t ret;

    ret = remote_ask_for(fs->cont->pool, &call, &lease, sizeof(lease));
    if (ret < 0 || lease.len == 0)
        return ret;
    loan->number = call.cqe.value;
    atomic_fetch_add(&fs->cont->pool->loans, 1);
    base = client_map_extent(client, lease.extent, lease.stamp);
    skip = off - lease.file_off;
    if (!base || off < lease.file_off || skip >= lease.len) {
        give_back(fs, loan);
        return -ENOBUFS;
    }
    out->ptr = base + lease.extent_off + skip;
    out->len = lease.len - skip < len ? lease.len - skip : len;
    return 0;
}

static int64_t copy(struct remote_fs *fs, uint64_t ino, uint64_t off, size_t len, unsigned flags,
                    struct loan *loan, struct dfe_pin *out)
{
    size_t n = len < DFE_SLOT_MAX_BYTES ? len : DFE_SLOT_MAX_BYTES;
    ssize_t got;

    loan->copy = malloc(n);
    if (!loan->copy)
        return -ENOMEM;
    got = remote_fs_read(&fs->dfe, ino, off, loan->copy, n, flags);
    if (got <= 0) {
        free(loan->copy);
        return got;
    }
    out->ptr = loan->copy;
    out->len = (size_t)got;
    return 0;
}

int remote_fs_pin(struct dfe_fs *handle, uint64_t ino, uint64_t off, size_t len, unsigned flags,
                  struct dfe_pin *out)
{
    struct remote_fs *fs = remote_fs(handle);
    struct loan *loan;
    int64_t ret = remote_alive(fs->cont->pool);

    *out = (struct dfe_pin){0};
    if (ret < 0)
        return (int)ret;
    loan = calloc(1, sizeof(*loan));
    if (!loan)
        return -ENOMEM;
    atomic_fetch_add(&fs->pins, 1);
    ret = borrow(fs, ino, off, len, flags, loan, out);
    if (ret == -ENOBUFS || ret == -EACCES || ret == -ENXIO || ret == -ENOTSUP)
        ret = copy(fs, ino, off, len, flags, loan, out);
    if (ret < 0 || out->len == 0) {
        free(loan);
        atomic_fetch_sub(&fs->pins, 1);
        return ret < 0 ? (int)ret : 0;
    }
    base_clear_error();
    out->slot = loan;
    return 0;
}

void remote_fs_unpin(struct dfe_fs *handle, struct dfe_pin *pin)
{
    struct remote_fs *fs = remote_fs(handle);
    struct loan *loan = pin->slot;

    if (pin->len == 0)
        return;
    if (!loan->copy)
        give_back(fs, loan);
    free(loan->copy);
    free(loan);
    pin->len = 0;
    atomic_fetch_sub(&fs->pins, 1);
}
