/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on names: look-ups, creations, removals, renames, directories. */
#include <errno.h>
#include <string.h>

#include "base/limits.h"
#include "service/dispatch_int.h"

/* One page of a directory, bytes: bounds the references that it may take. */
#define DIR_PAGE_BYTES (256u << 10)
/* A record's least length. */
#define DIRENT_BYTES sizeof(struct dfe_dirent)

/* -- look-ups --------------------------------------------------------------------------------- */

static int64_t look_up(struct call *c, uint64_t dir, const void *name, size_t len)
{
    struct dfe_attr attr;
    int ret;

    ret = mark(c, dir, MARK_NAMES);
    if (ret == 0)
        ret = reserve_refs(c, 1);
    if (ret < 0)
        return ret;
    ret = dfe_fs_lookup(c->fs, dir, name, len, c->flags, &attr);
    if (ret == 0)
        reply_found(c, &attr);
    unreserve_refs(c, 1);
    return ret;
}

int64_t op_lookup(struct call *c)
{
    return look_up(c, c->e->ino, c->push, c->push_len);
}

int64_t op_parent(struct call *c)
{
    return dfe_fs_parent(c->fs, c->e->ino, c->flags, &c->out->value);
}

int64_t op_readlink(struct call *c)
{
    int n = dfe_fs_readlink(c->fs, c->e->ino, c->req->reply, c->e->reply_cap, c->flags);

    if (n > 0)
        c->out->reply_len = (uint32_t)n;
    return n;
}

/* Each entry of a page with attributes is an answer of its own (reply_found). */
static void found_page(struct call *c, uint8_t *page, size_t len)
{
    bool changed = false;

    for (size_t at = 0; at < len;) {
        struct dfe_dirent *e = (struct dfe_dirent *)(page + at);

        changed |= found(c, e->attr.ino, MARK_ATTR);
        at += e->rec_len;
    }
    for (size_t at = 0; c->mount && c->flags & DFE_PLUS && at < len;) {
        struct dfe_dirent *e = (struct dfe_dirent *)(page + at);

        tell_shared(c, &e->attr);
        if (changed)
            e->attr.flags |= DFE_ATTR_SHARED;
        at += e->rec_len;
    }
}

int64_t op_readdir(struct call *c)
{
    size_t cap = c->e->reply_cap < DIR_PAGE_BYTES ? c->e->reply_cap : DIR_PAGE_BYTES;
    size_t most = cap / DIRENT_BYTES;
    ssize_t n;
    int ret;

    if ((uintptr_t)c->req->reply % 8)
        return base_refuse(-EINVAL, "a directory's page begins at a multiple of 8");
    ret = mark(c, c->e->ino, MARK_NAMES);
    if (ret == 0)
        ret = reserve_refs(c, most);
    if (ret < 0)
        return ret;
    n = dfe_fs_readdir(c->fs, c->e->ino, c->e->off, c->req->reply, cap, c->flags);
    if (n > 0) {
        c->out->reply_len = (uint32_t)n;
        if (c->flags & (DFE_PLUS | DFE_REF))
            found_page(c, c->req->reply, (size_t)n);
    }
    unreserve_refs(c, most);
    return n;
}

/* -- creations -------------------------------------------------------------------------------- */

/* What a creation comes with: who, and after it the name and what belongs to it. */
struct birth {
    struct dfe_cred cred;
    const char *name;
    size_t name_len;
    const char *rest;
    size_t rest_len;
};

static int take_birth(struct call *c, bool has_rest, struct birth *b)
{
    size_t len = c->push_len - sizeof(b->cred);

    memcpy(&b->cred, c->push, sizeof(b->cred)); /* the table asks for that much */
    b->name = (const char *)c->push + sizeof(b->cred);
    b->name_len = has_rest ? c->e->arg : len;
    if (b->name_len > len)
        return base_refuse(-EINVAL, "the name is longer than what it came in");
    b->rest = b->name + b->name_len;
    b->rest_len = len - b->name_len;
    return 0;
}

