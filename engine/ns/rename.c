/* SPDX-License-Identifier: Apache-2.0 */
/* Rename in all its forms. Every check and the commit happen under one hold of the lock, so that
 * moves of directories cannot make a cycle. */
#include <errno.h>
#include <stdlib.h>

#include "ns/impl.h"

struct rename_args {
    uint64_t dir, new_dir;
    const char *name, *new_name;
    size_t name_len, new_name_len;
    bool noreplace, exchange;
};

/* A rename on its way. `to` is NULL where the new name is absent; then `entry` goes into `slot`. */
struct rename_move {
    struct ns_inode *dir, *new_dir;
    struct ns_entry *e, *new_e;
    struct ns_inode *from, *to;
    struct name_slot slot;
    struct ns_entry *entry;
    struct ns_stat dir_st, new_dir_st, from_st, to_st;
};

static bool rename_is_below(const struct ns_inode *inode, const struct ns_inode *top)
{
    while (inode && inode != top && inode->dir->parent != inode)
        inode = inode->dir->parent; /* invariant 3 */
    return inode == top;
}

static int rename_find(struct ns_call *c, const struct rename_args *args, struct rename_move *m)
{
    int err;

    err = inode_get_dir(c, args->dir, &m->dir);
    if (!err)
        err = inode_get_dir(c, args->new_dir, &m->new_dir);
    if (!err)
        err = name_find(c, m->dir, args->name, args->name_len, &m->e);
    if (!err && !m->e)
        err = -ENOENT;
    if (!err)
        err = inode_need(c, m->e->ino, m->e->birth, m->dir, &m->from);
    if (!err)
        err = name_find(c, m->new_dir, args->new_name, args->new_name_len, &m->new_e);
    if (!err && m->new_e)
        err = inode_need(c, m->new_e->ino, m->new_e->birth, m->new_dir, &m->to);
    return err;
}

static int rename_check(const struct rename_args *args, const struct rename_move *m)
{
    bool from_dir = S_ISDIR(m->from->st.mode), to_dir = m->to && S_ISDIR(m->to->st.mode);

    if (args->noreplace && m->to)
        return -EEXIST;
    if (args->exchange && !m->to)
        return -ENOENT;
    if (from_dir && rename_is_below(m->new_dir, m->from))
        return -EINVAL;
    if (args->exchange)
        return to_dir && rename_is_below(m->dir, m->to) ? -EINVAL : 0;
    if (!m->to || m->to == m->from)
        return 0;
    if (from_dir && !to_dir)
        return -ENOTDIR;
    if (!from_dir && to_dir)
        return -EISDIR;
    return to_dir && m->to->st.size > 0 ? -ENOTEMPTY : 0;
}

/* Attributes after the move. Where both names are in one directory, dir_st alone counts. */
static void rename_attrs(const struct ns_call *c, const struct rename_args *args,
                         struct rename_move *m)
{
    struct ns_stat *new_dir_st = m->dir == m->new_dir ? &m->dir_st : &m->new_dir_st;
    bool from_dir = S_ISDIR(m->from->st.mode), to_dir = m->to && S_ISDIR(m->to->st.mode);

    m->dir_st = m->dir->st;
    m->new_dir_st = m->new_dir->st;
    m->dir_st.mtime_ns = m->dir_st.ctime_ns = c->now_ns;
    m->new_dir_st.mtime_ns = m->new_dir_st.ctime_ns = c->now_ns;
    m->from_st = m->from->st;
    m->from_st.ctime_ns = c->now_ns;
    if (from_dir) {
        m->dir_st.nlink--;
        new_dir_st->nlink++;
        m->from_st.parent = m->new_dir->ino;
    }
    if (!m->to) {
        m->dir_st.size--;
        new_dir_st->size++;
        return;
    }
    m->to_st = m->to->st;
    if (args->exchange) {
        m->to_st.ctime_ns = c->now_ns;
        if (to_dir) {
            new_dir_st->nlink--;
            m->dir_st.nlink++;
            m->to_st.parent = m->dir->ino;
        }
        return;
    }
    m->dir_st.size--;
    new_dir_st->nlink -= to_dir;
}

static int rename_put(struct ns_call *c, const struct rename_args *args, struct rename_move *m,
                      struct obj_tx *tx)
{
    uint64_t home = m->new_dir->ino;
    bool passes;
    int err;

