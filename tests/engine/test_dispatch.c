/* SPDX-License-Identifier: Apache-2.0 */
/* The dispatcher: every operation reaches the engine, nonsense is refused, what a session held
 * comes back when it ends. */
#include <sys/stat.h>

#include "api_fixture.h"
#include "dispatch_rig.h"
#include "service/loans.h"

static struct host *host;
static struct session *api;

static void handles(void)
{
    struct rig_call open = {.e = {.op = PROTO_CONT_OPEN, .handle = 7, .arg = 1, .push_len = 1},
                            .push = "c"};

    CHECK_EQ(rig_simple(api, PROTO_CONT_QUERY, 7, 0, 0, 0), -EBADF);
    CHECK_EQ(rig_do(api, &open), 0);
    CHECK(open.waited);
    CHECK_EQ(rig_do(api, &open), -EEXIST);
    open.e.handle = PROTO_HANDLES;
    CHECK_EQ(rig_do(api, &open), -EBADF);
    open.e.handle = 8;
    open.push = "x";
    CHECK_EQ(rig_do(api, &open), -ENOENT);
    CHECK(open.cqe.reply_len > 0);
    CHECK_EQ(rig_simple(api, PROTO_FS_OPEN, 9, 0, 0, 8), -EBADF);
    CHECK_EQ(rig_simple(api, PROTO_FS_OPEN, 9, 0, 0, 7), 0);
    CHECK_EQ(rig_simple(api, PROTO_CONT_QUERY, 9, 0, 0, 0), -EBADF);
    CHECK_EQ(rig_simple(api, PROTO_STATFS, 9, 0, 0, 0), 0);
    CHECK_EQ(rig_simple(api, PROTO_STATFS, 7, 0, 0, 0), -EBADF);
    CHECK_EQ(rig_simple(api, PROTO_CLOSE, 9, 0, 0, 0), 0);
    CHECK_EQ(rig_simple(api, PROTO_CLOSE, 9, 0, 0, 0), -EBADF);
    CHECK_EQ(rig_simple(api, PROTO_CLOSE, 7, 0, 0, 0), 0);
}

static void pool_and_containers(void)
{
    struct rig_call call = {.e = {.op = PROTO_POOL_QUERY}};
    struct dfe_pool_info info;
    uint8_t push[64] = {0};
    uint32_t mode = 0755;

    CHECK_EQ(rig_do(api, &call), 0);
    memcpy(&info, call.reply, sizeof(info));
    CHECK(strcmp(info.label, "test") == 0);
    CHECK_EQ(rig_simple(api, PROTO_POOL_SYNC, 0, 0, 0, 0), 0);
    CHECK_EQ(rig_simple(api, PROTO_POOL_CHECKPOINT, 0, 0, 0, 0), 0);
    CHECK_EQ(rig_simple(api, PROTO_POOL_DROP_CACHES, 0, 0, 0, 0), 0);
    CHECK_EQ(rig_simple(api, PROTO_SERVICE_QUERY, 0, 0, 0, 0), 0);

    memcpy(push + 16, &mode, 4);
    memcpy(push + 20, "d", 1);
    call.e = (struct proto_sqe){.op = PROTO_CONT_CREATE, .push_len = 21};
    call.push = push;
    CHECK_EQ(rig_do(api, &call), 0);
    call.e = (struct proto_sqe){.op = PROTO_CONT_LIST};
    CHECK_EQ(rig_do(api, &call), 2);
    CHECK_EQ(call.cqe.reply_len, 2 * sizeof(struct dfe_cont_info));
    call.e = (struct proto_sqe){.op = PROTO_CONT_OPEN, .handle = 1, .arg = 1, .push_len = 1};
    call.push = "d";
    CHECK_EQ(rig_do(api, &call), 0);
    call.e = (struct proto_sqe){.op = PROTO_PROP_SET, .handle = 1, .arg = 4, .push_len = 9};
    call.push = "nameVALUE";
    CHECK_EQ(rig_do(api, &call), 0);
    call.e = (struct proto_sqe){.op = PROTO_PROP_GET, .handle = 1, .push_len = 4};
    CHECK(rig_do(api, &call) >= 0);
    CHECK_EQ(call.cqe.reply_len, 6);
    CHECK(strcmp((char *)call.reply, "VALUE") == 0);
    call.e = (struct proto_sqe){.op = PROTO_SNAP_CREATE, .handle = 1, .push_len = 4};
    CHECK_EQ(rig_do(api, &call), 0);
    CHECK(call.cqe.value > 0);
    call.e.op = PROTO_SNAP_LIST;
    call.e.push_len = 0;
    CHECK_EQ(rig_do(api, &call), 1);
    call.e = (struct proto_sqe){.op = PROTO_CHECK, .handle = 1};
    CHECK_EQ(rig_do(api, &call), 0);
    call.e = (struct proto_sqe){.op = PROTO_SNAP_DESTROY, .handle = 1, .push_len = 4};
    call.push = "nameVALUE";
    CHECK_EQ(rig_do(api, &call), 0);
    CHECK_EQ(rig_simple(api, PROTO_CLOSE, 1, 0, 0, 0), 0);
    call.e = (struct proto_sqe){.op = PROTO_CONT_DESTROY, .push_len = 1};
    call.push = "d";
    CHECK_EQ(rig_do(api, &call), 0);
}

