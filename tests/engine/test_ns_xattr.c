/* SPDX-License-Identifier: Apache-2.0 */
/* Extended attributes and POSIX ACLs: limits, flags, what follows the mode and what the mode
 * follows. */
#include "base/words.h"
#include "ns_help.h"

static const uint64_t ROOT = NS_ROOT_INO;
static struct world w;

#define ACCESS "system.posix_acl_access"
#define DEFAULT "system.posix_acl_default"

static int get(uint64_t ino, const char *name, void *value, size_t cap)
{
    return ns_getxattr(w.ns, ino, N(name), value, cap, 0);
}

static int set(uint64_t ino, const char *name, const void *value, size_t len, unsigned flags)
{
    return ns_setxattr(w.ns, ino, N(name), value, len, flags);
}

static void test_values(void)
{
    static char big[65537], got[65536];
    uint64_t f = make_file(&w, ROOT, "values");
    char name[257] = "user.";
    struct dfe_attr attr;

    CHECK_EQ(get(f, "user.a", got, sizeof(got)), -ENODATA);
    CHECK_EQ(get(f, "security.capability", got, sizeof(got)), -ENODATA);
    CHECK_EQ(set(f, "user.a", "one", 3, DFE_XATTR_REPLACE), -ENODATA);
    CHECK_EQ(set(f, "user.a", "one", 3, DFE_XATTR_CREATE), 0);
    CHECK_EQ(set(f, "user.a", "two", 3, DFE_XATTR_CREATE), -EEXIST);
    CHECK_EQ(set(f, "user.a", "three", 5, DFE_XATTR_REPLACE), 0);
    CHECK_EQ(set(f, "user.a", "", 0, DFE_XATTR_REPLACE | DFE_XATTR_CREATE), -EINVAL);
    CHECK_EQ(get(f, "user.a", got, sizeof(got)), 5);
    CHECK(memcmp(got, "three", 5) == 0);
    CHECK_EQ(get(f, "user.a", got, 0), 5);
    CHECK_EQ(get(f, "user.a", got, 4), -ERANGE);
    CHECK_EQ(set(f, "user.empty", "", 0, 0), 0);
    CHECK_EQ(get(f, "user.empty", got, sizeof(got)), 0);
    memset(big, 'b', sizeof(big));
    CHECK_EQ(set(f, "user.big", big, 65537, 0), -E2BIG);
    CHECK_EQ(set(f, "user.big", big, 65536, 0), 0);
    CHECK_EQ(get(f, "user.big", got, sizeof(got)), 65536);
    CHECK(memcmp(got, big, 65536) == 0);
    memset(name + 5, 'n', 251);
    CHECK_EQ(ns_setxattr(w.ns, f, name, 256, "", 0, 0), -ERANGE);
    CHECK_EQ(ns_setxattr(w.ns, f, name, 255, "", 0, 0), 0);
    CHECK_EQ(ns_removexattr(w.ns, f, name, 255, 0), 0);
    CHECK_EQ(set(f, "user.", "", 0, 0), -EINVAL);
    CHECK_EQ(set(f, "other.a", "", 0, 0), -EOPNOTSUPP);
    CHECK_EQ(set(f, "system.other", "", 0, 0), -EOPNOTSUPP);
    CHECK_EQ(ns_setxattr(w.ns, f, "user.a\0b", 8, "", 0, 0), -EINVAL);
    CHECK_EQ(set(999, "user.a", "", 0, 0), -ESTALE);
    CHECK_EQ(set(f, "trusted.t", "t", 1, 0), 0);
    CHECK_EQ(set(f, "security.selinux", "s", 1, 0), 0);
    CHECK_EQ(ns_mknod(w.ns, ROOT, N("fifo"), S_IFIFO | 0600, 0, &ROOT_CRED, 0, &attr), 0);
    CHECK_EQ(set(attr.ino, "user.a", "", 0, 0), -EPERM);
    CHECK_EQ(set(attr.ino, "trusted.a", "", 0, 0), 0);
}

