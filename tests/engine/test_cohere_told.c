/* SPDX-License-Identifier: Apache-2.0 */
/* What mounts are told, one by one: after a restart, of ACLs, of links whose names change hands. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api_fixture.h"
#include "dispatch_rig.h"

static struct host *host;
static struct session *api, *il;

/* A mount that comes back after a restart is told what has changed meanwhile. It counts as holding
 * everything until it asks for news, and then holds what it has taken references on. */
static void *tells(void *arg)
{
    struct dfe_attr *attr = arg;

    CHECK_EQ(rig_write(il, 1, attr->ino, 0, "again", 5, 0, NULL), 5);
    return NULL;
}

static uint64_t next_news(struct session *m, uint64_t done, struct dfe_inval *inval)
{
    struct rig_call next = {.e = {.op = PROTO_INVAL_NEXT, .handle = 1, .off = done}};

    CHECK_EQ(rig_do(m, &next), 0);
    memcpy(inval, next.reply, sizeof(*inval));
    return inval->id;
}

static bool is_pages(const struct dfe_inval *inval, uint64_t ino)
{
    return inval->what == DFE_INVAL_PAGES && inval->ino == ino;
}

/* The mount hears of the change under way twice; the second time it leaves unanswered. */
static void two_waves(struct session *m, uint64_t done, uint64_t ino)
{
    struct dfe_inval inval;

    for (unsigned waves = 0; waves < 2; waves += is_pages(&inval, ino))
        done = next_news(m, done, &inval);
}

static void comes_back(void)
{
    struct session *m = rig_session(host, PROTO_ROLE_MOUNT, geteuid(), getegid(), 19);
    struct rig_call mount = {.e = {.op = PROTO_FS_MOUNT, .handle = 1, .off = 4711}};
    struct dfe_inval inval = {0};
    struct dfe_attr attr, held, other;
    bool data = false, name = false;
    pthread_t thread;
    uint64_t done = 0;

    CHECK_EQ(rig_make(api, 1, RIG_ROOT, "changed", S_IFREG | 0644, 0, &attr), 0);
    CHECK_EQ(rig_make(api, 1, RIG_ROOT, "held", S_IFREG | 0644, 0, &held), 0);
    CHECK_EQ(rig_make(api, 1, RIG_ROOT, "other", S_IFREG | 0644, 0, &other), 0);
    CHECK_EQ(rig_write(api, 1, attr.ino, 0, "changed", 7, 0, NULL), 7);
    CHECK_EQ(rig_fs(m, 1, "c"), 0);
    CHECK_EQ(rig_do(m, &mount), 0);
    CHECK_EQ(mount.cqe.value, 4711);
    /* What it has not taken up again yet: */
    CHECK_EQ(pthread_create(&thread, NULL, tells, &held), 0);
    usleep(100000);
    CHECK_EQ(rig_simple(m, PROTO_REF, 1, held.ino, 3, 0), 0);
    while (!data || !name) {
        done = next_news(m, done, &inval);
        data |= is_pages(&inval, attr.ino);
        name |= inval.what == DFE_INVAL_ENTRY && inval.ino == RIG_ROOT && inval.name_len == 7 &&
                memcmp(inval.name, "changed", 7) == 0;
    }
    two_waves(m, done, held.ino);
    tells(&other); /* it never spoke of this one: nobody waits, though it does not ask */
    CHECK_EQ(rig_simple(m, PROTO_INVAL_STOP, 1, 0, 0, 0), 0);
    pthread_join(thread, NULL);
    session_end(m);
}

/* -- a mount whose thread says "done" at once, and counts ------------------------------------- */

struct counting {
    struct session *s;
    pthread_t thread;
    uint64_t ino;  /* whose news are counted */
    uint64_t done; /* before the thread's first call */
    atomic_uint news;
};

static void *count_news(void *arg)
{
    struct counting *k = arg;
    struct dfe_inval inval = {.id = k->done};
    struct proto_cqe cqe;

    for (;;) {
        struct request req = {.e = {.op = PROTO_INVAL_NEXT,
                                    .handle = 1,
                                    .off = inval.id,
                                    .reply_cap = sizeof(inval)},
                              .reply = &inval};

        CHECK_EQ(dispatch(k->s, &req, true, &cqe), 0);
        if (cqe.result < 0)
            break;
        if (inval.ino == k->ino)
            atomic_fetch_add(&k->news, 1);
    }
    CHECK_EQ(cqe.result, -ESHUTDOWN);
    return NULL;
}

static void counting_open(struct counting *k, uint64_t id, uint64_t ino)
{
    memset(k, 0, sizeof(*k));
    k->ino = ino;
    k->s = rig_session(host, PROTO_ROLE_MOUNT, geteuid(), getegid(), id);
    CHECK_EQ(rig_fs(k->s, 1, "c"), 0);
    CHECK_EQ(rig_simple(k->s, PROTO_FS_MOUNT, 1, 0, 0, 0), 0);
    CHECK_EQ(pthread_create(&k->thread, NULL, count_news, k), 0);
}

