/* SPDX-License-Identifier: Apache-2.0 */
/* Listing directories. Cookies are places in the hash order, so whatever is added or removed
 * meanwhile, an entry that stays is seen exactly once. */
#include <errno.h>
#include <string.h>

#include "ns/impl.h"

/* With DFE_NOWAIT, a page that is at least this long is an answer; a shorter one is better made by
 * a thread that may wait. */
#define READDIR_NOWAIT_MIN 32u

struct readdir_page {
    char *bytes;
    size_t cap, used;
    unsigned entries;
    bool full;
};

static bool page_add(struct readdir_page *page, const struct ns_entry *e,
                     const struct dfe_attr *attr)
{
    struct dfe_dirent ent = {.attr = *attr, .cookie = e->cookie, .name_len = e->name_len};
    size_t len = sizeof(ent) + e->name_len;

    ent.rec_len = (uint32_t)((len + 7) / 8 * 8);
    if (page->entries == NS_PAGE_ENTRIES || ent.rec_len > page->cap - page->used) {
        page->full = true;
        return false;
    }
    memcpy(page->bytes + page->used, &ent, sizeof(ent));
    memcpy(page->bytes + page->used + sizeof(ent), e->name, e->name_len);
    memset(page->bytes + page->used + len, 0, ent.rec_len - len);
    page->used += ent.rec_len;
    page->entries++;
    return true;
}

/* The next real entry after *cookie, or NULL at the end; -EINPROGRESS where memory ends first. */
static int readdir_next(struct ns_call *c, struct ns_inode *dir, uint64_t cookie,
                        struct ns_entry **out)
{
    uint64_t from = cookie < NS_COOKIE_FIRST ? NS_COOKIE_FIRST : cookie + 1;
    struct ns_entry *e = dir_next(dir->dir, from);
    uint64_t known = from > dir->dir->known_to ? from : dir->dir->known_to;

    while (e && e->flags & (ENTRY_TOMB | ENTRY_GONE))
        e = dir_next(dir->dir, e->cookie + 1);
    *out = e;
    for (unsigned i = 0; i < DFE_ARRAY_LEN(c->ranges); i++) {
        struct call_range *r = &c->ranges[i];

        if (r->dir == dir && r->from <= known && r->to > known)
            known = r->to;
    }
    if (known == UINT64_MAX || (e && e->cookie < known))
        return 0;
    c->dir = dir;
    c->from = known;
    c->limit = NS_PAGE_ENTRIES;
    return call_need(c, NEED_RANGE);
}

/* Names and types are in the entry; only DFE_PLUS needs the inodes. */
static int readdir_attr(struct ns_call *c, struct ns_inode *dir, const struct ns_entry *e,
                        struct dfe_attr *attr)
{
    struct ns_inode *inode;
    int err;

    memset(attr, 0, sizeof(*attr));
    attr->ino = e->ino;
    attr->mode = (uint32_t)e->type << 12;
    if (!(c->flags & (DFE_PLUS | DFE_REF)))
        return 0;
    err = inode_need(c, e->ino, e->birth, dir, &inode);
    if (!err && c->flags & DFE_PLUS)
        inode_attr(inode, attr);
    return err;
}

static int readdir_fill(struct ns_call *c, struct ns_inode *dir, uint64_t cookie,
                        struct readdir_page *page)
{
    struct dfe_attr attr;
    struct ns_entry *e;
    int err;

    page->used = page->entries = 0;
    for (;;) {
        err = readdir_next(c, dir, cookie, &e);
        if (!err && !e)
            return 0;
        if (!err)
            err = readdir_attr(c, dir, e, &attr);
        if (err)
            return err;
        if (!page_add(page, e, &attr))
            return page->used > 0 ? 0 : -EINVAL;
        cookie = e->cookie;
    }
}

/* Every inode that the page will show, loaded one after the other without starting again. */
static int readdir_load(struct ns_call *c, struct ns_inode *dir, uint64_t cookie, size_t cap)
{
    size_t room = cap / sizeof(struct dfe_dirent);
    struct ns_inode *inode;
    struct ns_entry *e;
    int err = 0;

    if (room > NS_PAGE_ENTRIES)
        room = NS_PAGE_ENTRIES;
    while (room-- > 0 && !err) {
        if (readdir_next(c, dir, cookie, &e) || !e)
            break;
        cookie = e->cookie;
        err = inode_need(c, e->ino, e->birth, dir, &inode);
        if (err == -EINPROGRESS && c->need == NEED_INODE)
            err = inode_load(c); /* `e` may be gone after this, the cookie is not */
    }
    return err == -EINPROGRESS ? 0 : err;
}

static void readdir_ref(struct ns_call *c, const struct readdir_page *page)
{
    struct dfe_dirent ent;

    for (size_t at = 0; at < page->used; at += ent.rec_len) {
        memcpy(&ent, page->bytes + at, sizeof(ent));
        inode_ref(inode_find(c->ns, ent.attr.ino));
    }
}

static int readdir_locked(struct ns_call *c, uint64_t ino, uint64_t cookie,
                          struct readdir_page *page)
{
    struct ns_inode *dir;
    int err;

    err = inode_get_dir(c, ino, &dir);
    if (err)
        return err;
    if (dir->st.nlink == 0) {
        page->used = 0;
        return 0;
    }
    err = readdir_fill(c, dir, cookie, page);
    if (err == -EINPROGRESS && page->entries >= READDIR_NOWAIT_MIN && c->flags & DFE_NOWAIT)
        err = 0;
    if (err == -EINPROGRESS && c->need == NEED_RANGE && page->entries > 0)
        err = 0; /* the rest in the next page: ranges are loaded by the page */
    if (err == -EINPROGRESS && c->need == NEED_INODE && !(c->flags & DFE_NOWAIT)) {
        inode_pin(dir);
        err = readdir_load(c, dir, cookie, page->cap);
        inode_unpin(dir);
        if (!err)
            err = readdir_fill(c, dir, cookie, page);
    }
    if (!err && c->flags & DFE_REF)
        readdir_ref(c, page);
    return err;
}

ssize_t ns_readdir(struct ns *ns, uint64_t dir, uint64_t cookie, void *page, size_t cap,
                   unsigned flags)
{
    struct readdir_page p = {.bytes = page, .cap = cap};
    struct ns_call c;
    int err;

    if (cookie >= NS_COOKIE_END)
        return cookie == UINT64_MAX ? 0 : -EINVAL;
    call_begin(&c, ns, flags);
    do
        err = readdir_locked(&c, dir, cookie, &p);
    while (call_retry(&c, &err));
    err = call_end(&c, err);
    return err ? err : (ssize_t)p.used;
}