    if (m->to)
        err = name_repoint(tx, home, m->new_dir, m->new_e, m->from);
    else
        err = name_put(tx, home, &m->slot, m->entry);
    if (!err && args->exchange)
        err = name_repoint(tx, home, m->dir, m->e, m->to);
    passes = !m->to && m->dir == m->new_dir && m->e->cookie >= m->slot.hash &&
             m->e->cookie < m->slot.cookie;
    if (!err && !args->exchange)
        err = name_del(tx, home, m->dir, m->e, passes);
    if (!err)
        err = inode_put_record(tx, home, m->from, &m->from_st);
    if (!err && m->to && args->exchange)
        err = inode_put_record(tx, home, m->to, &m->to_st);
    if (!err && m->to && !args->exchange)
        err = link_drop(tx, home, m->to, &m->to_st, c->now_ns);
    if (!err)
        err = inode_put_record(tx, home, m->dir, &m->dir_st);
    if (!err && m->dir != m->new_dir)
        err = inode_put_record(tx, home, m->new_dir, &m->new_dir_st);
    return err;
}

static void entry_point(struct ns_entry *e, const struct ns_inode *inode)
{
    e->ino = inode->ino;
    e->birth = inode->birth;
    e->type = (uint8_t)((inode->st.mode & S_IFMT) >> 12);
}

static void rename_apply(struct ns_call *c, const struct rename_args *args, struct rename_move *m)
{
    if (m->to)
        entry_point(m->new_e, m->from);
    else
        name_apply_put(&m->slot, m->entry);
    if (args->exchange)
        entry_point(m->e, m->to);
    else
        dir_erase(m->dir->dir, m->e);
    m->dir->st = m->dir_st;
    if (m->dir != m->new_dir)
        m->new_dir->st = m->new_dir_st;
    m->from->st = m->from_st;
    if (S_ISDIR(m->from_st.mode))
        dir_set_parent(m->from, m->new_dir);
    if (!m->to)
        return;
    m->to->st = m->to_st;
    if (S_ISDIR(m->to_st.mode))
        dir_set_parent(m->to, args->exchange ? m->dir : NULL);
    if (m->to_st.nlink == 0)
        inode_orphan(m->to);
    inode_rest(m->to);
}

/* What has to be true, or be done, before the move: nobody writes the two records, and a file that
 * replaces another has its data published first, so that no crash leaves neither content. */
static int rename_ready(struct ns_call *c, const struct rename_args *args, struct rename_move *m)
{
    int err;

    if (m->to && !args->exchange && !c->published && S_ISREG(m->from->st.mode) &&
        data_dirty(m->from)) {
        c->published = true;
        c->inode = m->from;
        return call_need(c, NEED_PUBLISH);
    }
    err = inode_idle(c, m->from);
    if (!err && m->to)
        err = inode_idle(c, m->to);
    if (err || m->to)
        return err;
    err = name_place(c, m->new_dir, args->new_name, args->new_name_len, &m->slot);
    if (err)
        return err;
    m->entry = dir_entry_new(args->new_name, args->new_name_len, m->from->ino, m->from->birth,
                             m->from->st.mode);
    return m->entry ? 0 : -ENOMEM;
}

static int rename_locked(struct ns_call *c, const struct rename_args *args)
{
    struct rename_move m = {0};
    struct obj_tx *tx;
    int err;

    err = call_writable(c);
    if (!err)
        err = rename_find(c, args, &m);
    if (!err)
        err = rename_check(args, &m);
    if (err || m.from == m.to) /* links of one inode: nothing to do, says POSIX */
        return err;
    err = rename_ready(c, args, &m);
    if (err)
        return err;
    rename_attrs(c, args, &m);
    err = obj_tx_begin(c->ns->cont, nsrec_dir_id(m.new_dir->ino), &tx);
    if (!err) {
        err = rename_put(c, args, &m, tx);
        if (err)
            obj_tx_abort(tx);
        else
            err = call_commit(c, tx);
    }
    if (err)
        free(m.entry);
    else
        rename_apply(c, args, &m);
    return err;
}

int ns_rename(struct ns *ns, uint64_t dir, const char *name, size_t name_len, uint64_t new_dir,
              const char *new_name, size_t new_name_len, unsigned flags)
{
    struct rename_args args = {
        .dir = dir,
        .name = name,
        .name_len = name_len,
        .new_dir = new_dir,
        .new_name = new_name,
        .new_name_len = new_name_len,
        .noreplace = flags & DFE_NOREPLACE,
        .exchange = flags & DFE_EXCHANGE,
    };
    struct ns_call c;
    int err;

    if (args.noreplace && args.exchange)
        return -EINVAL;
    err = name_check(name, name_len);
    if (!err)
        err = name_check(new_name, new_name_len);
    if (err)
        return err;
    call_begin(&c, ns, flags);
    do
        err = rename_locked(&c, &args);
    while (call_retry(&c, &err));
    return call_end(&c, err);
}
