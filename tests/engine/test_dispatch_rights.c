/* SPDX-License-Identifier: Apache-2.0 */
/* Rights of sessions of interception: bits, groups, ACLs, what a write takes away, descriptors that
 * are shown. */
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "api_fixture.h"
#include "base/words.h"
#include "dispatch_rig.h"
#include "service/prove.h"
#include "service/session.h"

#define OWNER 5001u
#define GROUP 6001u

static struct host *host;
static struct session *api;

static uint64_t make(const char *name, uint32_t mode)
{
    struct dfe_attr attr, in = {.uid = OWNER, .gid = GROUP, .mode = mode};

    CHECK_EQ(rig_make(api, 1, RIG_ROOT, name, S_IFREG | 0600, DFE_REF, &attr), 0);
    CHECK_EQ(rig_write(api, 1, attr.ino, 0, "data", 4, 0, NULL), 4);
    CHECK_EQ(rig_setattr(api, 1, attr.ino, &in, DFE_SET_UID | DFE_SET_GID | DFE_SET_MODE), 0);
    return attr.ino;
}

static struct session *somebody(uid_t uid, gid_t gid)
{
    struct session *s = rig_session(host, PROTO_ROLE_IL, uid, gid, uid);

    CHECK_EQ(rig_fs(s, 1, "c"), 0);
    return s;
}

/* r, w or both, or neither, tried twice: once decided, once remembered. */
static void may(struct session *s, uint64_t ino, bool r, bool w)
{
    struct dfe_attr in = {.size = 4};
    char got[4];

    for (int i = 0; i < 2; i++) {
        CHECK_EQ(rig_read(s, 1, ino, 0, got, 4), r ? 4 : -EACCES);
        CHECK_EQ(rig_simple(s, PROTO_NEXT, 1, ino, 0, 0), r ? 0 : -EACCES);
        CHECK_EQ(rig_write(s, 1, ino, 0, "DATA", 4, 0, NULL), w ? 4 : -EACCES);
        CHECK_EQ(rig_setattr(s, 1, ino, &in, DFE_SET_SIZE), w ? 0 : -EACCES);
        CHECK_EQ(rig_simple(s, PROTO_FSYNC, 1, ino, 0, 0), r || w ? 0 : -EACCES);
    }
}

static void roles(void)
{
    struct session_who who = {.role = PROTO_ROLE_API, .uid = OWNER, .gid = 1};
    struct session *s;

    CHECK_EQ(session_new(host, &who, 9, &s), -EACCES);
    who.role = PROTO_ROLE_MOUNT;
    CHECK_EQ(session_new(host, &who, 9, &s), -EACCES);
    who.role = 3;
    CHECK_EQ(session_new(host, &who, 9, &s), -EINVAL);
    s = somebody(OWNER, GROUP);
    CHECK_EQ(rig_simple(s, PROTO_POOL_SYNC, 0, 0, 0, 0), -EACCES);
    CHECK_EQ(rig_name(s, PROTO_LOOKUP, 1, RIG_ROOT, "x", 0, NULL), -EACCES);
    CHECK_EQ(rig_simple(s, PROTO_REF, 1, RIG_ROOT, 1, 0), -EACCES);
    CHECK_EQ(rig_simple(s, PROTO_FS_OPEN, 2, 0, 0, 1), -EINVAL);
    CHECK_EQ(rig_getattr(s, 1, RIG_ROOT, NULL), 0);
    CHECK_EQ(rig_read(s, 1, RIG_ROOT, 0, NULL, 4), -EACCES);
    session_end(s);
}

static void bits(void)
{
    uint64_t ino = make("bits", 0642), fifth;
    struct session *owner = somebody(OWNER, 1), *group = somebody(2, GROUP),
                   *more = somebody(3, GROUP - 2), *other = somebody(4, 4), *root = somebody(0, 0);
    struct dfe_attr in = {.mode = 0404, .size = 0};

    may(owner, ino, true, true);
    may(group, ino, true, false);
    may(more, ino, true, false);
    may(other, ino, false, true);
    may(root, ino, true, true);
    CHECK_EQ(rig_setattr(api, 1, ino, &in, DFE_SET_MODE), 0);
    may(owner, ino, true, false);
    may(group, ino, false, false);
    may(other, ino, true, false);
    CHECK_EQ(rig_setattr(owner, 1, ino, &in, DFE_SET_MODE), -EACCES);
    fifth = make("fifth", 0);
    may(owner, fifth, false, false);
    may(root, fifth, true, true);
    session_end(owner);
    session_end(group);
    session_end(more);
    session_end(other);
    session_end(root);
}

static void set_acl(uint64_t ino, const uint32_t entries[][3], unsigned n)
{
    static const char name[] = "system.posix_acl_access";
    uint8_t push[256];
    struct rig_call call = {.e = {.op = PROTO_SETXATTR, .handle = 1, .ino = ino}, .push = push};
    size_t at = sizeof(name) - 1;

    memcpy(push, name, at);
    put_le32(push + at, 2);
    for (unsigned i = 0; i < n; i++) {
        put_le16(push + at + 4 + i * 8, (uint16_t)entries[i][0]);
        put_le16(push + at + 6 + i * 8, (uint16_t)entries[i][1]);
        put_le32(push + at + 8 + i * 8, entries[i][2]);
    }
    call.e.arg = (uint32_t)at;
    call.e.push_len = (uint32_t)(at + 4 + n * 8);
    CHECK_EQ(rig_do(api, &call), 0);
}

