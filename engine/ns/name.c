/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names: hash, collisions, and the records of entries.
 *
 * A name lives at the first free cookie at or after its hash. Every record that it passed on the
 * way has MORE set, so that a search ends at the first record without it: in the ordinary case
 * after one. A record with MORE that is removed leaves a tombstone, which the next name to pass
 * reuses.
 */
#include <errno.h>
#include <string.h>

#include "base/hash.h"
#include "ns/impl.h"

int name_check(const char *name, size_t len)
{
    if (len == 0)
        return -ENOENT;
    if (len > DFE_NAME_BYTES)
        return -ENAMETOOLONG;
    if (memchr(name, '/', len) || memchr(name, '\0', len))
        return -EINVAL;
    if (name[0] == '.' && (len == 1 || (len == 2 && name[1] == '.')))
        return -EINVAL;
    return 0;
}

uint64_t name_hash(const struct ns *ns, const char *name, size_t len)
{
    uint64_t hash = base_siphash(ns->hash_key, name, len) >> (64 - ns->hash_bits);

    /* Room for the faces' cookies below, and for a chain above. */
    if (hash >= NS_COOKIE_END - 2 * NS_COOKIE_FIRST)
        hash -= 2 * NS_COOKIE_FIRST;
    return hash + NS_COOKIE_FIRST;
}

bool name_known(const struct ns_call *c, const struct ns_inode *dir, uint64_t cookie)
{
    if (cookie < dir->dir->known_to)
        return true;
    for (unsigned i = 0; i < DFE_ARRAY_LEN(c->ranges); i++) {
        if (c->ranges[i].dir == dir && cookie >= c->ranges[i].from && cookie < c->ranges[i].to)
            return true;
    }
    return false;
}

static bool name_is(const struct ns_entry *e, const char *name, size_t len)
{
    return !(e->flags & (ENTRY_TOMB | ENTRY_GONE)) && e->name_len == len &&
           memcmp(e->name, name, len) == 0;
}

/* A small directory becomes known as a whole. Of a larger one, each call that has to wait learns a
 * piece, so that some calls later nobody waits; and then the place in question. Of one that memory
 * cannot hold, the place alone. */
static int name_load(struct ns_call *c, struct ns_inode *dir, uint64_t cookie)
{
    bool small = dir->st.size <= NS_SMALL_DIR;
    bool piece = !c->advanced && dir->st.size <= c->ns->entry_bound / 4;

    c->dir = dir;
    c->from = small || piece ? dir->dir->known_to : cookie;
    c->limit = small ? 2 * NS_SMALL_DIR : piece ? NS_SMALL_DIR / 2 : 4;
    c->advanced = true;
    return call_need(c, NEED_RANGE);
}

/* Asks the store's memory for the one record that most probably is it. */
static int name_peek(struct ns_call *c, struct ns_inode *dir, uint64_t cookie, const char *name,
                     size_t len, struct ns_entry **out)
{
    struct nsrec_entry rec;
    struct nsrec_key key;
    size_t got;
    int err;

    nsrec_key(&key, 'e', cookie, name, len);
    err = obj_kv_get_nowait(c->ns->cont, nsrec_dir_id(dir->ino), &key.key, &rec, sizeof(rec), &got);
    if (err == -ENOENT || err == -EINPROGRESS)
        return name_load(c, dir, cookie);
    if (!err)
        err = nsrec_entry_decode(dir->ino, &key.key, &rec, got, &rec);
    if (!err)
        err = dir_reserve(dir->dir);
    if (err)
        return err;
    *out = dir_entry_new(name, len, rec.ino, rec.birth, (uint32_t)rec.type << 12);
    if (!*out)
        return -ENOMEM;
    (*out)->cookie = cookie;
    (*out)->flags = rec.flags & ENTRY_MORE;
    dir_insert(dir->dir, *out);
    return 0;
}

int name_find(struct ns_call *c, struct ns_inode *dir, const char *name, size_t len,
              struct ns_entry **out)
{
    *out = NULL;
    if (dir->st.nlink == 0)
        return -ENOENT;
    for (uint64_t cookie = name_hash(c->ns, name, len);; cookie++) {
        struct ns_entry *e = dir_get(dir->dir, cookie);

        if (!e && !name_known(c, dir, cookie))
            return name_peek(c, dir, cookie, name, len, out);
        if (!e || e->flags & ENTRY_GONE)
            return 0;
        if (name_is(e, name, len)) {
            *out = e;
            return 0;
        }
        if (!(e->flags & ENTRY_MORE))
            return 0;
    }
}