/* -- objects ---------------------------------------------------------------------------------- */

static size_t put_record(uint8_t *at, uint32_t type, const struct dfe_oid *oid, const char *dkey,
                         const char *data)
{
    struct proto_tx head = {.type = type,
                            .data_len = (uint32_t)strlen(data),
                            .dkey_len = (uint16_t)strlen(dkey),
                            .oid_hi = oid->hi,
                            .oid_lo = oid->lo};
    size_t len = strlen(dkey) + strlen(data), whole = (len + 7) / 8 * 8;

    memcpy(at, &head, sizeof(head));
    memset(at + sizeof(head), 0, whole);
    memcpy(at + sizeof(head), dkey, strlen(dkey));
    memcpy(at + sizeof(head) + strlen(dkey), data, strlen(data));
    return sizeof(head) + whole;
}

static size_t put_key(uint8_t *at, const struct dfe_oid *oid, const char *dkey)
{
    uint16_t len = (uint16_t)strlen(dkey);

    memset(at, 0, sizeof(*oid) + 8);
    memcpy(at, oid, sizeof(*oid));
    memcpy(at + sizeof(*oid), &len, 2);
    memcpy(at + sizeof(*oid) + 8, dkey, len);
    return sizeof(*oid) + 8 + len;
}

static void objects(void)
{
    struct dfe_oid oid = {.hi = 0x100, .lo = 5}, array = {.hi = 0x200, .lo = 6};
    uint8_t push[512];
    size_t len = sizeof(oid), first;
    struct rig_call call = {.e = {.op = PROTO_CONT_OPEN, .handle = 1, .arg = 1, .push_len = 1},
                            .push = "c"};

    CHECK_EQ(rig_do(api, &call), 0);
    memcpy(push, &oid, sizeof(oid));
    first = put_record(push + len, PROTO_TX_GUARD_ABSENT, &oid, "key", "");
    len += first;
    len += put_record(push + len, PROTO_TX_PUT, &oid, "key", "value");
    call.e = (struct proto_sqe){.op = PROTO_TX_COMMIT, .handle = 1, .push_len = (uint32_t)len};
    call.push = push;
    CHECK_EQ(rig_do(api, &call), 0);
    CHECK(call.cqe.value > 0);
    CHECK_EQ(rig_do(api, &call), -EAGAIN);
    for (size_t cut = sizeof(oid) + 1; cut < len; cut++) {
        if (cut == sizeof(oid) + first)
            continue;
        call.e.push_len = (uint32_t)cut;
        CHECK_EQ(rig_do(api, &call), -EINVAL);
    }
    len = put_key(push, &oid, "key");
    call.e = (struct proto_sqe){.op = PROTO_KV_GET, .handle = 1, .push_len = (uint32_t)len};
    CHECK_EQ(rig_do(api, &call), 5);
    CHECK(call.cqe.reply_len == 5 && memcmp(call.reply, "value", 5) == 0);
    call.e.push_len--;
    CHECK_EQ(rig_do(api, &call), -EINVAL);
    len = put_key(push, &oid, "");
    call.e = (struct proto_sqe){.op = PROTO_KV_SCAN, .handle = 1, .push_len = (uint32_t)len};
    CHECK_EQ(rig_do(api, &call), 16);

    memcpy(push, &array, sizeof(array));
    memcpy(push + sizeof(array), "bytes", 5);
    call.e = (struct proto_sqe){.op = PROTO_ARRAY_WRITE, .handle = 1, .off = 3, .push_len = 21};
    CHECK_EQ(rig_do(api, &call), 5);
    call.e = (struct proto_sqe){.op = PROTO_ARRAY_READ, .handle = 1, .len = 8, .push_len = 16};
    CHECK_EQ(rig_do(api, &call), 8);
    CHECK(memcmp(call.reply, "\0\0\0bytes", 8) == 0);
    call.e = (struct proto_sqe){.op = PROTO_ARRAY_NEXT, .handle = 1, .push_len = 16};
    CHECK_EQ(rig_do(api, &call), 0);
    call.e = (struct proto_sqe){.op = PROTO_ARRAY_PUNCH, .handle = 1, .push_len = 24};
    memset(push + 16, 0xff, 8);
    CHECK_EQ(rig_do(api, &call), 0);
    CHECK_EQ(rig_simple(api, PROTO_CLOSE, 1, 0, 0, 0), 0);
}

