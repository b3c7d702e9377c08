/* SPDX-License-Identifier: Apache-2.0 */
/* Extended attributes: keys beside the inode's record. Memory keeps their number, so that the usual
 * question (security.capability, before every write) is answered without a look at the store. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ns/impl.h"

static void xattr_key(struct nsrec_key *key, const struct ns_inode *inode, const char *name,
                      size_t name_len)
{
    nsrec_key(key, 'x', inode->ino, name, name_len);
}

int xattr_put(struct obj_tx *tx, uint64_t home, const struct ns_inode *inode, const char *name,
              size_t name_len, const void *value, size_t len)
{
    struct nsrec_key key;

    xattr_key(&key, inode, name, name_len);
    return obj_tx_put(tx, tx_when(home, inode->birth), nsrec_dir_id(inode->birth), &key.key, value,
                      len);
}

int xattr_del(struct obj_tx *tx, uint64_t home, const struct ns_inode *inode, const char *name,
              size_t name_len)
{
    struct nsrec_key key;

    xattr_key(&key, inode, name, name_len);
    return obj_tx_del(tx, tx_when(home, inode->birth), nsrec_dir_id(inode->birth), &key.key);
}

static int xattr_keep(struct call_xattr *x, const struct ns_inode *inode, uint32_t changes, int err)
{
    if (err == -ENOENT)
        err = -ENODATA;
    else if (!err && x->len > DFE_XATTR_VALUE_BYTES)
        err = -EUCLEAN;
    if (err && err != -ENODATA)
        return err;
    x->ino = inode->ino;
    x->changes = changes;
    x->err = err;
    x->valid = true;
    return 0;
}

int xattr_peek(struct ns_call *c, struct ns_inode *inode, const char *name)
{
    struct call_xattr *x = &c->xattr;
    struct nsrec_key key;
    size_t len = strlen(name);
    int err;

    if (x->valid && x->ino == inode->ino && x->changes == inode->xattr_changes &&
        strcmp(x->name, name) == 0)
        return 0;
    x->valid = false;
    memcpy(x->name, name, len + 1);
    if (inode->st.nxattr == 0)
        return xattr_keep(x, inode, inode->xattr_changes, -ENODATA);
    if (!x->value)
        x->value = malloc(DFE_XATTR_VALUE_BYTES);
    if (!x->value)
        return -ENOMEM;
    xattr_key(&key, inode, name, len);
    err = obj_kv_get_nowait(c->ns->cont, nsrec_dir_id(inode->birth), &key.key, x->value,
                            DFE_XATTR_VALUE_BYTES, &x->len);
    if (err == -EINPROGRESS) {
        c->inode = inode;
        return call_need(c, NEED_XATTR);
    }
    return xattr_keep(x, inode, inode->xattr_changes, err);
}

int xattr_load(struct ns_call *c)
{
    struct ns_inode *inode = c->inode;
    struct call_xattr *x = &c->xattr;
    uint32_t changes = inode->xattr_changes;
    struct nsrec_key key;
    int err;

    xattr_key(&key, inode, x->name, strlen(x->name));
    inode_pin(inode);
    pthread_mutex_unlock(&c->ns->lock);
    err = obj_kv_get(c->ns->cont, nsrec_dir_id(inode->birth), &key.key, x->value,
                     DFE_XATTR_VALUE_BYTES, &x->len);
    pthread_mutex_lock(&c->ns->lock);
    err = xattr_keep(x, inode, changes, err);
    inode_unpin(inode);
    return err;
}

/* The name as a string, in a namespace that is kept here. */
static int xattr_name(const char *name, size_t len, char *out)
{
    static const char *const prefixes[] = {"user.", "trusted.", "security."};

    if (len == 0 || len > DFE_XATTR_NAME_BYTES)
        return -ERANGE;
    if (memchr(name, '\0', len))
        return -EINVAL;
    memcpy(out, name, len);
    out[len] = '\0';
    if (strcmp(out, ACL_ACCESS) == 0 || strcmp(out, ACL_DEFAULT) == 0)
        return 0;
    for (unsigned i = 0; i < DFE_ARRAY_LEN(prefixes); i++) {
        size_t prefix_len = strlen(prefixes[i]);

        if (strncmp(out, prefixes[i], prefix_len) == 0)
            return len > prefix_len ? 0 : -EINVAL;
    }
    return -EOPNOTSUPP;
}