static void acls(void)
{
    /* user::rw-, user:77:-w-, group::r--, group:88:rw-, mask::rw-, other::--- */
    static const uint32_t wide[][3] = {{1, 6, UINT32_MAX}, {2, 2, 77}, {4, 4, UINT32_MAX},
                                       {8, 6, 88}, {16, 6, UINT32_MAX}, {32, 0, UINT32_MAX}};
    static const uint32_t narrow[][3] = {{1, 6, UINT32_MAX}, {2, 2, 77}, {4, 4, UINT32_MAX},
                                         {8, 6, 88}, {16, 4, UINT32_MAX}, {32, 6, UINT32_MAX}};
    uint64_t ino = make("acl", 0600);
    struct session *named = somebody(77, 88), *group = somebody(2, GROUP), *both = somebody(3, 87),
                   *other = somebody(4, 4);

    may(named, ino, false, false);
    set_acl(ino, wide, 6);
    may(named, ino, false, true); /* a named user's entry goes before his groups' */
    may(group, ino, true, false);
    may(both, ino, true, true); /* 88 is among his others */
    may(other, ino, false, false);
    set_acl(ino, narrow, 6);
    may(named, ino, false, false);
    may(group, ino, true, false);
    may(both, ino, true, false);
    may(other, ino, true, true);
    session_end(named);
    session_end(group);
    session_end(both);
    session_end(other);
}

static uint32_t mode_of(uint64_t ino)
{
    struct dfe_attr attr;

    CHECK_EQ(rig_getattr(api, 1, ino, &attr), 0);
    return attr.mode & 07777;
}

static int64_t capability(uint32_t op, uint64_t ino)
{
    struct rig_call call = {.e = {.op = op, .handle = 1, .ino = ino, .arg = 19, .push_len = 19},
                            .push = "security.capabilityVALUE"};

    if (op == PROTO_SETXATTR)
        call.e.push_len += 5;
    return rig_do(api, &call);
}

static void stripped(void)
{
    uint64_t ino = make("suid", 0777);
    struct session *other = somebody(4, 4), *root = somebody(0, 0);
    struct dfe_attr in = {.mode = 06777, .size = 2};

    CHECK_EQ(rig_setattr(api, 1, ino, &in, DFE_SET_MODE), 0);
    CHECK_EQ(rig_write(root, 1, ino, 0, "x", 1, 0, NULL), 1);
    CHECK_EQ(mode_of(ino), 06777);
    CHECK_EQ(rig_write(other, 1, ino, 0, "x", 1, 0, NULL), 1);
    CHECK_EQ(mode_of(ino), 0777);
    in.mode = 02767; /* setgid without x means locks */
    CHECK_EQ(rig_setattr(api, 1, ino, &in, DFE_SET_MODE), 0);
    CHECK_EQ(rig_setattr(other, 1, ino, &in, DFE_SET_SIZE), 0);
    CHECK_EQ(mode_of(ino), 02767);
    CHECK_EQ(capability(PROTO_SETXATTR, ino), 0);
    CHECK_EQ(rig_write(root, 1, ino, 0, "x", 1, 0, NULL), 1);
    CHECK_EQ(capability(PROTO_GETXATTR, ino), 5);
    CHECK_EQ(rig_write(other, 1, ino, 0, "x", 1, 0, NULL), 1);
    CHECK_EQ(capability(PROTO_GETXATTR, ino), -ENODATA);
    session_end(other);
    session_end(root);
}

static void proofs(void)
{
    static const char text[] =
        "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "21 20 0:39 / /m rw,nosuid - fuse.dfusepy test/c rw,user_id=1000,group_id=0\n"
        "22 20 0:40 / /n rw shared:1 - fuse.dfusepy test/c rw,user_id=1001,group_id=1000\n"
        "23 20 0:41 / /o rw - fuse.sshfs test/c rw,user_id=1000,group_id=0\n"
        "24 20 0:42 / /p - rw - fuse.dfusepy test/cc rw,user_id=0\n"
        "25 20 0:43 / /q rw - fuse.dfusepy test/c rw,user_id=0";
    struct session *s = somebody(4, 4);
    uint64_t ino = make("proved", 0600);
    struct handle *h;

    CHECK_EQ(prove_mount(text, makedev(0, 39), "test/c", 1000), 0);
    CHECK_EQ(prove_mount(text, makedev(0, 39), "test/c", 100), -EACCES);
    CHECK_EQ(prove_mount(text, makedev(0, 39), "test/", 1000), -EACCES);
    CHECK_EQ(prove_mount(text, makedev(0, 40), "test/c", 1000), -EACCES);
    CHECK_EQ(prove_mount(text, makedev(0, 41), "test/c", 1000), -EACCES);
    CHECK_EQ(prove_mount(text, makedev(0, 42), "test/c", 1000), -EACCES);
    CHECK_EQ(prove_mount(text, makedev(0, 43), "test/c", 1000), 0);
    CHECK_EQ(prove_mount(text, makedev(0, 4), "test/c", 1000), -EACCES);
    CHECK_EQ(prove_mount("", makedev(0, 4), "test/c", 1000), -EACCES);
    CHECK_EQ(session_prove(s, 1, ino, 2), -EACCES);
    CHECK_EQ(session_prove(s, 2, ino, 2), -EBADF);

    may(s, ino, false, false);
    CHECK_EQ(session_use(s, 1, HANDLE_FS, &h), 0);
    rights_prove(s, h->hc, ino, RIGHT_READ);
    session_unuse(s, h);
    may(s, ino, true, false);
    session_end(s);
}

int main(void)
{
    const char *path = api_path("pool");

    host = rig_open(path, 0, NULL);
    api = rig_session(host, PROTO_ROLE_API, 0, 0, 1);
    CHECK_EQ(rig_fs(api, 1, "c"), 0);
    RUN(roles);
    RUN(bits);
    RUN(acls);
    RUN(stripped);
    RUN(proofs);
    session_end(api);
    rig_close(host, path);
    return 0;
}