/* Everything around a creation in the directory but the creation. */
static int create_begin(struct call *c, uint64_t dir, const void *name, size_t name_len)
{
    int ret;

    change_name(c, dir, name, name_len);
    ret = mark(c, dir, MARK_NAMES);
    if (ret == 0)
        ret = reserve_refs(c, 1);
    if (ret < 0)
        return ret;
    ret = change_begin(c);
    if (ret < 0)
        unreserve_refs(c, 1);
    return ret;
}

static int64_t create_end(struct call *c, int ret, struct dfe_attr *attr)
{
    if (ret == 0)
        reply_found(c, attr);
    unreserve_refs(c, 1);
    return change_end(c, ret);
}

int64_t op_mknod(struct call *c)
{
    struct dfe_attr attr;
    struct birth b;
    int ret;

    ret = take_birth(c, false, &b);
    if (ret == 0 && c->e->off > UINT32_MAX)
        ret = base_refuse(-EINVAL, "that is no device number");
    if (ret == 0)
        ret = create_begin(c, c->e->ino, b.name, b.name_len);
    if (ret < 0)
        return ret;
    ret = dfe_fs_mknod(c->fs, c->e->ino, b.name, b.name_len, c->e->arg, (uint32_t)c->e->off,
                       &b.cred, c->flags, &attr);
    return create_end(c, ret, &attr);
}

int64_t op_mkdir(struct call *c)
{
    struct dfe_attr attr;
    struct birth b;
    int ret;

    ret = take_birth(c, false, &b);
    if (ret == 0)
        ret = create_begin(c, c->e->ino, b.name, b.name_len);
    if (ret < 0)
        return ret;
    ret = dfe_fs_mkdir(c->fs, c->e->ino, b.name, b.name_len, c->e->arg, &b.cred, c->flags, &attr);
    return create_end(c, ret, &attr);
}

int64_t op_symlink(struct call *c)
{
    struct dfe_attr attr;
    struct birth b;
    int ret;

    ret = take_birth(c, true, &b);
    if (ret == 0)
        ret = create_begin(c, c->e->ino, b.name, b.name_len);
    if (ret < 0)
        return ret;
    ret = dfe_fs_symlink(c->fs, c->e->ino, b.name, b.name_len, b.rest, b.rest_len, &b.cred,
                         c->flags, &attr);
    return create_end(c, ret, &attr);
}

int64_t op_link(struct call *c)
{
    struct dfe_attr attr;
    int ret;

    change_inode(c, c->e->ino, DFE_INVAL_ATTR);
    ret = create_begin(c, c->e->off, c->push, c->push_len);
    if (ret < 0)
        return ret;
    ret = dfe_fs_link(c->fs, c->e->ino, c->e->off, (const char *)c->push, c->push_len, c->flags,
                      &attr);
    return create_end(c, ret, &attr);
}

/* -- removals --------------------------------------------------------------------------------- */

/* Should the next worker answer, the name will not say any more whose attributes have changed. */
static int victim_begin(struct call *c)
{
    int ret = change_begin(c);

    if (ret == 0)
        keep_value(c->s->host->keep, c->victim);
    return ret;
}

static int remove_begin(struct call *c)
{
    change_name(c, c->e->ino, c->push, c->push_len);
    change_named(c, c->e->ino, c->push, c->push_len);
    return victim_begin(c);
}

int64_t op_unlink(struct call *c)
{
    int ret = remove_begin(c);

    if (ret < 0)
        return ret;
    ret = dfe_fs_unlink(c->fs, c->e->ino, (const char *)c->push, c->push_len, c->flags);
    return change_end(c, ret);
}

int64_t op_rmdir(struct call *c)
{
    int ret = remove_begin(c);

    if (ret < 0)
        return ret;
    ret = dfe_fs_rmdir(c->fs, c->e->ino, (const char *)c->push, c->push_len, c->flags);
    return change_end(c, ret);
}