static void counting_close(struct counting *k)
{
    CHECK_EQ(rig_simple(k->s, PROTO_INVAL_STOP, 1, 0, 0, 0), 0);
    CHECK_EQ(pthread_join(k->thread, NULL), 0);
    session_end(k->s);
}

/* -- ACLs ------------------------------------------------------------------------------------- */

static int64_t xattr_op(struct session *s, uint32_t op, uint64_t ino, const char *push, size_t len,
                        uint32_t name_len)
{
    struct rig_call call = {.e = {.op = op, .handle = 1, .ino = ino, .arg = name_len},
                            .push = push};

    call.e.push_len = (uint32_t)len;
    call.e.reply_cap = op == PROTO_GETXATTR || op == PROTO_LISTXATTR ? RIG_REPLY : 0;
    return rig_do(s, &call);
}

/* A kernel asks for an ACL and keeps it, that there is none, too, without asking for attributes. */
static void xattrs_are_marked(void)
{
    static const char name[] = "user.colour", pair[] = "user.colourred";
    struct counting k;
    struct dfe_attr attr;

    CHECK_EQ(rig_make(api, 1, RIG_ROOT, "coloured", S_IFREG | 0644, DFE_REF, &attr), 0);
    counting_open(&k, 30, attr.ino);
    CHECK_EQ(xattr_op(api, PROTO_SETXATTR, attr.ino, pair, 14, 11), 0);
    CHECK_EQ(atomic_load(&k.news), 0); /* it has asked nothing */
    CHECK_EQ(xattr_op(k.s, PROTO_GETXATTR, attr.ino, name, 11, 0), 3);
    CHECK_EQ(xattr_op(api, PROTO_SETXATTR, attr.ino, pair, 14, 11), 0);
    CHECK_EQ(atomic_load(&k.news), 1);
    CHECK_EQ(xattr_op(k.s, PROTO_LISTXATTR, attr.ino, NULL, 0, 0), 12);
    CHECK_EQ(xattr_op(api, PROTO_REMOVEXATTR, attr.ino, name, 11, 0), 0);
    CHECK_EQ(atomic_load(&k.news), 2);
    CHECK_EQ(xattr_op(k.s, PROTO_GETXATTR, attr.ino, name, 11, 0), -ENODATA);
    CHECK_EQ(xattr_op(api, PROTO_SETXATTR, attr.ino, pair, 14, 11), 0);
    CHECK_EQ(atomic_load(&k.news), 3);
    counting_close(&k);
}

/* -- two mounts that come back one after the other -------------------------------------------- */

/* What the one that is back changes, and what others change under it, the second one hears of. */
static void comes_back_second(void)
{
    struct session *m = rig_session(host, PROTO_ROLE_MOUNT, geteuid(), getegid(), 51);
    struct rig_call back = {.e = {.op = PROTO_FS_MOUNT, .handle = 1, .off = 4712, .arg = 1}};
    struct dfe_attr attr, in = {.mode = 0600};
    struct dfe_inval inval = {0};
    struct counting k;
    bool data = false, name = false;

    CHECK_EQ(rig_make(api, 1, RIG_ROOT, "early", S_IFREG | 0644, DFE_REF, &attr), 0);
    counting_open(&k, 50, 0);
    CHECK_EQ(rig_write(k.s, 1, attr.ino, 0, "early", 5, 0, NULL), 5);
    CHECK_EQ(rig_setattr(api, 1, attr.ino, &in, DFE_SET_MODE), 0);
    CHECK_EQ(rig_name(api, PROTO_UNLINK, 1, RIG_ROOT, "early", 0, NULL), 0);
    CHECK_EQ(rig_fs(m, 1, "c"), 0);
    CHECK_EQ(rig_do(m, &back), 0);
    while (!data || !name) {
        next_news(m, inval.id, &inval);
        data |= is_pages(&inval, attr.ino);
        name |= inval.what == DFE_INVAL_ENTRY && inval.name_len == 5 &&
                memcmp(inval.name, "early", 5) == 0;
    }
    counting_close(&k);
    session_end(m);
}

/* -- names that change hands ------------------------------------------------------------------ */

static void *removes(void *arg)
{
    CHECK_EQ(rig_name(api, PROTO_UNLINK, 1, RIG_ROOT, "hand", 0, NULL), 0);
    return arg;
}

/* While the removal of a name waits for the mount, the mount gives the name to another inode, and
 * asks for that one's attributes: it hears that this one has a link less. */
