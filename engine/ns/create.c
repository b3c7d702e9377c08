/* SPDX-License-Identifier: Apache-2.0 */
/* New inodes and new links. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/keep.h"
#include "ns/impl.h"

/* What is to be made. */
struct create_args {
    uint64_t dir;
    const char *name;
    size_t name_len;
    uint32_t mode, rdev;
    const struct dfe_cred *cred;
    const char *target; /* of a symbolic link */
    size_t target_len;
};

/* A create on its way: what memory will hold once the tx has committed. */
struct create_new {
    struct ns_inode *dir, *inode;
    struct ns_entry *entry;
    struct name_slot slot;
    struct ns_stat st, dir_st;
    void *acl; /* access ACL that the directory's default ACL makes, or NULL */
    size_t acl_len;
};

/* The mode and ACLs of a new inode, as Linux has them: a default ACL replaces the umask. */
static int create_mode(struct ns_call *c, const struct create_args *args, struct create_new *new)
{
    struct ns_inode *dir = new->dir;
    struct ns_stat *st = &new->st;
    bool plain, subdir = S_ISDIR(args->mode);
    int err;

    st->mode = args->mode;
    st->uid = args->cred->uid;
    st->gid = args->cred->gid;
    if (dir->st.mode & S_ISGID) {
        st->gid = dir->st.gid;
        st->mode |= subdir ? S_ISGID : 0;
    }
    if (S_ISLNK(st->mode))
        return 0;
    if (!(dir->st.flags & NSREC_INODE_DEFAULT_ACL)) {
        st->mode &= ~(args->cred->umask & 0777);
        return 0;
    }
    err = acl_default(c, dir);
    if (err)
        return err;
    new->acl = malloc(dir->dir->acl_len);
    if (!new->acl)
        return -ENOMEM;
    new->acl_len = dir->dir->acl_len;
    memcpy(new->acl, dir->dir->acl, new->acl_len);
    acl_inherit(new->acl, new->acl_len, &st->mode);
    err = acl_check(new->acl, new->acl_len, &st->mode, &plain);
    if (err)
        return err;
    if (plain) {
        free(new->acl);
        new->acl = NULL;
    }
    st->nxattr = (uint16_t)((new->acl != NULL) + subdir);
    st->flags =
        (uint8_t)((new->acl ? NSREC_INODE_ACL : 0) | (subdir ? NSREC_INODE_DEFAULT_ACL : 0));
    return 0;
}

static int create_prepare(struct ns_call *c, const struct create_args *args, struct create_new *new)
{
    bool subdir = S_ISDIR(args->mode);
    struct ns_stat *st = &new->st;
    uint64_t ino;
    int err;

    err = create_mode(c, args, new);
    if (!err)
        err = number_take(c, &ino);
    if (err)
        return err;
    st->rdev = args->rdev;
    st->nlink = subdir ? 2 : 1;
    st->mtime_ns = st->ctime_ns = st->atime_ns = st->btime_ns = c->now_ns;
    if (subdir)
        st->parent = new->dir->ino;
    st->size = S_ISLNK(st->mode) ? args->target_len : 0;
    new->dir_st = new->dir->st;
    new->dir_st.mtime_ns = new->dir_st.ctime_ns = c->now_ns;
    new->dir_st.size++;
    new->dir_st.nlink += subdir;
    new->inode = inode_new(c->ns, ino, subdir ? ino : new->dir->ino);
    if (!new->inode)
        return -ENOMEM;
    if (subdir) {
        err = dir_new(new->inode, new->dir, true);
    } else if (S_ISLNK(st->mode)) {
        new->inode->target = malloc(args->target_len);
        if (!new->inode->target)
            return -ENOMEM;
        memcpy(new->inode->target, args->target, args->target_len);
    }
    if (err)
        return err;
    new->inode->st = *st;
    new->entry = dir_entry_new(args->name, args->name_len, ino, new->inode->birth, st->mode);
    return new->entry ? 0 : -ENOMEM;
}

static int create_commit(struct ns_call *c, struct create_new *new)
{
    struct ns_inode *dir = new->dir, *inode = new->inode;
    struct obj_tx *tx;
    int err;

    err = obj_tx_begin(c->ns->cont, nsrec_dir_id(dir->ino), &tx);
    if (err)
        return err;
    keep_value(c->ns->keep, inode->ino); /* the answer, should we not live to give it */
    err = name_put(tx, dir->ino, &new->slot, new->entry);
    if (!err)
        err = inode_put_record(tx, dir->ino, inode, &new->st);
    if (!err && new->acl)
        err = xattr_put(tx, dir->ino, inode, ACL_ACCESS, strlen(ACL_ACCESS), new->acl,
                        new->acl_len);
    if (!err && new->st.flags & NSREC_INODE_DEFAULT_ACL)
        err = xattr_put(tx, dir->ino, inode, ACL_DEFAULT, strlen(ACL_DEFAULT), dir->dir->acl,
                        dir->dir->acl_len);
    if (!err)
        err = inode_put_record(tx, dir->ino, dir, &new->dir_st);
    if (err) {
        obj_tx_abort(tx);
        return err;
    }
    return call_commit(c, tx);
}