/* -- file system ------------------------------------------------------------------------------ */

static void names_and_data(void)
{
    struct dfe_attr attr, dir, in = {.mode = 0600, .size = 3};
    struct rig_call call = {.e = {.op = PROTO_RENAME, .handle = 2, .ino = RIG_ROOT, .arg = 4}};
    uint64_t at;
    char got[16];

    CHECK_EQ(rig_fs(api, 2, "c"), 0);
    CHECK_EQ(rig_make(api, 2, RIG_ROOT, "file", S_IFREG | 0644, DFE_REF, &attr), 0);
    CHECK_EQ(rig_make(api, 2, RIG_ROOT, "dir", S_IFDIR | 0755, 0, &dir), 0);
    CHECK_EQ(rig_name(api, PROTO_LOOKUP, 2, RIG_ROOT, "file", DFE_REF, NULL), 0);
    CHECK_EQ(rig_name(api, PROTO_LOOKUP, 2, RIG_ROOT, "none", 0, NULL), -ENOENT);
    CHECK_EQ(rig_write(api, 2, attr.ino, 0, "hello", 5, 0, NULL), 5);
    CHECK_EQ(rig_write(api, 2, attr.ino, 0, "!", 1, DFE_APPEND, &at), 1);
    CHECK_EQ(at, 5);
    CHECK_EQ(rig_read(api, 2, attr.ino, 1, got, sizeof(got)), 5);
    CHECK(memcmp(got, "ello!", 5) == 0);
    CHECK_EQ(rig_setattr(api, 2, attr.ino, &in, DFE_SET_SIZE | DFE_SET_MODE), 0);
    CHECK_EQ(rig_getattr(api, 2, attr.ino, &attr), 0);
    CHECK_EQ(attr.size, 3);
    CHECK_EQ(attr.mode, S_IFREG | 0600);
    call.e.off = dir.ino;
    call.e.push_len = 9;
    call.push = "filemoved";
    CHECK_EQ(rig_do(api, &call), 0);
    call.e.arg = 10;
    CHECK_EQ(rig_do(api, &call), -EINVAL);
    call.e = (struct proto_sqe){
        .op = PROTO_READDIR, .handle = 2, .ino = RIG_ROOT, .flags = DFE_PLUS | DFE_REF};
    CHECK(rig_do(api, &call) > 0);
    CHECK_EQ(rig_simple(api, PROTO_PARENT, 2, dir.ino, 0, 0), 0);
    CHECK_EQ(rig_name(api, PROTO_RMDIR, 2, RIG_ROOT, "dir", 0, NULL), -ENOTEMPTY);
    CHECK_EQ(rig_simple(api, PROTO_FSYNC, 2, attr.ino, 0, 0), 0);
    CHECK_EQ(rig_simple(api, PROTO_FS_SYNC, 2, 0, 0, 0), 0);
    CHECK_EQ(rig_simple(api, PROTO_FS_QUERY, 2, 0, 0, 0), 0);

    call.e = (struct proto_sqe){
        .op = PROTO_SETXATTR, .handle = 2, .ino = attr.ino, .arg = 6, .push_len = 7};
    call.push = "user.av";
    CHECK_EQ(rig_do(api, &call), 0);
    call.e = (struct proto_sqe){
        .op = PROTO_GETXATTR, .handle = 2, .ino = attr.ino, .push_len = 6};
    CHECK_EQ(rig_do(api, &call), 1);
    call.e.op = PROTO_REMOVEXATTR;
    CHECK_EQ(rig_do(api, &call), 0);
    CHECK_EQ(rig_do(api, &call), -ENODATA);
    call.e = (struct proto_sqe){.op = PROTO_SYMLINK,
                                .handle = 2,
                                .ino = RIG_ROOT,
                                .arg = 3,
                                .push_len = sizeof(struct dfe_cred) + 6};
    call.push = "\0\0\0\0\0\0\0\0\0\0\0\0symto!";
    CHECK_EQ(rig_do(api, &call), 0);
    memcpy(&attr, call.reply, sizeof(attr));
    call.e = (struct proto_sqe){.op = PROTO_READLINK, .handle = 2, .ino = attr.ino};
    CHECK_EQ(rig_do(api, &call), 3);
    CHECK(memcmp(call.reply, "to!", 3) == 0);
    call.e = (struct proto_sqe){
        .op = PROTO_LINK, .handle = 2, .ino = attr.ino, .off = dir.ino, .push_len = 4};
    call.push = "link";
    CHECK_EQ(rig_do(api, &call), 0);
    CHECK_EQ(rig_name(api, PROTO_UNLINK, 2, RIG_ROOT, "sym", 0, NULL), 0);
    CHECK_EQ(rig_simple(api, PROTO_CLOSE, 2, 0, 0, 0), 0);
}