static bool xattr_is_acl(const char *name)
{
    return name[0] == 's' && name[1] == 'y';
}

/* -- get and list ---------------- */

static int getxattr_locked(struct ns_call *c, uint64_t ino, const char *name, void *value,
                           size_t cap)
{
    struct ns_inode *inode;
    int err;

    err = inode_get(c, ino, &inode);
    if (!err)
        err = xattr_peek(c, inode, name);
    if (!err)
        err = c->xattr.err;
    if (err)
        return err;
    if (cap > 0 && cap < c->xattr.len)
        return -ERANGE;
    if (cap > 0)
        memcpy(value, c->xattr.value, c->xattr.len);
    return (int)c->xattr.len;
}

int ns_getxattr(struct ns *ns, uint64_t ino, const char *name, size_t name_len, void *value,
                size_t cap, unsigned flags)
{
    char text[DFE_XATTR_NAME_BYTES + 1];
    struct ns_call c;
    int err;

    err = xattr_name(name, name_len, text);
    if (err)
        return err;
    call_begin(&c, ns, flags);
    do
        err = getxattr_locked(&c, ino, text, value, cap);
    while (call_retry(&c, &err));
    return call_end(&c, err);
}

struct list_scan {
    uint64_t ino;
    char *names;
    size_t cap, used;
};

static int listxattr_one(const struct obj_key *key, const void *value, size_t len, void *arg)
{
    struct list_scan *scan = arg;
    size_t need = key->akey_len + 1u;
    uint64_t ino;

    (void)value, (void)len;
    if (!nsrec_key_is(key, 'x', &ino) || ino != scan->ino)
        return 1;
    if (scan->cap > 0 && need > scan->cap - scan->used)
        return -ERANGE;
    if (scan->cap > 0) {
        memcpy(scan->names + scan->used, key->akey, key->akey_len);
        scan->names[scan->used + key->akey_len] = '\0';
    }
    scan->used += need;
    return 0;
}

int ns_listxattr(struct ns *ns, uint64_t ino, char *names, size_t cap, unsigned flags)
{
    struct list_scan scan = {.ino = ino, .names = names, .cap = cap};
    struct ns_inode *inode;
    struct nsrec_key key;
    struct ns_call c;
    int err;

    call_begin(&c, ns, flags);
    do
        err = inode_get(&c, ino, &inode);
    while (call_retry(&c, &err));
    if (!err && inode->st.nxattr > 0 && flags & DFE_NOWAIT)
        err = -EINPROGRESS;
    if (!err && inode->st.nxattr > 0) {
        xattr_key(&key, inode, NULL, 0);
        inode_pin(inode);
        pthread_mutex_unlock(&ns->lock);
        err = obj_kv_scan(ns->cont, nsrec_dir_id(inode->birth), &key.key, 0, listxattr_one, &scan);
        pthread_mutex_lock(&ns->lock);
        inode_unpin(inode);
    }
    err = call_end(&c, err < 0 ? err : 0);
    return err ? err : (int)scan.used;
}

/* -- set and remove ---------------- */

struct xattr_args {
    uint64_t ino;
    char name[DFE_XATTR_NAME_BYTES + 1];
    const void *value;
    size_t len;
    bool remove;
};

/* An ACL that goes into the mode alone, or is empty, is a removal. */
static int xattr_acl(const struct xattr_args *args, const struct ns_inode *inode,
                     struct ns_stat *st, bool *remove)
{
    bool access = strcmp(args->name, ACL_ACCESS) == 0, plain = false;
    uint8_t flag = access ? NSREC_INODE_ACL : NSREC_INODE_DEFAULT_ACL;
    uint32_t mode = st->mode;
    int err;