static void links_are_counted(void)
{
    static const char from[] = "second", both[] = "secondhand";
    struct rig_call rename = {
        .e = {.op = PROTO_RENAME, .handle = 1, .ino = RIG_ROOT, .off = RIG_ROOT, .arg = 6},
        .push = both};
    struct rig_call link = {.e = {.op = PROTO_LINK, .handle = 1, .off = RIG_ROOT}, .push = "kept"};
    struct counting k = {.s = rig_session(host, PROTO_ROLE_MOUNT, geteuid(), getegid(), 42)};
    struct dfe_inval inval;
    struct dfe_attr attr;
    pthread_t thread;

    rename.e.push_len = sizeof(both) - 1;
    link.e.push_len = 4;
    link.e.reply_cap = sizeof(attr);
    CHECK_EQ(rig_make(api, 1, RIG_ROOT, "hand", S_IFREG | 0644, 0, &attr), 0);
    CHECK_EQ(rig_make(api, 1, RIG_ROOT, from, S_IFREG | 0644, DFE_REF, &attr), 0);
    link.e.ino = k.ino = attr.ino;
    CHECK_EQ(rig_do(api, &link), 0);
    CHECK_EQ(rig_fs(k.s, 1, "c"), 0);
    CHECK_EQ(rig_simple(k.s, PROTO_FS_MOUNT, 1, 0, 0, 0), 0);
    CHECK_EQ(pthread_create(&thread, NULL, removes, NULL), 0);
    k.done = next_news(k.s, 0, &inval);
    CHECK_EQ(inval.what, DFE_INVAL_ENTRY);
    CHECK_EQ(rig_do(k.s, &rename), 0);
    CHECK_EQ(rig_getattr(k.s, 1, k.ino, &attr), 0);
    CHECK_EQ(attr.nlink, 2);
    CHECK_EQ(pthread_create(&k.thread, NULL, count_news, &k), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(atomic_load(&k.news), 1);
    CHECK_EQ(rig_getattr(k.s, 1, k.ino, &attr), 0);
    CHECK_EQ(attr.nlink, 1);
    counting_close(&k);
}

/* -- files that grow -------------------------------------------------------------------------- */

static void *appends(void *arg)
{
    const struct dfe_attr *attr = arg;

    CHECK_EQ(rig_write(api, 1, attr->ino, 5, "+more", 5, 0, NULL), 5);
    return NULL;
}

/* A kernel that has the page with the old end, and reads zeros after it, is told of the new end
 * when it has let go of that page, and not before; but what it writes itself it sees. */
static void ends_are_told_last(bool writes_too)
{
    struct counting k = {.s = rig_session(host, PROTO_ROLE_MOUNT, geteuid(), getegid(), 60)};
    struct dfe_inval inval;
    struct dfe_attr attr;
    pthread_t thread;
    char page[32];

    CHECK_EQ(rig_make(api, 1, RIG_ROOT, writes_too ? "log2" : "log", S_IFREG | 0644, 0, &attr), 0);
    CHECK_EQ(rig_write(api, 1, attr.ino, 0, "first", 5, 0, NULL), 5);
    k.ino = attr.ino;
    CHECK_EQ(rig_fs(k.s, 1, "c"), 0);
    CHECK_EQ(rig_simple(k.s, PROTO_FS_MOUNT, 1, 0, 0, 0), 0);
    CHECK_EQ(rig_read(k.s, 1, k.ino, 0, page, sizeof(page)), 5);
    CHECK_EQ(pthread_create(&thread, NULL, appends, &attr), 0);
    k.done = next_news(k.s, 0, &inval);
    CHECK_EQ(rig_read(k.s, 1, k.ino, 0, page, sizeof(page)), 5);
    k.done = next_news(k.s, k.done, &inval); /* it is applied, and not yet answered */
    CHECK(is_pages(&inval, k.ino));
    CHECK_EQ(rig_read(k.s, 1, k.ino, 0, page, sizeof(page)), 10);
    CHECK_EQ(rig_getattr(k.s, 1, k.ino, &attr), 0);
    CHECK_EQ(attr.size, 5);
    CHECK(attr.flags & DFE_ATTR_SHARED);
    if (writes_too) {
        CHECK_EQ(rig_write(k.s, 1, k.ino, 10, "own", 3, 0, NULL), 3);
        CHECK_EQ(rig_getattr(k.s, 1, k.ino, &attr), 0);
        CHECK_EQ(attr.size, 13);
    }
    CHECK_EQ(pthread_create(&k.thread, NULL, count_news, &k), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(rig_getattr(k.s, 1, k.ino, &attr), 0);
    CHECK_EQ(attr.size, writes_too ? 13 : 10);
    counting_close(&k);
}

static void growth(void)
{
    ends_are_told_last(false);
    ends_are_told_last(true);
}

int main(void)
{
    const char *path = api_path("pool");

    test_seed();
    host = rig_open(path, 10000, NULL);
    api = rig_session(host, PROTO_ROLE_API, geteuid(), getegid(), 1);
    il = rig_session(host, PROTO_ROLE_IL, 0, 0, 2);
    CHECK_EQ(rig_fs(api, 1, "c"), 0);
    CHECK_EQ(rig_fs(il, 1, "c"), 0);
    RUN(comes_back);
    RUN(xattrs_are_marked);
    RUN(comes_back_second);
    RUN(links_are_counted);
    RUN(growth);
    session_end(il);
    session_end(api);
    rig_close(host, path);
    return 0;
}