/* An unlinked file lives as long as a session holds it, and ends with the session. */
static void references(void)
{
    struct session *s = rig_session(host, PROTO_ROLE_API, geteuid(), getegid(), 2);
    struct dfe_attr attr;

    CHECK_EQ(rig_fs(api, 2, "c"), 0);
    CHECK_EQ(rig_fs(s, 2, "c"), 0);
    CHECK_EQ(rig_make(s, 2, RIG_ROOT, "held", S_IFREG | 0644, DFE_REF, &attr), 0);
    CHECK_EQ(rig_simple(s, PROTO_REF, 2, attr.ino, 1000, 0), 0);
    CHECK_EQ(rig_simple(api, PROTO_UNREF, 2, attr.ino, 5000, 0), 0);
    CHECK_EQ(rig_name(api, PROTO_UNLINK, 2, RIG_ROOT, "held", 0, NULL), 0);
    CHECK_EQ(rig_simple(s, PROTO_UNREF, 2, attr.ino, 1000, 0), 0);
    CHECK_EQ(rig_getattr(api, 2, attr.ino, NULL), 0);
    CHECK_EQ(rig_simple(s, PROTO_UNREF, 2, attr.ino, 1, 0), 0);
    CHECK_EQ(rig_getattr(api, 2, attr.ino, NULL), -ESTALE);
    CHECK_EQ(rig_make(s, 2, RIG_ROOT, "held", S_IFREG | 0644, DFE_REF, &attr), 0);
    CHECK_EQ(rig_name(api, PROTO_UNLINK, 2, RIG_ROOT, "held", 0, NULL), 0);
    session_end(s);
    CHECK_EQ(rig_getattr(api, 2, attr.ino, NULL), -ESTALE);
    CHECK_EQ(rig_simple(api, PROTO_CLOSE, 2, 0, 0, 0), 0);
}

static int64_t loan(struct session *s, uint64_t ino, uint32_t len, struct proto_lease *lease,
                    uint64_t *number)
{
    struct rig_call call = {.e = {.op = PROTO_LOAN, .handle = 2, .ino = ino, .len = len}};
    int64_t ret = rig_do(s, &call);

    if (ret == 0)
        memcpy(lease, call.reply, sizeof(*lease));
    *number = call.cqe.value;
    return ret;
}