    if (S_ISLNK(inode->st.mode))
        return -EOPNOTSUPP;
    if (!access && !S_ISDIR(inode->st.mode))
        return *remove ? 0 : -EACCES;
    if (!*remove) {
        err = acl_check(args->value, args->len, &mode, &plain);
        if (err)
            return err;
        if (access && args->len > 4)
            st->mode = mode;
        *remove = access ? plain : args->len == 4;
    }
    st->flags = (uint8_t)(*remove ? st->flags & ~flag : st->flags | flag);
    return 0;
}

static int xattr_commit(struct ns_call *c, const struct xattr_args *args, struct ns_inode *inode,
                        const struct ns_stat *st, bool remove)
{
    size_t name_len = strlen(args->name);
    struct obj_tx *tx;
    int err;

    err = obj_tx_begin(c->ns->cont, nsrec_dir_id(inode->birth), &tx);
    if (err)
        return err;
    if (!remove)
        err = xattr_put(tx, inode->birth, inode, args->name, name_len, args->value, args->len);
    else if (c->xattr.err == 0)
        err = xattr_del(tx, inode->birth, inode, args->name, name_len);
    if (!err)
        err = inode_put_record(tx, inode->birth, inode, st);
    if (err) {
        obj_tx_abort(tx);
        return err;
    }
    return call_commit(c, tx);
}

static int xattr_change_locked(struct ns_call *c, const struct xattr_args *args)
{
    bool remove = args->remove, exists;
    struct ns_inode *inode;
    struct ns_stat st;
    int err;

    err = call_writable(c);
    if (!err)
        err = inode_get(c, args->ino, &inode);
    if (!err && strncmp(args->name, "user.", 5) == 0 && !S_ISREG(inode->st.mode) &&
        !S_ISDIR(inode->st.mode))
        err = -EPERM;
    if (!err)
        err = inode_idle(c, inode);
    if (!err)
        err = xattr_peek(c, inode, args->name);
    if (err)
        return err;
    exists = c->xattr.err == 0;
    if (!exists && (remove || c->flags & DFE_XATTR_REPLACE))
        return -ENODATA;
    if (exists && c->flags & DFE_XATTR_CREATE)
        return -EEXIST;
    st = inode->st;
    if (xattr_is_acl(args->name)) {
        err = xattr_acl(args, inode, &st, &remove);
        if (err)
            return err;
    }
    if (!exists && !remove && st.nxattr == UINT16_MAX)
        return -ENOSPC;
    st.nxattr = (uint16_t)(st.nxattr + !remove - exists);
    st.ctime_ns = c->now_ns;
    err = xattr_commit(c, args, inode, &st, remove);
    if (err)
        return err;
    inode->st = st;
    inode->xattr_changes++;
    if (S_ISDIR(st.mode) && xattr_is_acl(args->name)) {
        free(inode->dir->acl);
        inode->dir->acl = NULL;
    }
    return 0;
}

static int xattr_change(struct ns *ns, const struct xattr_args *args, unsigned flags)
{
    struct ns_call c;
    int err;

    call_begin(&c, ns, flags);
    do
        err = xattr_change_locked(&c, args);
    while (call_retry(&c, &err));
    return call_end(&c, err);
}

int ns_setxattr(struct ns *ns, uint64_t ino, const char *name, size_t name_len, const void *value,
                size_t len, unsigned flags)
{
    struct xattr_args args = {.ino = ino, .value = value, .len = len};
    int err;

    if (flags & DFE_XATTR_CREATE && flags & DFE_XATTR_REPLACE)
        return -EINVAL;
    err = xattr_name(name, name_len, args.name);
    if (err)
        return err;
    if (len > DFE_XATTR_VALUE_BYTES)
        return -E2BIG;
    return xattr_change(ns, &args, flags);
}

int ns_removexattr(struct ns *ns, uint64_t ino, const char *name, size_t name_len, unsigned flags)
{
    struct xattr_args args = {.ino = ino, .remove = true};
    int err;

    err = xattr_name(name, name_len, args.name);
    return err ? err : xattr_change(ns, &args, flags & DFE_NOWAIT);
}