static void test_list(void)
{
    uint64_t f = make_file(&w, ROOT, "list");
    char names[64];

    CHECK_EQ(ns_listxattr(w.ns, f, names, sizeof(names), 0), 0);
    CHECK_EQ(ns_removexattr(w.ns, f, N("user.a"), 0), -ENODATA);
    CHECK_EQ(set(f, "user.b", "", 0, 0), 0);
    CHECK_EQ(set(f, "user.a", "", 0, 0), 0);
    CHECK_EQ(ns_listxattr(w.ns, f, names, 0, 0), 14);
    CHECK_EQ(ns_listxattr(w.ns, f, names, 13, 0), -ERANGE);
    CHECK_EQ(ns_listxattr(w.ns, f, names, 14, 0), 14);
    CHECK(memcmp(names, "user.a\0user.b\0", 14) == 0);
    CHECK_EQ(ns_removexattr(w.ns, f, N("user.a"), 0), 0);
    CHECK_EQ(world_close(&w), 0);
    world_open(&w);
    struct dfe_attr attr;
    CHECK_EQ(lookup(&w, ROOT, "list", &attr), 0);
    CHECK_EQ(ns_listxattr(w.ns, attr.ino, names, sizeof(names), 0), 7);
    CHECK_EQ(ns_unlink(w.ns, ROOT, N("list"), 0), 0);
    wait_reclaimed(&w);
    CHECK_EQ(world_check(&w), 0);
}

/* -- ACLs ---------------- */

struct ace {
    unsigned tag, perm, id;
};

static size_t acl_make(uint8_t *out, const struct ace *list, unsigned n)
{
    put_le32(out, 2);
    for (unsigned i = 0; i < n; i++) {
        put_le16(out + 4 + 8 * i, (uint16_t)list[i].tag);
        put_le16(out + 6 + 8 * i, (uint16_t)list[i].perm);
        put_le32(out + 8 + 8 * i, list[i].id);
    }
    return 4 + 8 * n;
}

#define NOBODY 0xffffffffu
static const struct ace PLAIN[] = {{1, 7, NOBODY}, {4, 5, NOBODY}, {32, 4, NOBODY}};
static const struct ace NAMED[] = {
    {1, 7, NOBODY}, {2, 6, 1001}, {4, 5, NOBODY}, {16, 6, NOBODY}, {32, 1, NOBODY}};

static void test_acl_access(void)
{
    uint64_t f = make_file(&w, ROOT, "acl");
    struct dfe_attr in = {.mode = 0640}, attr;
    uint8_t acl[64], got[64];
    size_t len = acl_make(acl, PLAIN, 3);

    CHECK_EQ(set(f, ACCESS, acl, len, 0), 0);
    CHECK_EQ(attr_of(&w, f).mode, S_IFREG | 0754);
    CHECK_EQ(get(f, ACCESS, got, sizeof(got)), -ENODATA);
    len = acl_make(acl, NAMED, 5);
    CHECK_EQ(set(f, ACCESS, acl, len, 0), 0);
    CHECK_EQ(attr_of(&w, f).mode, S_IFREG | 0761);
    CHECK_EQ(get(f, ACCESS, got, sizeof(got)), (int)len);
    CHECK(memcmp(acl, got, len) == 0);
    CHECK_EQ(ns_setattr(w.ns, f, &in, DFE_SET_MODE, 0, &attr), 0);
    CHECK_EQ(get(f, ACCESS, got, sizeof(got)), (int)len);
    CHECK_EQ(get_le16(got + 6), 6);      /* the owner */
    CHECK_EQ(get_le16(got + 6 + 16), 5); /* the owning group stays */
    CHECK_EQ(get_le16(got + 6 + 24), 4); /* the mask follows */
    CHECK_EQ(get_le16(got + 6 + 32), 0);
    CHECK_EQ(set(f, DEFAULT, acl, len, 0), -EACCES);
    CHECK_EQ(ns_removexattr(w.ns, f, N(ACCESS), 0), 0);
    CHECK_EQ(attr_of(&w, f).mode, S_IFREG | 0640);
    CHECK_EQ(ns_symlink(w.ns, ROOT, N("acl-link"), N("x"), &ROOT_CRED, 0, &attr), 0);
    CHECK_EQ(set(attr.ino, ACCESS, acl, len, 0), -EOPNOTSUPP);
}

