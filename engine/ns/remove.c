/* SPDX-License-Identifier: Apache-2.0 */
/* Removing names. An inode without links stays, as an orphan on record, until nobody uses it; the
 * worker then reclaims it. */
#include <errno.h>

#include "ns/impl.h"

int link_drop(struct obj_tx *tx, uint64_t home, const struct ns_inode *inode, struct ns_stat *st,
              int64_t now_ns)
{
    struct nsrec_orphan orphan = {.version = NSREC_VERSION, .birth = htole64(inode->birth)};
    struct nsrec_key key;
    int err;

    st->nlink = S_ISDIR(st->mode) ? 0 : st->nlink - 1;
    st->ctime_ns = now_ns;
    err = inode_put_record(tx, home, inode, st);
    if (err || st->nlink > 0)
        return err;
    /* Before: an orphan's record without its unlink is harmless, the reverse would leak. */
    nsrec_key(&key, 'o', inode->ino, NULL, 0);
    return obj_tx_put(tx, OBJ_BEFORE, nsrec_meta_id(), &key.key, &orphan, sizeof(orphan));
}

static int remove_commit(struct ns_call *c, struct ns_inode *dir, const struct ns_stat *dir_st,
                         const struct ns_entry *e, struct ns_inode *inode, struct ns_stat *st)
{
    struct obj_tx *tx;
    int err;

    err = obj_tx_begin(c->ns->cont, nsrec_dir_id(dir->ino), &tx);
    if (err)
        return err;
    err = name_del(tx, dir->ino, dir, e, false);
    if (!err)
        err = link_drop(tx, dir->ino, inode, st, c->now_ns);
    if (!err)
        err = inode_put_record(tx, dir->ino, dir, dir_st);
    if (err) {
        obj_tx_abort(tx);
        return err;
    }
    return call_commit(c, tx);
}

static int remove_locked(struct ns_call *c, uint64_t dir_ino, const char *name, size_t name_len,
                         bool rmdir)
{
    struct ns_inode *dir, *inode;
    struct ns_stat st, dir_st;
    struct ns_entry *e;
    int err;

    err = call_writable(c);
    if (!err)
        err = inode_get_dir(c, dir_ino, &dir);
    if (!err)
        err = name_find(c, dir, name, name_len, &e);
    if (!err && !e)
        err = -ENOENT;
    if (!err)
        err = inode_need(c, e->ino, e->birth, dir, &inode);
    if (err)
        return err;
    if (S_ISDIR(inode->st.mode) != rmdir)
        return rmdir ? -ENOTDIR : -EISDIR;
    if (rmdir && inode->st.size > 0)
        return -ENOTEMPTY;
    err = inode_idle(c, inode);
    if (err)
        return err;
    st = inode->st;
    dir_st = dir->st;
    dir_st.size--;
    dir_st.nlink -= rmdir;
    dir_st.mtime_ns = dir_st.ctime_ns = c->now_ns;
    err = remove_commit(c, dir, &dir_st, e, inode, &st);
    if (err)
        return err;
    dir_erase(dir->dir, e);
    dir->st = dir_st;
    inode->st = st;
    if (st.nlink == 0)
        inode_orphan(inode);
    if (rmdir)
        dir_set_parent(inode, NULL);
    inode_rest(inode);
    return 0;
}

static int remove_name(struct ns *ns, uint64_t dir, const char *name, size_t name_len, bool rmdir,
                       unsigned flags)
{
    struct ns_call c;
    int err;

    err = name_check(name, name_len);
    if (err)
        return err;
    call_begin(&c, ns, flags);
    do
        err = remove_locked(&c, dir, name, name_len, rmdir);
    while (call_retry(&c, &err));
    return call_end(&c, err);
}

int ns_unlink(struct ns *ns, uint64_t dir, const char *name, size_t name_len, unsigned flags)
{
    return remove_name(ns, dir, name, name_len, false, flags);
}

int ns_rmdir(struct ns *ns, uint64_t dir, const char *name, size_t name_len, unsigned flags)
{
    return remove_name(ns, dir, name, name_len, true, flags);
}