static int create_locked(struct ns_call *c, const struct create_args *args, struct dfe_attr *out)
{
    struct create_new new = {0};
    struct ns_entry *e;
    int err;

    err = call_writable(c);
    if (!err)
        err = inode_get_dir(c, args->dir, &new.dir);
    if (!err)
        err = name_find(c, new.dir, args->name, args->name_len, &e);
    if (!err && e)
        err = -EEXIST;
    if (!err)
        err = name_place(c, new.dir, args->name, args->name_len, &new.slot);
    if (!err)
        err = create_prepare(c, args, &new);
    if (!err)
        err = create_commit(c, &new);
    free(new.acl);
    if (err) {
        if (new.inode)
            inode_free(new.inode);
        free(new.entry);
        return err;
    }
    name_apply_put(&new.slot, new.entry);
    new.dir->st = new.dir_st;
    inode_rest(new.inode);
    inode_answer(c, new.inode, out);
    return 0;
}

static int create(struct ns *ns, const struct create_args *args, unsigned flags,
                  struct dfe_attr *out)
{
    struct ns_call c;
    int err;

    err = name_check(args->name, args->name_len);
    if (err)
        return err;
    call_begin(&c, ns, flags);
    do
        err = create_locked(&c, args, out);
    while (call_retry(&c, &err));
    return call_end(&c, err);
}

int ns_mknod(struct ns *ns, uint64_t dir, const char *name, size_t name_len, uint32_t mode,
             uint32_t rdev, const struct dfe_cred *cred, unsigned flags, struct dfe_attr *out)
{
    struct create_args args = {
        .dir = dir,
        .name = name,
        .name_len = name_len,
        .cred = cred,
        .mode = mode & (S_IFMT | 07777),
    };

    switch (mode & S_IFMT) {
    case 0:
        args.mode |= S_IFREG;
        break;
    case S_IFREG:
    case S_IFIFO:
    case S_IFSOCK:
        break;
    case S_IFCHR:
    case S_IFBLK:
        args.rdev = rdev;
        break;
    case S_IFDIR:
        return -EPERM;
    default:
        return -EINVAL;
    }
    return create(ns, &args, flags, out);
}

int ns_mkdir(struct ns *ns, uint64_t dir, const char *name, size_t name_len, uint32_t mode,
             const struct dfe_cred *cred, unsigned flags, struct dfe_attr *out)
{
    struct create_args args = {
        .dir = dir,
        .name = name,
        .name_len = name_len,
        .cred = cred,
        .mode = S_IFDIR | (mode & 07777),
    };

    return create(ns, &args, flags, out);
}

int ns_symlink(struct ns *ns, uint64_t dir, const char *name, size_t name_len, const char *target,
               size_t target_len, const struct dfe_cred *cred, unsigned flags, struct dfe_attr *out)
{
    struct create_args args = {
        .dir = dir,
        .name = name,
        .name_len = name_len,
        .cred = cred,
        .mode = S_IFLNK | 0777,
        .target = target,
        .target_len = target_len,
    };

    if (target_len == 0)
        return -ENOENT;
    if (target_len > DFE_SYMLINK_BYTES)
        return -ENAMETOOLONG;
    if (memchr(target, '\0', target_len))
        return -EINVAL;
    return create(ns, &args, flags, out);
}

/* -- links ---------------- */

static int link_commit(struct ns_call *c, const struct name_slot *slot, const struct ns_entry *e,
                       struct ns_inode *inode, const struct ns_stat *st,
                       const struct ns_stat *dir_st)
{
    uint64_t home = slot->dir->ino;
    struct obj_tx *tx;
    int err;

    err = obj_tx_begin(c->ns->cont, nsrec_dir_id(home), &tx);
    if (err)
        return err;
    err = name_put(tx, home, slot, e);
    if (!err)
        err = inode_put_record(tx, home, inode, st);
    if (!err)
        err = inode_put_record(tx, home, slot->dir, dir_st);
    if (err) {
        obj_tx_abort(tx);
        return err;
    }
    return call_commit(c, tx);
}

static int link_locked(struct ns_call *c, uint64_t ino, uint64_t dir_ino, const char *name,
                       size_t name_len, struct dfe_attr *out)
{
    struct ns_inode *inode, *dir;
    struct ns_stat st, dir_st;
    struct name_slot slot;
    struct ns_entry *e;
    int err;

    err = call_writable(c);
    if (!err)
        err = inode_get(c, ino, &inode);
    if (!err)
        err = inode_get_dir(c, dir_ino, &dir);
    if (err)
        return err;
    if (S_ISDIR(inode->st.mode))
        return -EPERM;
    if (inode->st.nlink == 0)
        return -ENOENT;
    if (inode->st.nlink >= DFE_LINK_MAX)
        return -EMLINK;
    err = name_find(c, dir, name, name_len, &e);
    if (!err && e)
        err = -EEXIST;
    if (!err)
        err = inode_idle(c, inode);
    if (!err)
        err = name_place(c, dir, name, name_len, &slot);
    if (err)
        return err;
    st = inode->st;
    st.nlink++;
    st.ctime_ns = c->now_ns;
    dir_st = dir->st;
    dir_st.size++;
    dir_st.mtime_ns = dir_st.ctime_ns = c->now_ns;
    e = dir_entry_new(name, name_len, ino, inode->birth, st.mode);
    if (!e)
        return -ENOMEM;
    err = link_commit(c, &slot, e, inode, &st, &dir_st);
    if (err) {
        free(e);
        return err;
    }
    name_apply_put(&slot, e);
    inode->st = st;
    dir->st = dir_st;
    inode_answer(c, inode, out);
    return 0;
}

int ns_link(struct ns *ns, uint64_t ino, uint64_t dir, const char *name, size_t name_len,
            unsigned flags, struct dfe_attr *out)
{
    struct ns_call c;
    int err;

    err = name_check(name, name_len);
    if (err)
        return err;
    call_begin(&c, ns, flags);
    do
        err = link_locked(&c, ino, dir, name, name_len, out);
    while (call_retry(&c, &err));
    return call_end(&c, err);
}