static void test_acl_bad(void)
{
    static const struct ace unsorted[] = {{4, 5, NOBODY}, {1, 7, NOBODY}, {32, 4, NOBODY}};
    static const struct ace no_mask[] = {
        {1, 7, NOBODY}, {2, 6, 1001}, {4, 5, NOBODY}, {32, 1, NOBODY}};
    static const struct ace twice[] = {
        {1, 7, NOBODY}, {1, 7, NOBODY}, {4, 5, NOBODY}, {32, 1, NOBODY}};
    static const struct ace perm[] = {{1, 8, NOBODY}, {4, 5, NOBODY}, {32, 4, NOBODY}};
    uint64_t f = make_file(&w, ROOT, "bad");
    uint8_t acl[64];

    CHECK_EQ(set(f, ACCESS, acl, acl_make(acl, unsorted, 3), 0), -EINVAL);
    CHECK_EQ(set(f, ACCESS, acl, acl_make(acl, no_mask, 4), 0), -EINVAL);
    CHECK_EQ(set(f, ACCESS, acl, acl_make(acl, twice, 4), 0), -EINVAL);
    CHECK_EQ(set(f, ACCESS, acl, acl_make(acl, perm, 3), 0), -EINVAL);
    CHECK_EQ(set(f, ACCESS, acl, acl_make(acl, PLAIN, 2), 0), -EINVAL);
    CHECK_EQ(set(f, ACCESS, acl, acl_make(acl, PLAIN, 3) - 1, 0), -EINVAL);
    CHECK_EQ(set(f, ACCESS, acl, 3, 0), -EINVAL);
    acl_make(acl, PLAIN, 3);
    acl[0] = 9;
    CHECK_EQ(set(f, ACCESS, acl, 28, 0), -EOPNOTSUPP);
    CHECK_EQ(attr_of(&w, f).mode, S_IFREG | 0644);
}

static void test_acl_inherit(void)
{
    uint64_t d = make_dir(&w, ROOT, "inherit");
    uint8_t acl[64], got[64];
    size_t len = acl_make(acl, NAMED, 5);
    struct dfe_attr attr;

    CHECK_EQ(set(d, DEFAULT, acl, len, 0), 0);
    CHECK_EQ(attr_of(&w, d).mode, S_IFDIR | 0755);
    /* the umask does not count, the ACL's classes bound the mode */
    CHECK_EQ(ns_mknod(w.ns, d, N("f"), S_IFREG | 0666, 0, &USER_CRED, 0, &attr), 0);
    CHECK_EQ(attr.mode, S_IFREG | 0660);
    CHECK_EQ(get(attr.ino, ACCESS, got, sizeof(got)), (int)len);
    CHECK_EQ(get_le16(got + 6), 6);
    CHECK_EQ(get(attr.ino, DEFAULT, got, sizeof(got)), -ENODATA);
    CHECK_EQ(world_close(&w), 0);
    world_open(&w);
    CHECK_EQ(lookup(&w, ROOT, "inherit", &attr), 0);
    d = attr.ino;
    CHECK_EQ(ns_mkdir(w.ns, d, N("sub"), 0777, &USER_CRED, 0, &attr), 0);
    CHECK_EQ(attr.mode, S_IFDIR | 0761);
    CHECK_EQ(get(attr.ino, DEFAULT, got, sizeof(got)), (int)len);
    CHECK(memcmp(acl, got, len) == 0);
    CHECK_EQ(ns_symlink(w.ns, d, N("s"), N("x"), &USER_CRED, 0, &attr), 0);
    CHECK_EQ(attr.mode, S_IFLNK | 0777);
    len = acl_make(acl, PLAIN, 3);
    CHECK_EQ(set(d, DEFAULT, acl, len, 0), 0);
    CHECK_EQ(ns_mknod(w.ns, d, N("plain"), S_IFREG | 0666, 0, &USER_CRED, 0, &attr), 0);
    CHECK_EQ(attr.mode, S_IFREG | 0644);
    CHECK_EQ(get(attr.ino, ACCESS, got, sizeof(got)), -ENODATA);
    CHECK_EQ(set(d, DEFAULT, acl, 4, 0), 0); /* an empty one is none */
    CHECK_EQ(get(d, DEFAULT, got, sizeof(got)), -ENODATA);
    CHECK_EQ(ns_mknod(w.ns, d, N("again"), S_IFREG | 0666, 0, &USER_CRED, 0, &attr), 0);
    CHECK_EQ(attr.mode, S_IFREG | 0644);
}

int main(void)
{
    for (unsigned wait = 0; wait <= 3; wait += 3) {
        world_make(&w, "xattr", 0);
        model_nowait(7, wait);
        RUN(test_values);
        RUN(test_list);
        RUN(test_acl_access);
        RUN(test_acl_bad);
        RUN(test_acl_inherit);
        world_end(&w);
    }
    return 0;
}
