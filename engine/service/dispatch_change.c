/* SPDX-License-Identifier: Apache-2.0 */
/* The dispatcher's side of coherence: marks for the calling mount, changes under other mounts. */
#include <errno.h>
#include <string.h>

#include "service/dispatch_int.h"

/* -- what goes to a mount --------------------------------------------------------------------- */

int mark(struct call *c, uint64_t ino, unsigned marks)
{
    int ret;

    if (!c->mount)
        return 0;
    if (!c->holds)
        cohere_hold(c->hc->cohere);
    ret = refs_mark(&c->h->refs, ino, marks);
    if (!c->holds)
        cohere_release(c->hc->cohere);
    return ret;
}

static bool counts_refs(const struct call *c)
{
    return c->mount || c->flags & DFE_REF;
}

int reserve_refs(struct call *c, uint64_t n)
{
    c->seen = cohere_changes(c->hc->cohere);
    return counts_refs(c) ? refs_reserve(&c->h->refs, n) : 0;
}

void unreserve_refs(struct call *c, uint64_t n)
{
    if (counts_refs(c))
        refs_unreserve(&c->h->refs, n);
}

bool found(struct call *c, uint64_t ino, unsigned marks)
{
    bool surplus = false;

    if (c->mount && !c->holds)
        cohere_hold(c->hc->cohere);
    if (counts_refs(c))
        surplus = refs_add(&c->h->refs, ino, c->flags & DFE_REF ? 1 : 0, c->mount ? marks : 0);
    if (c->mount && !c->holds)
        cohere_release(c->hc->cohere);
    if (surplus)
        dfe_fs_unref(c->fs, ino, 1);
    return c->mount && cohere_changes(c->hc->cohere) != c->seen;
}

void tell_shared(struct call *c, struct dfe_attr *attr)
{
    if (!c->mount)
        return;
    if (cohere_shared(c->hc->cohere, attr->ino))
        attr->flags |= DFE_ATTR_SHARED;
    growth_hide(&c->hc->growth, c->h->face, attr);
}

void reply_attr(struct call *c, struct dfe_attr *attr)
{
    tell_shared(c, attr);
    reply_struct(c, attr, sizeof(*attr));
}

void reply_found(struct call *c, struct dfe_attr *attr)
{
    struct dfe_attr fresh;

    /* Something has changed before the mark was there (cohere.h, 2): once more, now that it is. */
    if (found(c, attr->ino, MARK_ATTR)) {
        if (dfe_fs_getattr(c->fs, attr->ino, DFE_NOWAIT, &fresh) == 0)
            *attr = fresh;
        else
            attr->flags |= DFE_ATTR_SHARED;
    }
    reply_attr(c, attr);
}

/* -- changes ---------------------------------------------------------------------------------- */

void change_inode(struct call *c, uint64_t ino, uint32_t what)
{
    cohere_target(&c->change, ino, what, NULL, 0);
}

void change_name(struct call *c, uint64_t dir, const void *name, size_t len)
{
    c->names |= cohere_name(dir, name, len);
    /* A name that is too long exists nowhere, and its change fails. */
    if (len < sizeof(((struct dfe_inval *)0)->name))
        cohere_target(&c->change, dir, DFE_INVAL_ENTRY, name, (uint32_t)len);
}

void change_named(struct call *c, uint64_t dir, const void *name, size_t len)
{
    c->victims[c->n_victims++] = (struct victim){dir, name, len};
}

/* From here to names_end the names lead where they do now. Who waits looks after the first wave:
 * that is there for dirty pages, and of a victim only attributes change. */
static int names_begin(struct call *c)
{
    struct cohere *co = c->hc->cohere;
    struct dfe_attr attr;
    int ret = cohere_names_lock(co, c->names, !must_not_wait(c));

    if (ret < 0)
        c->names = 0; /* nothing is held */
    for (unsigned i = 0; ret == 0 && i < c->n_victims; i++) {
        const struct victim *v = &c->victims[i];

        if (!cohere_others(co, c->change.self) && !cohere_young(co))
            break; /* one that comes now waits for us: op_fs_mount */
        ret = dfe_fs_lookup(c->fs, v->dir, v->name, v->len, c->flags & DFE_NOWAIT, &attr);
        if (ret == 0) {
            change_inode(c, attr.ino, DFE_INVAL_ATTR);
            cohere_changed(co, attr.ino);
            if (i + 1 == c->n_victims)
                c->victim = attr.ino;
        } else if (ret != -EINPROGRESS) {
            ret = 0; /* what is wrong with the name, the change itself will say */
        }
    }
    return ret;
}

static void names_end(struct call *c)
{
    cohere_names_unlock(c->hc->cohere, c->names);
    c->names = 0;
}

/* A call that must not wait runs from memory, so marks can wait for it: what is not marked when it
 * looks is not marked when it has been applied, and one look is enough. */
static int begin_at_once(struct call *c)
{
    struct cohere *co = c->hc->cohere;

    if (!cohere_others(co, c->change.self))
        return 0;
    cohere_hold(co);
    if (cohere_due(co, &c->change)) {
        cohere_release(co);
        return -EINPROGRESS;
    }
    c->holds = true;
    return 0;
}

/* A change that runs from memory alone leaves no kernel with a page of before (cohere.h), and so
 * needs not be noted as growth. */
static void growth_note(struct call *c, uint64_t ino)
{
    struct growth *growth = &c->hc->growth;
    struct dfe_attr before;

    c->growing.ino = ino;
    if (must_not_wait(c))
        return;
    growth_begin(growth, &c->growing, c->change.self);
    /* What is wrong with the inode, the change itself will say. */
    if (dfe_fs_getattr(c->fs, ino, 0, &before) == 0)
        growth_before(growth, &c->growing, before.size);
}

void change_grew(struct call *c, uint64_t end)
{
    if (c->growing.after < end)
        c->growing.after = end;
}

int change_begin(struct call *c)
{
    struct cohere *co = c->hc->cohere;
    int ret;

    for (unsigned i = 0; i < c->change.n; i++) {
        const struct cohere_target *t = &c->change.t[i];

        if (t->what == DFE_INVAL_PAGES && !c->mount)
            cohere_wrote(co, t->ino);
        if (t->what == DFE_INVAL_ENTRY)
            cohere_renamed(co, t->ino, t->name, t->name_len);
        else
            cohere_changed(co, t->ino);
    }
    if (!must_not_wait(c) && cohere_due(co, &c->change)) {
        cohere_send(co, &c->change);
        cohere_wait(co, &c->change);
    }
    ret = names_begin(c);
    if (ret == 0 && must_not_wait(c))
        ret = begin_at_once(c);
    for (unsigned i = 0; ret == 0 && i < c->change.n; i++) {
        if (c->change.t[i].what == DFE_INVAL_PAGES)
            growth_note(c, c->change.t[i].ino);
    }
    if (ret < 0)
        names_end(c);
    return ret;
}

int64_t change_end(struct call *c, int64_t ret)
{
    struct cohere *co = c->hc->cohere;

    if (ret != -EINPROGRESS)
        cohere_count(co);
    names_end(c);
    if (c->holds)
        cohere_release(co);
    c->holds = false;
    if (ret == -EINPROGRESS || must_not_wait(c) || !cohere_due(co, &c->change)) {
        /* nobody has to know */
    } else if (ret < 0) {
        /* Nothing has changed, or not all of it: nobody has been promised anything. */
        cohere_tell(co, &c->change);
    } else {
        cohere_send(co, &c->change);
        cohere_wait(co, &c->change);
    }
    growth_end(&c->hc->growth, &c->growing);
    return ret;
}
