/* SPDX-License-Identifier: Apache-2.0 */
/* Lookup and attributes. */
#include <errno.h>
#include <string.h>

#include "base/keep.h"
#include "cache/keep_log.h"
#include "ns/impl.h"

static int lookup_locked(struct ns_call *c, uint64_t dir_ino, const char *name, size_t name_len,
                         struct dfe_attr *out)
{
    struct ns_inode *dir, *inode;
    struct ns_entry *e;
    int err;

    err = inode_get_dir(c, dir_ino, &dir);
    if (err)
        return err;
    if (name_len == 1 && name[0] == '.') {
        inode = dir;
    } else if (name_len == 2 && name[0] == '.' && name[1] == '.') {
        inode = dir->dir->parent;
        if (!inode)
            return -ENOENT;
    } else {
        err = name_check(name, name_len);
        if (!err)
            err = name_find(c, dir, name, name_len, &e);
        if (!err && !e)
            err = -ENOENT;
        if (!err)
            err = inode_need(c, e->ino, e->birth, dir, &inode);
        if (err)
            return err;
    }
    err = data_used_sure(c, inode);
    if (!err)
        inode_answer(c, inode, out);
    return err;
}

static int getattr_locked(struct ns_call *c, uint64_t ino, struct dfe_attr *out)
{
    struct ns_inode *inode;
    int err;

    err = inode_get(c, ino, &inode);
    if (!err)
        err = data_used_sure(c, inode);
    if (!err)
        inode_attr(inode, out);
    return err;
}

int ns_lookup(struct ns *ns, uint64_t dir, const char *name, size_t name_len, unsigned flags,
              struct dfe_attr *out)
{
    struct ns_call c;
    int err;

    call_begin(&c, ns, flags);
    do
        err = lookup_locked(&c, dir, name, name_len, out);
    while (call_retry(&c, &err));
    return call_end(&c, err);
}

int ns_getattr(struct ns *ns, uint64_t ino, unsigned flags, struct dfe_attr *out)
{
    struct ns_call c;
    int err;

    call_begin(&c, ns, flags);
    do
        err = getattr_locked(&c, ino, out);
    while (call_retry(&c, &err));
    return call_end(&c, err);
}

int ns_parent(struct ns *ns, uint64_t dir, unsigned flags, uint64_t *out)
{
    struct ns_inode *inode;
    struct ns_call c;
    int err;

    call_begin(&c, ns, flags);
    do
        err = inode_get_dir(&c, dir, &inode);
    while (call_retry(&c, &err));
    if (!err && !inode->dir->parent)
        err = -ENOENT;
    if (!err)
        *out = inode->dir->parent->ino;
    return call_end(&c, err);
}

int ns_readlink(struct ns *ns, uint64_t ino, char *target, size_t cap, unsigned flags)
{
    struct ns_inode *inode;
    struct ns_call c;
    size_t len = 0;
    int err;

    call_begin(&c, ns, flags);
    do
        err = inode_get(&c, ino, &inode);
    while (call_retry(&c, &err));
    if (!err && !S_ISLNK(inode->st.mode))
        err = -EINVAL;
    if (!err) {
        len = inode->st.size < cap ? inode->st.size : cap;
        memcpy(target, inode->target, len);
    }
    err = call_end(&c, err);
    return err ? err : (int)len;
}

/* -- setattr ---------------- */

struct setattr {
    struct ns_inode *inode;
    const struct dfe_attr *in;
    unsigned set;
    struct ns_stat st; /* of the record to come */
    bool acl;          /* the access ACL in c->xattr follows the mode */
    bool streamed;     /* that belongs to data that is not published */
    bool mtime;        /* in->mtime_ns, or now, becomes the mtime */
    int64_t mtime_ns;
};

static int setattr_check(const struct ns_inode *inode, const struct dfe_attr *in, unsigned set)
{
    if (set & DFE_SET_SIZE) {
        if (S_ISDIR(inode->st.mode))
            return -EISDIR;
        if (!S_ISREG(inode->st.mode))
            return -EINVAL;
        if (in->size > DFE_FILE_BYTES)
            return -EFBIG;
    }
    if (set & DFE_SET_MODE && S_ISLNK(inode->st.mode))
        return -EOPNOTSUPP;
    return 0;
}

static void setattr_fields(struct ns_call *c, struct setattr *s)
{
    const struct dfe_attr *in = s->in;
    struct ns_stat *st = &s->st;

    *st = s->inode->st;
    if (s->set & DFE_SET_MODE)
        st->mode = (st->mode & S_IFMT) | (in->mode & 07777);
    if (s->set & DFE_SET_UID)
        st->uid = in->uid;
    if (s->set & DFE_SET_GID)
        st->gid = in->gid;
    /* As chown(2) does, for callers other than a kernel, which says so in the mode. */
    if (s->set & (DFE_SET_UID | DFE_SET_GID) && !(s->set & DFE_SET_MODE) && S_ISREG(st->mode)) {
        st->mode &= ~(uint32_t)S_ISUID;
        if (st->mode & S_IXGRP)
            st->mode &= ~(uint32_t)S_ISGID;
    }
    if (s->set & DFE_SET_ATIME)
        st->atime_ns = in->atime_ns;
    st->ctime_ns = s->set & DFE_SET_CTIME ? in->ctime_ns : c->now_ns;
    if (s->set & DFE_SET_MTIME) {
        s->mtime = true;
        s->mtime_ns = in->mtime_ns;
    }
}

