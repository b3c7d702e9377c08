/* SPDX-License-Identifier: Apache-2.0 */
/* A worker is killed after it did what was asked and before it could say so: the next one answers
 * the same requests, and does nothing twice. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "api_fixture.h"
#include "base/keep.h"
#include "dispatch_rig.h"

#define LOG_BYTES (16u << 20)
#define SESSION 77u

static void *mem;
static size_t mem_bytes;
static struct keep *keep;
static const char *path;

/* What the first worker found out, for the second to compare. */
static struct shared {
    uint64_t file, dir;
    uint64_t appended_at, epoch;
} *shared;

static struct host *open_host(void)
{
    struct host_opts opts = {.size = sizeof(opts),
                             .path = path,
                             .arena_bytes = 64u << 20,
                             .no_hugepages = true,
                             .keep = keep};
    struct host *host;

    CHECK_EQ(keep_open(mem, mem_bytes, &keep), 0);
    opts.keep = keep;
    CHECK_EQ(host_open(&opts, &host), 0);
    return host;
}

static struct session *open_session(struct host *host)
{
    struct session *s = rig_session(host, PROTO_ROLE_API, geteuid(), getegid(), SESSION);
    struct rig_call call = {.e = {.op = PROTO_CONT_OPEN, .handle = 2, .arg = 1, .push_len = 1},
                            .push = "c"};

    CHECK_EQ(rig_fs(s, 1, "c"), 0);
    CHECK_EQ(rig_do(s, &call), 0);
    return s;
}

/* As a mount asks at first; told that it would wait, it would ask anew, by another number. */
static unsigned asking;

static int64_t create(struct session *s, uint32_t ctl, uint64_t seq, const char *name,
                      uint64_t *ino)
{
    struct dfe_cred cred = {.uid = geteuid()};
    uint8_t push[sizeof(cred) + 16];
    struct rig_call call = {.e = {.op = PROTO_MKNOD,
                                  .handle = 1,
                                  .ino = RIG_ROOT,
                                  .arg = S_IFREG | 0644,
                                  .flags = DFE_REF | asking,
                                  .ctl = ctl,
                                  .seq = seq,
                                  .push_len = (uint32_t)(sizeof(cred) + strlen(name))},
                            .push = push};

    memcpy(push, &cred, sizeof(cred));
    memcpy(push + sizeof(cred), name, strlen(name));
    rig_do(s, &call);
    if (call.cqe.result == 0)
        memcpy(ino, call.reply, 8);
    return call.cqe.result;
}

static int64_t commit(struct session *s, uint32_t ctl, uint64_t seq, uint64_t *epoch)
{
    struct {
        struct dfe_oid home;
        struct proto_tx add;
        char key[8];
    } tx = {.home = {.hi = 0x4001, .lo = 1},
            .add = {.type = PROTO_TX_ADD, .dkey_len = 3, .oid_hi = 0x4001, .oid_lo = 1, .arg = 1},
            .key = "sum"};
    struct rig_call call = {
        .e = {.op = PROTO_TX_COMMIT, .handle = 2, .ctl = ctl, .seq = seq, .push_len = sizeof(tx)},
        .push = &tx};

    rig_do(s, &call);
    *epoch = call.cqe.value;
    return call.cqe.result;
}

static int64_t simple(struct session *s, uint32_t ctl, uint64_t seq, uint32_t op, uint64_t ino,
                      uint64_t off, uint32_t arg, const char *push, struct rig_call *call)
{
    *call = (struct rig_call){.e = {.op = op,
                                    .handle = 1,
                                    .ino = ino,
                                    .off = off,
                                    .arg = arg,
                                    .ctl = ctl,
                                    .seq = seq,
                                    .flags = (op == PROTO_WRITE ? DFE_APPEND : 0) | asking,
                                    .push_len = (uint32_t)strlen(push)},
                              .push = push};
    return rig_do(s, call);
}

/* Everything that would fail, or be there twice, if it were done twice. */
static void requests(struct session *s, uint32_t ctl, struct shared *found)
{
    static struct rig_call call;
    uint64_t seq = 10;

    CHECK_EQ(create(s, ctl, seq++, "file", &found->file), 0);
    CHECK_EQ(simple(s, ctl, seq++, PROTO_WRITE, found->file, 0, 0, "first", &call), 5);
    CHECK_EQ(call.cqe.value, 0);
    CHECK_EQ(simple(s, ctl, seq++, PROTO_WRITE, found->file, 0, 0, "second", &call), 6);
    found->appended_at = call.cqe.value;
    CHECK_EQ(simple(s, ctl, seq++, PROTO_LINK, found->file, RIG_ROOT, 0, "link", &call), 0);
    CHECK_EQ(simple(s, ctl, seq++, PROTO_RENAME, RIG_ROOT, RIG_ROOT, 4, "linkname", &call), 0);
    CHECK_EQ(simple(s, ctl, seq++, PROTO_UNLINK, RIG_ROOT, 0, 0, "name", &call), 0);
    CHECK_EQ(simple(s, ctl, seq++, PROTO_SETXATTR, found->file, 0, 6, "user.av", &call), 0);
    CHECK_EQ(simple(s, ctl, seq++, PROTO_REMOVEXATTR, found->file, 0, 0, "user.a", &call), 0);
    CHECK_EQ(commit(s, ctl, seq++, &found->epoch), 0);
}

static void first_worker(void)
{
    struct session *s = open_session(open_host());

    requests(s, 0, shared);
    kill(getpid(), SIGKILL);
}

static void second_worker(void)
{
    struct host *host = open_host();
    struct session *s = open_session(host);
    struct shared found = {0};
    struct rig_call sum = {.e = {.op = PROTO_KV_GET, .handle = 2, .push_len = 27}};
    struct {
        struct dfe_oid oid;
        uint16_t lens[4];
        char key[8];
    } key = {{.hi = 0x4001, .lo = 1}, {3}, "sum"};
    uint64_t ino, value = 0;
    char got[32];

    asking = DFE_NOWAIT;
    requests(s, PROTO_CTL_RETRY, &found);
    asking = 0;
    CHECK_EQ(found.file, shared->file);
    CHECK_EQ(found.appended_at, 5);
    CHECK_EQ(shared->appended_at, 5);
    CHECK_EQ(found.epoch, shared->epoch);
    CHECK_EQ(rig_read(s, 1, found.file, 0, got, sizeof(got)), 11);
    CHECK(memcmp(got, "firstsecond", 11) == 0);
    sum.push = &key;
    CHECK_EQ(rig_do(s, &sum), 8);
    memcpy(&value, sum.reply, 8);
    CHECK_EQ(value, 1);
    /* What was not done is done now; and what has been answered is not remembered. */
    CHECK_EQ(create(s, PROTO_CTL_RETRY, 99, "later", &ino), 0);
    dispatch_posted(s, 10);
    CHECK_EQ(create(s, PROTO_CTL_RETRY, 10, "file", &ino), -EEXIST);
    session_end(s);
    rig_close(host, path);
    keep_close(keep);
}

int main(void)
{
    struct host *host;
    pid_t pid;
    int status;

    path = api_path("pool");
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    mem_bytes = keep_bytes(LOG_BYTES, LOG_BYTES);
    mem = mmap(NULL, mem_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED && mem != MAP_FAILED);
    CHECK_EQ(keep_format(mem, mem_bytes, LOG_BYTES, LOG_BYTES), 0);
    host = rig_open(path, 0, NULL);
    CHECK_EQ(host_close(host), 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        first_worker();
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    RUN(second_worker);
    return 0;
}