static void loans(void)
{
    struct session *s = rig_session(host, PROTO_ROLE_API, geteuid(), getegid(), 3);
    struct rig_call query = {.e = {.op = PROTO_SERVICE_QUERY}};
    struct dfe_service_info info;
    struct proto_lease lease;
    struct dfe_attr attr;
    uint64_t number, other;
    unsigned n;

    CHECK_EQ(rig_fs(s, 2, "c"), 0);
    CHECK_EQ(rig_make(s, 2, RIG_ROOT, "lent", S_IFREG | 0644, 0, &attr), 0);
    CHECK_EQ(rig_write(s, 2, attr.ino, 0, "lent bytes", 10, 0, NULL), 10);
    CHECK_EQ(loan(s, attr.ino, 100, &lease, &number), 0);
    CHECK_EQ(lease.len, 10);
    CHECK(number != 0);
    CHECK_EQ(rig_simple(s, PROTO_DROP, 0, 0, number, 0), 0);
    CHECK_EQ(rig_simple(s, PROTO_DROP, 0, 0, number, 0), -ESTALE);
    CHECK_EQ(rig_simple(s, PROTO_DROP, 0, 0, 0, 0), -ESTALE);
    CHECK_EQ(loan(s, attr.ino, 100, &lease, &other), 0);
    CHECK(other != number);
    for (n = 1; loan(s, attr.ino, 100, &lease, &other) == 0; n++)
        CHECK(n <= LOANS_BOUND);
    CHECK_EQ(rig_simple(s, PROTO_CLOSE, 2, 0, 0, 0), 0);
    CHECK_EQ(rig_do(s, &query), 0);
    memcpy(&info, query.reply, sizeof(info));
    CHECK_EQ(info.loans, n);
    session_end(s);
    CHECK_EQ(rig_do(api, &query), 0);
    memcpy(&info, query.reply, sizeof(info));
    CHECK_EQ(info.loans, 0);
    CHECK_EQ(info.loan_bytes, 0);
    CHECK_EQ(info.sessions, 1);
}

static void nonsense(void)
{
    struct rig_call call = {.e = {.op = 1000}};

    CHECK_EQ(rig_do(api, &call), -ENOSYS);
    CHECK(call.cqe.reply_len > 0);
    call.e = (struct proto_sqe){.op = PROTO_NOP, .flags = 1u << 31};
    CHECK_EQ(rig_do(api, &call), -EINVAL);
    call.e = (struct proto_sqe){.op = PROTO_NOP, .ctl = 8};
    CHECK_EQ(rig_do(api, &call), -EINVAL);
    call.e = (struct proto_sqe){.op = PROTO_POOL_QUERY, .reply_cap = 8};
    CHECK_EQ(rig_do(api, &call), -EINVAL);
    CHECK_EQ(call.cqe.reply_len, 8);
    CHECK_EQ(rig_fs(api, 2, "c"), 0);
    CHECK_EQ(rig_simple(api, PROTO_FS_MOUNT, 2, 0, 0, 0), -EACCES);
    CHECK_EQ(rig_simple(api, PROTO_INVAL_NEXT, 2, 0, 0, 0), -EINVAL);
    CHECK_EQ(rig_read(api, 2, RIG_ROOT, 0, NULL, 10), -EISDIR);
    call.e = (struct proto_sqe){.op = PROTO_READ, .handle = 2, .len = 10, .reply_cap = 9};
    CHECK_EQ(rig_do(api, &call), -EINVAL);
    CHECK_EQ(rig_simple(api, PROTO_NEXT, 2, RIG_ROOT, 0, 2), -EINVAL);
    CHECK_EQ(rig_simple(api, PROTO_CLOSE, 2, 0, 0, 0), 0);
}

int main(void)
{
    const char *path = api_path("pool");

    host = rig_open(path, 0, NULL);
    api = rig_session(host, PROTO_ROLE_API, geteuid(), getegid(), 1);
    RUN(handles);
    RUN(pool_and_containers);
    RUN(objects);
    RUN(names_and_data);
    RUN(references);
    RUN(loans);
    RUN(nonsense);
    session_end(api);
    rig_close(host, path);
    return 0;
}
