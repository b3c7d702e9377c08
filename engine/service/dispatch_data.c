/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on the data of files, by copy, by lease and on loan. */
#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "service/dispatch_int.h"

/* -- reading ---------------------------------------------------------------------------------- */

static int may_read(struct call *c)
{
    int ret = rights_check(c->s, c->hc, c->e->ino, RIGHT_READ, c->flags);

    return ret < 0 ? ret : mark(c, c->e->ino, MARK_PAGES);
}

int64_t op_read(struct call *c)
{
    ssize_t n;
    int ret;

    if (c->e->len > c->e->reply_cap)
        return base_refuse(-EINVAL, "%u bytes do not fit the reply", c->e->len);
    ret = may_read(c);
    if (ret < 0)
        return ret;
    n = dfe_fs_read(c->fs, c->e->ino, c->e->off, c->req->reply, c->e->len, c->flags);
    if (n > 0)
        c->out->reply_len = (uint32_t)n;
    return n;
}

int64_t op_next(struct call *c)
{
    int ret = rights_check(c->s, c->hc, c->e->ino, RIGHT_READ, c->flags);

    if (ret == 0 && c->e->arg > 1)
        ret = base_refuse(-EINVAL, "0 is data, 1 is a hole; %u is neither", c->e->arg);
    return ret < 0 ? ret : dfe_fs_next(c->fs, c->e->ino, c->e->off, (int)c->e->arg, &c->out->value);
}

/* A mount may not read by lease: between an invalidation, which takes the mark, and the change it
 * could hand its kernel old bytes that nobody knows of. */
int64_t op_lease(struct call *c)
{
    struct cache_lease lease;
    struct proto_lease out;
    int ret;

    if (c->mount)
        return base_refuse(-ENOTSUP, "a mount reads through the engine");
    ret = may_read(c);
    if (ret == 0 && !rights_window(c->s, c->hc))
        ret = base_refuse(-EACCES, "uid %u may not see this memory", c->s->uid);
    if (ret == 0)
        ret = ns_lease(api_fs_ns(c->fs), c->e->ino, c->e->off, c->flags & DFE_NOWAIT, &lease, NULL);
    if (ret < 0)
        return ret;
    atomic_fetch_add(&c->s->host->leases, 1);
    out = (struct proto_lease){
        .gen = lease.gen,
        .stamp = lease.place.stamp,
        .file_off = lease.file_off,
        .extent = lease.place.extent,
        .extent_off = lease.place.off,
        .len = lease.len,
        .line = lease.line,
        .record = lease.record,
        .record_gen = lease.record_gen,
        .ino = c->e->ino,
    };
    reply_struct(c, &out, sizeof(out));
    return 0;
}

int64_t op_loan(struct call *c)
{
    struct proto_lease out;
    int ret = may_read(c);

    if (ret == 0)
        ret = loans_take(&c->s->loans, c->hc, c->e->ino, c->e->off, c->e->len,
                         c->flags & DFE_NOWAIT, &out, &c->out->value);
    if (ret == 0)
        reply_struct(c, &out, sizeof(out));
    return ret;
}

int64_t op_drop(struct call *c)
{
    return loans_drop(&c->s->loans, c->s->host, c->e->off, c->flags);
}

/* -- writing ---------------------------------------------------------------------------------- */

static int write_begin(struct call *c)
{
    int ret;

    change_inode(c, c->e->ino, DFE_INVAL_PAGES);
    ret = rights_check(c->s, c->hc, c->e->ino, RIGHT_WRITE, c->flags);
    if (ret == 0)
        ret = rights_strip(c->s, c->hc, c->e->ino, c->flags);
    if (ret == 0)
        ret = mark(c, c->e->ino, MARK_PAGES | MARK_ATTR);
    return ret < 0 ? ret : change_begin(c);
}

/* The kernel of a mount has placed an append at its own idea of the end, which may be as old as the
 * descriptor: so the engine places it. Where nobody else writes, an offset that is not the end is
 * meant (O_APPEND was taken off); the size is looked at first, since who changes it says so before.
 */
static int append_flags(struct call *c, unsigned *flags)
{
    struct dfe_attr attr;
    int ret;

    if (!c->h->face || !(*flags & DFE_APPEND))
        return 0;
    ret = dfe_fs_getattr(c->fs, c->e->ino, c->flags & DFE_NOWAIT, &attr);
    if (ret == 0 && attr.size != c->e->off && face_alone(c->h->face, c->e->ino))
        *flags &= ~(unsigned)DFE_APPEND;
    return ret;
}

/* Where the engine has put an append elsewhere, the kernel forgets where it had put it. */
int64_t op_write(struct call *c)
{
    unsigned flags = c->flags;
    uint64_t at = c->e->off;
    ssize_t n;
    int ret;

    ret = append_flags(c, &flags);
    if (ret == 0)
        ret = write_begin(c);
    if (ret < 0)
        return ret;
    n = dfe_fs_write(c->fs, c->e->ino, c->e->off, c->push, c->push_len, flags, &at);
    if (n >= 0) {
        c->out->value = at;
        change_grew(c, at + (uint64_t)n);
        if (c->h->face && at != c->e->off)
            face_tell(c->h->face, c->e->ino, DFE_INVAL_PAGES);
    }
    return change_end(c, n);
}

int64_t op_punch(struct call *c)
{
    uint64_t len;
    int ret;

    memcpy(&len, c->push, sizeof(len));
    ret = write_begin(c);
    if (ret < 0)
        return ret;
    ret = dfe_fs_punch(c->fs, c->e->ino, c->e->off, len, c->flags);
    return change_end(c, ret);
}

int64_t op_fsync(struct call *c)
{
    int ret = rights_check(c->s, c->hc, c->e->ino, RIGHT_EITHER, c->flags);

    return ret < 0 ? ret : dfe_fs_fsync(c->fs, c->e->ino, c->flags);
}

/* -- what an earlier worker did --------------------------------------------------------------- */

/* The number was kept with it: it is in the answer. */
int64_t again_value(struct call *c)
{
    return 0;
}

int64_t again_written(struct call *c)
{
    return (int64_t)(c->e->op == PROTO_WRITE ? c->push_len
                                             : c->push_len - sizeof(struct dfe_oid));
}