int name_place(struct ns_call *c, struct ns_inode *dir, const char *name, size_t len,
               struct name_slot *out)
{
    uint64_t cookie = name_hash(c->ns, name, len);
    struct ns_entry *e;
    int err;

    *out = (struct name_slot){.dir = dir, .hash = cookie};
    err = dir_reserve(dir->dir);
    if (err)
        return err;
    for (;; cookie++) {
        e = dir_get(dir->dir, cookie);
        if (!e && !name_known(c, dir, cookie))
            return name_load(c, dir, cookie);
        if (!e || e->flags & (ENTRY_GONE | ENTRY_TOMB))
            break;
    }
    out->cookie = cookie;
    out->old = e;
    out->flags = e ? e->flags & ENTRY_MORE : 0;
    return 0;
}

static int name_put_record(struct obj_tx *tx, uint64_t home, const struct ns_inode *dir,
                           uint64_t cookie, const struct ns_entry *e, uint64_t ino, uint64_t birth,
                           uint8_t type, uint8_t flags)
{
    struct nsrec_entry rec;
    struct nsrec_key key;

    nsrec_entry_encode(&rec, ino, birth, type, flags & ENTRY_MORE);
    nsrec_key(&key, 'e', cookie, e->name, type ? e->name_len : 0);
    return obj_tx_put(tx, tx_when(home, dir->ino), nsrec_dir_id(dir->ino), &key.key, &rec,
                      sizeof(rec));
}

static int name_del_record(struct obj_tx *tx, uint64_t home, const struct ns_inode *dir,
                           uint64_t cookie, const char *name, size_t len)
{
    struct nsrec_key key;

    nsrec_key(&key, 'e', cookie, name, len);
    return obj_tx_del(tx, tx_when(home, dir->ino), nsrec_dir_id(dir->ino), &key.key);
}

int name_put(struct obj_tx *tx, uint64_t home, const struct name_slot *slot,
             const struct ns_entry *e)
{
    struct ns_inode *dir = slot->dir;
    int err = 0;

    for (uint64_t cookie = slot->hash; cookie < slot->cookie && !err; cookie++) {
        struct ns_entry *passed = dir_get(dir->dir, cookie);

        if (!(passed->flags & ENTRY_MORE))
            err = name_put_record(tx, home, dir, cookie, passed, passed->ino, passed->birth,
                                  passed->type, ENTRY_MORE);
    }
    if (!err && slot->old && slot->old->flags & ENTRY_TOMB)
        err = name_del_record(tx, home, dir, slot->cookie, NULL, 0);
    if (!err)
        err = name_put_record(tx, home, dir, slot->cookie, e, e->ino, e->birth, e->type,
                              slot->flags);
    return err;
}

void name_apply_put(const struct name_slot *slot, struct ns_entry *e)
{
    struct ns_dir *dir = slot->dir->dir;

    for (uint64_t cookie = slot->hash; cookie < slot->cookie; cookie++)
        dir_get(dir, cookie)->flags |= ENTRY_MORE;
    if (slot->old)
        dir_drop(dir, slot->old);
    e->cookie = slot->cookie;
    e->flags = slot->flags;
    dir_insert(dir, e);
}

int name_del(struct obj_tx *tx, uint64_t home, const struct ns_inode *dir, const struct ns_entry *e,
             bool more)
{
    int err = name_del_record(tx, home, dir, e->cookie, e->name, e->name_len);

    if (!err && (more || e->flags & ENTRY_MORE))
        err = name_put_record(tx, home, dir, e->cookie, e, 0, 0, 0, ENTRY_MORE);
    return err;
}

int name_repoint(struct obj_tx *tx, uint64_t home, const struct ns_inode *dir,
                 const struct ns_entry *e, const struct ns_inode *to)
{
    return name_put_record(tx, home, dir, e->cookie, e, to->ino, to->birth,
                           (uint8_t)((to->st.mode & S_IFMT) >> 12), e->flags);
}
