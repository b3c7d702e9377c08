/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding and decoding of the namespace's records. */
#include "ns/record.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/words.h"

void nsrec_key(struct nsrec_key *out, char letter, uint64_t number, const void *akey,
               size_t akey_len)
{
    bool bare = letter == 's' || letter == 'n';

    out->dkey[0] = (uint8_t)letter;
    put_be64(out->dkey + 1, number);
    out->key.dkey = out->dkey;
    out->key.dkey_len = bare ? 1 : sizeof(out->dkey);
    out->key.akey = akey;
    out->key.akey_len = (uint16_t)akey_len;
}

bool nsrec_key_is(const struct obj_key *key, char letter, uint64_t *number)
{
    const uint8_t *dkey = key->dkey;

    if (key->dkey_len != 9 || dkey[0] != (uint8_t)letter)
        return false;
    *number = get_be64(dkey + 1);
    return true;
}

size_t nsrec_inode_encode(void *buf, const struct ns_stat *st, const char *target,
                          size_t target_len)
{
    uint8_t *tail = (uint8_t *)buf + sizeof(struct nsrec_inode);
    struct nsrec_inode rec = {
        .version = NSREC_VERSION,
        .flags = st->flags,
        .nxattr = htole16(st->nxattr),
        .mode = htole32(st->mode),
        .uid = htole32(st->uid),
        .gid = htole32(st->gid),
        .nlink = htole32(st->nlink),
        .rdev = htole32(st->rdev),
        .size = htole64(st->size),
        .mtime_ns = (int64_t)htole64((uint64_t)st->mtime_ns),
        .ctime_ns = (int64_t)htole64((uint64_t)st->ctime_ns),
        .atime_ns = (int64_t)htole64((uint64_t)st->atime_ns),
        .btime_ns = (int64_t)htole64((uint64_t)st->btime_ns),
    };

    memcpy(buf, &rec, sizeof(rec));
    if (S_ISREG(st->mode)) {
        struct nsrec_file file = {htole64(st->version), htole64(st->used)};
        memcpy(tail, &file, sizeof(file));
        return sizeof(rec) + sizeof(file);
    }
    if (S_ISDIR(st->mode)) {
        struct nsrec_dir dir = {htole64(st->parent)};
        memcpy(tail, &dir, sizeof(dir));
        return sizeof(rec) + sizeof(dir);
    }
    if (S_ISLNK(st->mode)) {
        memcpy(tail, target, target_len);
        return sizeof(rec) + target_len;
    }
    return sizeof(rec);
}

/* The tail, checked against the type. */
static bool inode_decode_tail(const uint8_t *tail, size_t len, struct ns_stat *st,
                              const char **target)
{
    switch (st->mode & S_IFMT) {
    case S_IFREG:
        if (len != sizeof(struct nsrec_file) || st->size > DFE_FILE_BYTES)
            return false;
        st->version = get_le64(tail + offsetof(struct nsrec_file, version));
        st->used = get_le64(tail + offsetof(struct nsrec_file, used));
        return true;
    case S_IFDIR:
        if (len != sizeof(struct nsrec_dir))
            return false;
        st->parent = get_le64(tail);
        return st->parent != 0;
    case S_IFLNK:
        *target = (const char *)tail;
        return len > 0 && len <= DFE_SYMLINK_BYTES && st->size == len;
    case S_IFIFO:
    case S_IFSOCK:
    case S_IFBLK:
    case S_IFCHR:
        return len == 0;
    default:
        return false;
    }
}

int nsrec_inode_decode(uint64_t ino, const void *buf, size_t len, struct ns_stat *st,
                       const char **target)
{
    struct nsrec_inode rec;

    *target = NULL;
    memset(st, 0, sizeof(*st));
    if (len < sizeof(rec))
        goto bad;
    memcpy(&rec, buf, sizeof(rec));
    if (rec.version != NSREC_VERSION)
        goto bad;
    st->flags = rec.flags;
    st->nxattr = le16toh(rec.nxattr);
    st->mode = le32toh(rec.mode);
    st->uid = le32toh(rec.uid);
    st->gid = le32toh(rec.gid);
    st->nlink = le32toh(rec.nlink);
    st->rdev = le32toh(rec.rdev);
    st->size = le64toh(rec.size);
    st->mtime_ns = (int64_t)le64toh((uint64_t)rec.mtime_ns);
    st->ctime_ns = (int64_t)le64toh((uint64_t)rec.ctime_ns);
    st->atime_ns = (int64_t)le64toh((uint64_t)rec.atime_ns);
    st->btime_ns = (int64_t)le64toh((uint64_t)rec.btime_ns);
    if (!inode_decode_tail((const uint8_t *)buf + sizeof(rec), len - sizeof(rec), st, target))
        goto bad;
    return 0;
bad:
    return base_fail(-EUCLEAN, "inode %llu: bad record of %zu bytes", (unsigned long long)ino, len);
}

void nsrec_entry_encode(struct nsrec_entry *out, uint64_t ino, uint64_t birth, uint8_t type,
                        uint8_t flags)
{
    *out = (struct nsrec_entry){
        .version = NSREC_VERSION,
        .type = type,
        .flags = flags,
        .ino = htole64(ino),
        .birth = htole64(birth),
    };
}

int nsrec_entry_decode(uint64_t dir, const struct obj_key *key, const void *buf, size_t len,
                       struct nsrec_entry *out)
{
    uint64_t cookie = 0;
    bool tomb;

    if (!nsrec_key_is(key, 'e', &cookie) || len != sizeof(*out))
        goto bad;
    memcpy(out, buf, sizeof(*out));
    out->ino = le64toh(out->ino);
    out->birth = le64toh(out->birth);
    tomb = key->akey_len == 0;
    if (out->version != NSREC_VERSION || tomb != (out->type == 0) || key->akey_len > 255)
        goto bad;
    if (!tomb && (out->ino == 0 || out->birth == 0 || out->type > 14))
        goto bad;
    return 0;
bad:
    return base_fail(-EUCLEAN, "directory %llu: bad entry at cookie %llu", (unsigned long long)dir,
                     (unsigned long long)cookie);
}
