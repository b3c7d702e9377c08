/* SPDX-License-Identifier: Apache-2.0 */
/* POSIX ACLs in their xattr form: a version word, then entries {tag, permissions, id}, sorted. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/words.h"
#include "ns/impl.h"

#define ACL_VERSION 2u
#define ACL_HEADER 4u
#define ACL_ENTRY 8u

enum {
    ACL_USER_OBJ = 0x01,
    ACL_USER = 0x02,
    ACL_GROUP_OBJ = 0x04,
    ACL_GROUP = 0x08,
    ACL_MASK = 0x10,
    ACL_OTHER = 0x20
};

static uint8_t *acl_entry(const void *acl, size_t i)
{
    return (uint8_t *)acl + ACL_HEADER + i * ACL_ENTRY;
}

static size_t acl_entries(size_t len)
{
    return (len - ACL_HEADER) / ACL_ENTRY;
}

/* The entry that stands for a class of the mode: of the group it is the mask, if there is one. */
static uint8_t *acl_class(const void *acl, size_t len, unsigned tag)
{
    uint8_t *found = NULL;

    for (size_t i = 0; i < acl_entries(len); i++) {
        unsigned t = get_le16(acl_entry(acl, i));

        if (t == tag || (tag == ACL_GROUP_OBJ && t == ACL_MASK))
            found = acl_entry(acl, i);
    }
    return found;
}

static uint32_t acl_perm(const uint8_t *entry)
{
    return get_le16(entry + 2);
}

/* Tags in order, the three of the mode once each, a mask where users or groups are named. */
static bool acl_valid(const void *acl, size_t len)
{
    unsigned seen = 0, last = 0;

    for (size_t i = 0; i < acl_entries(len); i++) {
        const uint8_t *entry = acl_entry(acl, i);
        unsigned tag = get_le16(entry);
        bool named = tag == ACL_USER || tag == ACL_GROUP;

        if (tag == 0 || tag > ACL_OTHER || tag & (tag - 1) || acl_perm(entry) > 7)
            return false;
        if (tag < last || (tag == last && !named))
            return false;
        if (named && get_le32(entry + 4) == UINT32_MAX)
            return false;
        seen |= tag;
        last = tag;
    }
    if ((seen & (ACL_USER_OBJ | ACL_GROUP_OBJ | ACL_OTHER)) !=
        (ACL_USER_OBJ | ACL_GROUP_OBJ | ACL_OTHER))
        return false;
    return !(seen & (ACL_USER | ACL_GROUP)) || seen & ACL_MASK;
}

int acl_check(const void *acl, size_t len, uint32_t *mode, bool *plain)
{
    if (len < ACL_HEADER || (len - ACL_HEADER) % ACL_ENTRY)
        return -EINVAL;
    if (get_le32(acl) != ACL_VERSION)
        return -EOPNOTSUPP;
    *plain = acl_entries(len) <= 3;
    if (len == ACL_HEADER)
        return 0;
    if (!acl_valid(acl, len))
        return -EINVAL;
    *mode = (*mode & ~(uint32_t)0777) | acl_perm(acl_class(acl, len, ACL_USER_OBJ)) << 6 |
            acl_perm(acl_class(acl, len, ACL_GROUP_OBJ)) << 3 |
            acl_perm(acl_class(acl, len, ACL_OTHER));
    return 0;
}

static void acl_set_perm(uint8_t *entry, uint32_t perm)
{
    put_le16(entry + 2, (uint16_t)(perm & 7));
}

void acl_chmod(void *acl, size_t len, uint32_t mode)
{
    acl_set_perm(acl_class(acl, len, ACL_USER_OBJ), mode >> 6);
    acl_set_perm(acl_class(acl, len, ACL_GROUP_OBJ), mode >> 3);
    acl_set_perm(acl_class(acl, len, ACL_OTHER), mode);
}

void acl_inherit(void *acl, size_t len, uint32_t *mode)
{
    uint8_t *user = acl_class(acl, len, ACL_USER_OBJ);
    uint8_t *group = acl_class(acl, len, ACL_GROUP_OBJ);
    uint8_t *other = acl_class(acl, len, ACL_OTHER);

    acl_set_perm(user, acl_perm(user) & *mode >> 6);
    acl_set_perm(group, acl_perm(group) & *mode >> 3);
    acl_set_perm(other, acl_perm(other) & *mode);
    *mode =
        (*mode & ~(uint32_t)0777) | acl_perm(user) << 6 | acl_perm(group) << 3 | acl_perm(other);
}

int acl_default(struct ns_call *c, struct ns_inode *dir)
{
    uint32_t mode = 0;
    bool plain;
    int err;

    if (dir->dir->acl)
        return 0;
    err = xattr_peek(c, dir, ACL_DEFAULT);
    if (!err && c->xattr.err == 0)
        err = acl_check(c->xattr.value, c->xattr.len, &mode, &plain);
    if (!err && (c->xattr.err || c->xattr.len == ACL_HEADER))
        err = -EUCLEAN;
    if (err)
        return err == -EINVAL ? -EUCLEAN : err;
    dir->dir->acl = malloc(c->xattr.len);
    if (!dir->dir->acl)
        return -ENOMEM;
    memcpy(dir->dir->acl, c->xattr.value, c->xattr.len);
    dir->dir->acl_len = c->xattr.len;
    return 0;
}
