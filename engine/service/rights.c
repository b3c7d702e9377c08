/* SPDX-License-Identifier: Apache-2.0 */
/* Rights of a session to an inode: by who it is, or by a descriptor that was shown. */
#include "service/rights.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "service/session.h"

#define CAPS_XATTR "security.capability"

void rights_open(struct rights *r)
{
    memset(r, 0, sizeof(*r));
    pthread_mutex_init(&r->lock, NULL);
}

void rights_close(struct rights *r)
{
    pthread_mutex_destroy(&r->lock);
}

/* -- what is remembered ----------------------------------------------------------------------- */

static struct rights_slot *slot_of(struct rights *r, uint64_t ino)
{
    return &r->slots[(ino * 0x9e3779b97f4a7c15ull >> 32) % RIGHTS_SLOTS];
}

static bool recall(struct session *s, struct host_cont *hc, uint64_t ino, struct rights_slot *out)
{
    unsigned long count = atomic_load(&hc->rights);

    pthread_mutex_lock(&s->rights.lock);
    *out = *slot_of(&s->rights, ino);
    pthread_mutex_unlock(&s->rights.lock);
    return out->hc == hc && out->ino == ino && out->count == count;
}

static void remember(struct session *s, const struct rights_slot *slot)
{
    pthread_mutex_lock(&s->rights.lock);
    *slot_of(&s->rights, slot->ino) = *slot;
    pthread_mutex_unlock(&s->rights.lock);
}

void rights_prove(struct session *s, struct host_cont *hc, uint64_t ino, unsigned may)
{
    struct rights *r = &s->rights;
    struct rights_proof *place = NULL;

    pthread_mutex_lock(&r->lock);
    for (unsigned i = 0; !place && i < RIGHTS_PROOFS; i++) {
        if (r->proofs[i].hc == hc && r->proofs[i].ino == ino)
            place = &r->proofs[i];
    }
    if (!place) {
        place = &r->proofs[r->next_proof++ % RIGHTS_PROOFS];
        *place = (struct rights_proof){.hc = hc, .ino = ino};
    }
    place->may |= (uint8_t)may;
    /* What was decided without it is to be decided again. */
    slot_of(r, ino)->hc = NULL;
    pthread_mutex_unlock(&r->lock);
}

static unsigned proved(struct session *s, const struct host_cont *hc, uint64_t ino)
{
    unsigned may = 0;

    pthread_mutex_lock(&s->rights.lock);
    for (unsigned i = 0; i < RIGHTS_PROOFS; i++) {
        if (s->rights.proofs[i].hc == hc && s->rights.proofs[i].ino == ino)
            may = s->rights.proofs[i].may;
    }
    pthread_mutex_unlock(&s->rights.lock);
    return may;
}

void rights_forget(struct session *s, const struct host_cont *hc)
{
    struct rights *r = &s->rights;

    pthread_mutex_lock(&r->lock);
    for (unsigned i = 0; i < RIGHTS_SLOTS; i++) {
        if (r->slots[i].hc == hc)
            r->slots[i].hc = NULL;
    }
    for (unsigned i = 0; i < RIGHTS_PROOFS; i++) {
        if (r->proofs[i].hc == hc)
            r->proofs[i].hc = NULL;
    }
    pthread_mutex_unlock(&r->lock);
}

/* -- what is decided -------------------------------------------------------------------------- */

/* Nothing for a write to take away? */
static int look_plain(struct dfe_fs *fs, const struct dfe_attr *attr, unsigned flags,
                      uint8_t *plain)
{
    bool setgid = (attr->mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP);
    int len;

    *plain = 0;
    if (attr->mode & S_ISUID || setgid)
        return 0;
    len = dfe_fs_getxattr(fs, attr->ino, CAPS_XATTR, strlen(CAPS_XATTR), NULL, 0, flags);
    if (len == -EINPROGRESS || len == -EIO)
        return len;
    *plain = len < 0;
    return 0;
}

static int decide(struct session *s, struct host_cont *hc, uint64_t ino, unsigned flags,
                  struct rights_slot *out)
{
    struct rights_slot slot = {.hc = hc, .ino = ino, .count = atomic_load(&hc->rights)};
    struct dfe_attr attr;
    int ret;

    ret = dfe_fs_getattr(hc->fs, ino, flags, &attr);
    if (ret == 0)
        ret = look_plain(hc->fs, &attr, flags, &slot.plain);
    if (ret < 0)
        return ret;
    slot.regular = S_ISREG(attr.mode);
    slot.may = rights_window(s, hc) ? RIGHT_READ | RIGHT_WRITE : (uint8_t)proved(s, hc, ino);
    remember(s, &slot);
    *out = slot;
    return 0;
}

static int decided(struct session *s, struct host_cont *hc, uint64_t ino, unsigned flags,
                   struct rights_slot *out)
{
    return recall(s, hc, ino, out) ? 0 : decide(s, hc, ino, flags, out);
}

int rights_check(struct session *s, struct host_cont *hc, uint64_t ino, unsigned need,
                 unsigned flags)
{
    struct rights_slot slot;
    int ret;

    if (s->role != PROTO_ROLE_IL)
        return 0;
    ret = decided(s, hc, ino, flags & DFE_NOWAIT, &slot);
    if (ret < 0)
        return ret;
    if (!slot.regular)
        return base_refuse(-EACCES, "inode %llu is no file", (unsigned long long)ino);
    if (need == RIGHT_EITHER ? slot.may != 0 : (slot.may & need) == need)
        return 0;
    return base_refuse(-EACCES, "uid %u may not do that with inode %llu", s->uid,
                       (unsigned long long)ino);
}

int rights_strip(struct session *s, struct host_cont *hc, uint64_t ino, unsigned flags)
{
    struct rights_slot slot;
    struct dfe_attr attr;
    int ret;

    /* The kernel of a mount does it itself. */
    if (s->uid == 0 || s->role == PROTO_ROLE_MOUNT)
        return 0;
    flags &= DFE_NOWAIT;
    ret = decided(s, hc, ino, flags, &slot);
    if (ret < 0 || slot.plain)
        return ret;
    ret = dfe_fs_getattr(hc->fs, ino, flags, &attr);
    if (ret < 0)
        return ret;
    attr.mode &= ~(uint32_t)S_ISUID;
    if (attr.mode & S_IXGRP)
        attr.mode &= ~(uint32_t)S_ISGID;
    keep_pause(s->host->keep); /* it may be done twice, and is not the request itself */
    ret = dfe_fs_setattr(hc->fs, ino, &attr, DFE_SET_MODE, flags, &attr);
    if (ret == 0)
        ret = dfe_fs_removexattr(hc->fs, ino, CAPS_XATTR, strlen(CAPS_XATTR), flags);
    keep_resume(s->host->keep);
    atomic_fetch_add(&hc->rights, 1);
    return ret == -ENODATA ? 0 : ret;
}

bool rights_window(const struct session *s, const struct host_cont *hc)
{
    return s->role != PROTO_ROLE_IL || s->uid == 0 || s->uid == s->host->uid;
}
