/* SPDX-License-Identifier: Apache-2.0 */
/* Rights of sessions of interception: who has to show a descriptor, what a write takes away. */
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "api_fixture.h"
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
    CHECK_EQ(rig_getattr(s, 1, RIG_ROOT, NULL), -EACCES);
    CHECK_EQ(rig_read(s, 1, RIG_ROOT, 0, NULL, 4), -EACCES);
    session_end(s);
}

/* As if it had shown a descriptor. */
static void show(struct session *s, uint64_t ino, unsigned rights)
{
    struct handle *h;

    CHECK_EQ(session_use(s, 1, HANDLE_FS, &h), 0);
    rights_prove(s, h->hc, ino, rights);
    session_unuse(s, h);
}

/* A file that everybody may read and write is not everybody's to reach: who is neither root nor the
 * owner of the pool shows a descriptor. */
static void strangers(void)
{
    uint64_t ino = make("file", 0666), closed = make("closed", 0);
    struct session *owner = somebody(OWNER, GROUP), *other = somebody(4, 4), *root = somebody(0, 0),
                   *pool = somebody(geteuid(), getegid());
    struct dfe_attr in = {.mode = 0644};

    may(owner, ino, false, false);
    may(other, ino, false, false);
    CHECK_EQ(rig_getattr(other, 1, ino, NULL), -EACCES);
    may(root, ino, true, true);
    may(pool, closed, true, true);
    show(other, ino, RIGHT_READ);
    may(other, ino, true, false);
    CHECK_EQ(rig_getattr(other, 1, ino, NULL), 0);
    may(other, closed, false, false);
    show(other, ino, RIGHT_WRITE);
    CHECK_EQ(rig_setattr(api, 1, ino, &in, DFE_SET_MODE), 0);
    may(other, ino, true, true);
    CHECK_EQ(rig_setattr(other, 1, ino, &in, DFE_SET_MODE), -EACCES);
    session_end(owner);
    session_end(other);
    session_end(root);
    session_end(pool);
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

    show(other, ino, RIGHT_WRITE);
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
    show(s, ino, RIGHT_READ);
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
    RUN(strangers);
    RUN(stripped);
    RUN(proofs);
    session_end(api);
    rig_close(host, path);
    return 0;
}
