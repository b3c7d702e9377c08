/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on attributes and extended attributes. */
#include <errno.h>
#include <string.h>

#include "service/dispatch_int.h"

#define SETS \
    (DFE_SET_MODE | DFE_SET_UID | DFE_SET_GID | DFE_SET_SIZE | DFE_SET_ATIME | DFE_SET_MTIME | \
     DFE_SET_CTIME)
#define SETS_RIGHTS (DFE_SET_MODE | DFE_SET_UID | DFE_SET_GID)

int64_t op_getattr(struct call *c)
{
    struct dfe_attr attr;
    int ret;

    ret = rights_check(c->s, c->hc, c->e->ino, RIGHT_EITHER, c->flags);
    if (ret == 0)
        ret = mark(c, c->e->ino, MARK_ATTR);
    if (ret == 0)
        ret = dfe_fs_getattr(c->fs, c->e->ino, c->flags, &attr);
    if (ret == 0)
        reply_attr(c, &attr);
    return ret;
}

int64_t again_attr(struct call *c)
{
    c->out->value = 0;
    return op_getattr(c);
}

/* What was decided about rights before is not believed any more. */
static void rights_changed(struct call *c)
{
    atomic_fetch_add(&c->hc->rights, 1);
}

static int setattr_allowed(struct call *c, unsigned set)
{
    int ret;

    if (set & ~(unsigned)SETS)
        return base_refuse(-EINVAL, "unknown attributes 0x%x", set);
    if (c->s->role == PROTO_ROLE_IL && set != DFE_SET_SIZE)
        return base_refuse(-EACCES, "this session may set the size of a file and nothing else");
    ret = rights_check(c->s, c->hc, c->e->ino, RIGHT_WRITE, c->flags);
    if (ret == 0 && set & DFE_SET_SIZE && !(set & DFE_SET_MODE))
        ret = rights_strip(c->s, c->hc, c->e->ino, c->flags);
    return ret;
}

int64_t op_setattr(struct call *c)
{
    unsigned set = c->e->arg;
    struct dfe_attr in, attr;
    int ret;

    memcpy(&in, c->push, sizeof(in));
    change_inode(c, c->e->ino, set & DFE_SET_SIZE ? DFE_INVAL_PAGES : DFE_INVAL_ATTR);
    ret = setattr_allowed(c, set);
    if (ret == 0)
        ret = mark(c, c->e->ino, MARK_ATTR);
    if (ret == 0)
        ret = change_begin(c);
    if (ret < 0)
        return ret;
    ret = dfe_fs_setattr(c->fs, c->e->ino, &in, set, c->flags, &attr);
    if (set & SETS_RIGHTS && ret != -EINPROGRESS)
        rights_changed(c);
    if (ret == 0 && set & DFE_SET_SIZE)
        change_grew(c, in.size);
    if (ret == 0)
        reply_attr(c, &attr);
    return change_end(c, ret);
}

/* -- extended attributes ---------------------------------------------------------------------- */

/* Kernels keep ACLs beside the attributes, and forget both together. */
int64_t op_getxattr(struct call *c)
{
    int n = mark(c, c->e->ino, MARK_ATTR);

    if (n == 0)
        n = dfe_fs_getxattr(c->fs, c->e->ino, (const char *)c->push, c->push_len, c->req->reply,
                            c->e->reply_cap, c->flags);
    if (n > 0 && c->e->reply_cap)
        c->out->reply_len = (uint32_t)n;
    return n;
}

int64_t op_listxattr(struct call *c)
{
    int n = mark(c, c->e->ino, MARK_ATTR);

    if (n == 0)
        n = dfe_fs_listxattr(c->fs, c->e->ino, c->req->reply, c->e->reply_cap, c->flags);
    if (n > 0 && c->e->reply_cap)
        c->out->reply_len = (uint32_t)n;
    return n;
}

int64_t op_setxattr(struct call *c)
{
    const char *name = (const char *)c->push;
    size_t name_len = c->e->arg;
    int ret;

    if (name_len > c->push_len)
        return base_refuse(-EINVAL, "the name is longer than what it came in");
    change_inode(c, c->e->ino, DFE_INVAL_ATTR);
    ret = change_begin(c);
    if (ret < 0)
        return ret;
    ret = dfe_fs_setxattr(c->fs, c->e->ino, name, name_len, name + name_len,
                          c->push_len - name_len, c->flags);
    if (ret != -EINPROGRESS)
        rights_changed(c);
    return change_end(c, ret);
}

int64_t op_removexattr(struct call *c)
{
    int ret;

    change_inode(c, c->e->ino, DFE_INVAL_ATTR);
    ret = change_begin(c);
    if (ret < 0)
        return ret;
    ret = dfe_fs_removexattr(c->fs, c->e->ino, (const char *)c->push, c->push_len, c->flags);
    if (ret != -EINPROGRESS)
        rights_changed(c);
    return change_end(c, ret);
}
