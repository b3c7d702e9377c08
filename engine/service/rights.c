/* SPDX-License-Identifier: Apache-2.0 */
/* Rights of a session to an inode: owner, group, other, ACL, or a descriptor that was shown. */
#include "service/rights.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/words.h"
#include "service/session.h"

#define ACL_XATTR "system.posix_acl_access"
#define CAPS_XATTR "security.capability"
/* Entries that are looked at: Linux takes no more in 64 KiB, and who has as many is refused. */
#define ACL_MAX_BYTES 4096u

enum {
    ACL_USER = 0x02,
    ACL_GROUP_OBJ = 0x04,
    ACL_GROUP = 0x08,
    ACL_MASK = 0x10,
    ACL_OTHER = 0x20
};

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

/* -- what the bits say ------------------------------------------------------------------------ */

static bool in_group(const struct session *s, uint32_t gid)
{
    bool in = s->gid == gid;

    for (unsigned i = 0; !in && i < s->n_groups; i++)
        in = s->groups[i] == gid;
    return in;
}

/* As acl_permission_check of Linux: the first class that fits decides; of groups any one may. Its
 * bits are r = 4, w = 2. */
static unsigned acl_bits(const struct session *s, const struct dfe_attr *attr, const uint8_t *acl,
                         size_t len)
{
    unsigned mask = 7, named = 0, group = 0, other = 0;
    bool user = false, grouped = false;

    for (size_t at = 4; at + 8 <= len; at += 8) {
        unsigned tag = get_le16(acl + at), perm = get_le16(acl + at + 2) & 7;
        uint32_t id = get_le32(acl + at + 4);

        if (tag == ACL_USER && id == s->uid) {
            user = true;
            named = perm;
        } else if ((tag == ACL_GROUP_OBJ && in_group(s, attr->gid)) ||
                   (tag == ACL_GROUP && in_group(s, id))) {
            grouped = true;
            group |= perm;
        } else if (tag == ACL_MASK) {
            mask = perm;
        } else if (tag == ACL_OTHER) {
            other = perm;
        }
    }
    return user ? named & mask : grouped ? group & mask : other;
}

static int mode_bits(struct session *s, struct dfe_fs *fs, const struct dfe_attr *attr,
                     unsigned flags, unsigned *bits)
{
    uint8_t acl[ACL_MAX_BYTES];
    int len;

    if (s->uid == attr->uid) {
        *bits = attr->mode >> 6 & 7;
        return 0;
    }
    len = dfe_fs_getxattr(fs, attr->ino, ACL_XATTR, strlen(ACL_XATTR), acl, sizeof(acl), flags);
    if (len == -ERANGE)
        *bits = 0;
    else if (len == -ENODATA || len == -EOPNOTSUPP)
        *bits = attr->mode >> (in_group(s, attr->gid) ? 3 : 0) & 7;
    else if (len < 0)
        return len;
    else
        *bits = acl_bits(s, attr, acl, (size_t)len);
    return 0;
}

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
    unsigned bits = 6;
    int ret;

    ret = dfe_fs_getattr(hc->fs, ino, flags, &attr);
    if (ret == 0 && s->uid != 0 && s->role == PROTO_ROLE_IL)
        ret = mode_bits(s, hc->fs, &attr, flags, &bits);
    if (ret == 0)
        ret = look_plain(hc->fs, &attr, flags, &slot.plain);
    if (ret < 0)
        return ret;
    slot.regular = S_ISREG(attr.mode);
    slot.may = (bits & 4 ? RIGHT_READ : 0) | (bits & 2 ? RIGHT_WRITE : 0);
    slot.may |= (uint8_t)proved(s, hc, ino);
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