int64_t op_rename(struct call *c)
{
    const char *from = (const char *)c->push, *to = from + c->e->arg;
    size_t from_len = c->e->arg, to_len = c->push_len - from_len;
    int ret;

    if (from_len > c->push_len)
        return base_refuse(-EINVAL, "the first name is longer than both");
    change_name(c, c->e->ino, from, from_len);
    change_name(c, c->e->off, to, to_len);
    change_named(c, c->e->ino, from, from_len);
    change_named(c, c->e->off, to, to_len);
    ret = mark(c, c->e->off, MARK_NAMES);
    if (ret == 0)
        ret = victim_begin(c);
    if (ret < 0)
        return ret;
    ret = dfe_fs_rename(c->fs, c->e->ino, from, from_len, c->e->off, to, to_len, c->flags);
    return change_end(c, ret);
}

/* -- what an earlier worker did --------------------------------------------------------------- */

/* victim_begin has kept it. */
static void change_victim(struct call *c)
{
    if (c->out->value)
        change_inode(c, c->out->value, DFE_INVAL_ATTR);
}

int64_t again_removed(struct call *c)
{
    c->out->value = 0;
    return 0;
}

int change_again_names(struct call *c)
{
    const char *push = (const char *)c->push;
    size_t first = c->e->arg;
    struct birth b;
    int ret = 0;

    switch (c->e->op) {
    case PROTO_RENAME:
        if (first > c->push_len)
            return base_refuse(-EINVAL, "the first name is longer than both");
        change_name(c, c->e->ino, push, first);
        change_name(c, c->e->off, push + first, c->push_len - first);
        change_named(c, c->e->off, push + first, c->push_len - first);
        change_victim(c);
        return 0;
    case PROTO_LINK:
        change_inode(c, c->e->ino, DFE_INVAL_ATTR);
        change_name(c, c->e->off, push, c->push_len);
        return 0;
    case PROTO_UNLINK:
    case PROTO_RMDIR:
        change_name(c, c->e->ino, push, c->push_len);
        change_victim(c);
        return 0;
    default:
        ret = take_birth(c, c->e->op == PROTO_SYMLINK, &b);
        if (ret == 0)
            change_name(c, c->e->ino, b.name, b.name_len);
        return ret;
    }
}

/* An inode that is in memory: by its number. */
static int64_t found_by_number(struct call *c, uint64_t ino)
{
    struct dfe_attr attr;
    int ret = dfe_fs_getattr(c->fs, ino, c->flags & DFE_NOWAIT, &attr);

    if (ret == 0)
        ret = reserve_refs(c, 1);
    if (ret < 0)
        return ret;
    ret = c->flags & DFE_REF ? dfe_fs_ref(c->fs, ino) : 0;
    if (ret == 0)
        reply_found(c, &attr);
    unreserve_refs(c, 1);
    return ret;
}

/* A new inode is found by its name; if that is another's by now, by its number, where somebody
 * holds it. Else it is as gone as if it had been removed right after. */
int64_t again_name(struct call *c)
{
    uint64_t ino = c->out->value;
    struct dfe_attr attr;
    struct birth b;
    int ret;

    c->out->value = 0;
    ret = take_birth(c, c->e->op == PROTO_SYMLINK, &b);
    if (ret == 0)
        ret = dfe_fs_lookup(c->fs, c->e->ino, b.name, b.name_len, c->flags & DFE_NOWAIT, &attr);
    if (ret == 0 && attr.ino == ino)
        return look_up(c, c->e->ino, b.name, b.name_len);
    if (ret == 0 || ret == -ENOENT)
        ret = (int)found_by_number(c, ino);
    return ret;
}

int64_t again_link(struct call *c)
{
    c->out->value = 0;
    return found_by_number(c, c->e->ino);
}