/* The size first, once a call: it belongs to the data stream, which another writer may change while
 * the call waits for something else. */
static int setattr_size(struct ns_call *c, struct setattr *s)
{
    struct ns_inode *inode = s->inode;
    struct dfe_attr now;
    int err;

    if (!(s->set & DFE_SET_SIZE) || c->truncated)
        return 0;
    inode_attr(inode, &now);
    if (now.size == s->in->size) {
        if (!s->mtime)
            s->mtime_ns = c->now_ns;
        s->mtime = true;
        return 0;
    }
    err = data_file(inode);
    c->size = s->in->size;
    c->truncates_first = s->set != DFE_SET_SIZE;
    if (!err)
        err = call_truncate(c, inode, CACHE_NOWAIT);
    if (err == -EINPROGRESS) {
        c->inode = inode;
        c->old_size = now.size;
        return call_need(c, NEED_TRUNCATE);
    }
    if (!err) {
        c->truncated = true;
        inode->st.ctime_ns = c->now_ns;
        data_used_resize(inode, now.size, s->in->size);
    }
    return err;
}

static int setattr_commit(struct ns_call *c, struct setattr *s)
{
    struct ns_inode *inode = s->inode;
    struct obj_tx *tx;
    int err;

    err = obj_tx_begin(c->ns->cont, nsrec_dir_id(inode->birth), &tx);
    if (err)
        return err;
    err = inode_put_record(tx, inode->birth, inode, &s->st);
    if (!err && s->acl)
        err = xattr_put(tx, inode->birth, inode, ACL_ACCESS, strlen(ACL_ACCESS), c->xattr.value,
                        c->xattr.len);
    if (err) {
        obj_tx_abort(tx);
        return err;
    }
    return call_commit(c, tx);
}

/* All fields but the size. */
static int setattr_make(struct ns_call *c, struct setattr *s)
{
    struct ns_inode *inode = s->inode;
    struct cache_file *file = s->mtime && S_ISREG(inode->st.mode) ? inode->file : NULL;
    struct kept_change kept = {0};
    int err = 0;

    if (file)
        err = cache_kept_mtime_begin(file, s->mtime_ns, &kept);
    if (err == -EINPROGRESS) {
        c->inode = inode;
        return call_need(c, NEED_KEPT);
    }
    if (file && s->streamed)
        keep_part(c->ns->keep, true);
    if (!err && (s->set != DFE_SET_SIZE || !c->truncated))
        err = setattr_commit(c, s);
    if (file && s->streamed)
        keep_part(c->ns->keep, false);
    if (err) {
        if (file)
            cache_kept_mtime_cancel(file, &kept);
        return err;
    }
    inode->st = s->st;
    if (s->acl)
        inode->xattr_changes++;
    if (file && cache_kept_mtime_done(file, s->mtime_ns, s->streamed, &kept))
        data_mtime_pending(inode);
    return 0;
}

static int setattr_locked(struct ns_call *c, uint64_t ino, const struct dfe_attr *in, unsigned set,
                          struct dfe_attr *out)
{
    struct setattr s = {.in = in, .set = set};
    struct ns_inode *inode;
    int err;

    err = call_writable(c);
    if (!err)
        err = inode_get(c, ino, &inode);
    if (!err)
        err = setattr_check(inode, in, set);
    if (!err)
        err = inode_idle(c, inode);
    if (err)
        return err;
    s.inode = inode;
    setattr_fields(c, &s);
    if (set & DFE_SET_MODE && inode->st.flags & NSREC_INODE_ACL) {
        bool plain;

        err = xattr_peek(c, inode, ACL_ACCESS);
        if (!err && c->xattr.err == 0 &&
            acl_check(c->xattr.value, c->xattr.len, &(uint32_t){0}, &plain))
            err = -EUCLEAN;
        if (err)
            return err;
        s.acl = c->xattr.err == 0 && !plain;
    }
    err = setattr_size(c, &s);
    if (err)
        return err;
    s.st.used = S_ISREG(inode->st.mode) ? inode->st.used : s.st.used;
    s.st.flags = inode->st.flags;
    if (s.acl)
        acl_chmod(c->xattr.value, c->xattr.len, s.st.mode);
    /* The times of dirty data go with it, not before it. */
    s.streamed = S_ISREG(inode->st.mode) &&
                 (data_dirty(inode) || (c->ns->keep && inode->state & INODE_SETTLE));
    if (s.mtime && !s.streamed)
        s.st.mtime_ns = s.mtime_ns;
    err = setattr_make(c, &s);
    if (err)
        return err;
    inode_attr(inode, out);
    return 0;
}

int ns_setattr(struct ns *ns, uint64_t ino, const struct dfe_attr *in, unsigned set, unsigned flags,
               struct dfe_attr *out)
{
    struct ns_call c;
    int err;

    call_begin(&c, ns, flags);
    do
        err = setattr_locked(&c, ino, in, set, out);
    while (call_retry(&c, &err));
    return call_end(&c, err);
}
