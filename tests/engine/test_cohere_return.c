/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker dies, and a session changes what a mount's kernel still has before the mount is back
 * with the next one: the change is answered when the mount has been told, or is no more.
 *
 * Each test is a round of two workers over the same kept memory: the first, a process of its own,
 * is killed; the second is this process.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "api_fixture.h"
#include "base/clock.h"
#include "base/keep.h"
#include "dispatch_rig.h"
#include "service/cohere.h"
#include "service/roll.h"

#define LOG_BYTES (16u << 20)
#define API 77u
#define MOUNT 78u
#define HELD_US 300000 /* so long a change is seen not to be answered */
#define NAME "victim"

static void *mem, *roll;
static size_t mem_bytes;
static struct keep *keep;
static struct host *host;
static struct session *api, *mount;
static const char *path;

static struct shared {
    uint64_t ino;
} *shared;

static void *share(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(p != MAP_FAILED);
    return p;
}

/* -- workers ---------------------------------------------------------------------------------- */

static void worker_begin(void)
{
    struct host_opts opts = {.size = sizeof(opts),
                             .path = path,
                             .arena_bytes = 64u << 20,
                             .no_hugepages = true,
                             .roll = roll,
                             .inval_ms = 10000};

    CHECK_EQ(keep_open(mem, mem_bytes, &keep), 0);
    opts.keep = keep;
    CHECK_EQ(host_open(&opts, &host), 0);
    api = rig_session(host, PROTO_ROLE_API, geteuid(), getegid(), API);
    CHECK_EQ(rig_fs(api, 1, "c"), 0);
}

static void worker_end(void)
{
    session_end(api);
    CHECK_EQ(host_close(host), 0);
    keep_close(keep);
}

/* A session of that number, of a process. */
static struct session *mount_session(uint64_t id, pid_t pid)
{
    struct session_who who = {
        .role = PROTO_ROLE_MOUNT, .uid = geteuid(), .gid = getegid(), .pid = pid};
    struct session *s;

    CHECK_EQ(session_new(host, &who, id, &s), 0);
    CHECK_EQ(rig_fs(s, 1, "c"), 0);
    return s;
}

static int64_t mount_it(struct session *s, uint64_t generation, uint32_t read_only)
{
    return rig_simple(s, PROTO_FS_MOUNT, 1, 0, generation, read_only);
}

/* fn in a first worker, which is killed after it. */
static void first_worker(void (*fn)(void))
{
    pid_t pid = fork();
    int status;

    CHECK(pid >= 0);
    if (pid == 0) {
        worker_begin();
        fn();
        kill(getpid(), SIGKILL);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static pid_t idle_process(void)
{
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        pause();
        _exit(0);
    }
    return pid;
}

static void end_process(pid_t pid)
{
    CHECK_EQ(kill(pid, SIGKILL), 0);
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
}

/* -- changes that wait ------------------------------------------------------------------------ */

static atomic_bool answered;

static void *change(void *arg)
{
    CHECK_EQ(rig_write(api, 1, shared->ino, 0, "second", 6, 0, NULL), 6);
    atomic_store(&answered, true);
    return arg;
}

static pthread_t change_begins(void)
{
    pthread_t thread;

    atomic_store(&answered, false);
    CHECK_EQ(pthread_create(&thread, NULL, change, NULL), 0);
    return thread;
}

static void change_waits(void)
{
    usleep(HELD_US);
    CHECK(!atomic_load(&answered));
}

static void change_ends(pthread_t thread)
{
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(atomic_load(&answered));
}

/* Nobody is waited for: at once, as far as that can be said on a busy machine. */
static void change_is_free(void)
{
    uint64_t began = base_mono_ns();

    change(NULL);
    CHECK(base_mono_ns() - began < 10000000000u);
}

static uint64_t next_news(uint64_t done, struct dfe_inval *inval)
{
    struct rig_call next = {.e = {.op = PROTO_INVAL_NEXT, .handle = 1, .off = done}};

    CHECK_EQ(rig_do(mount, &next), 0);
    memcpy(inval, next.reply, sizeof(*inval));
    return inval->id;
}

/* -- the tests -------------------------------------------------------------------------------- */

static pid_t process; /* the mount's */

static void mounts(void)
{
    struct dfe_attr attr;

    CHECK_EQ(rig_make(api, 1, RIG_ROOT, NAME, S_IFREG | 0644, DFE_REF, &attr), 0);
    CHECK_EQ(rig_write(api, 1, attr.ino, 0, "first", 5, 0, NULL), 5);
    shared->ino = attr.ino;
    mount = mount_session(MOUNT, process);
    CHECK_EQ(mount_it(mount, 0, 0), 0);
}

static void forget(void)
{
    CHECK_EQ(rig_name(api, PROTO_UNLINK, 1, RIG_ROOT, NAME, 0, NULL), 0);
}

/* The mount is told before the change is answered, twice, and its return alone is not enough. */
static void is_waited_for(void)
{
    struct session *other;
    struct dfe_inval inval;
    pthread_t thread;
    uint64_t done = 0;

    first_worker(mounts);
    worker_begin();
    thread = change_begins();
    change_waits();
    other = mount_session(MOUNT + 1, 0);
    CHECK_EQ(mount_it(other, 0, 0), -EBUSY); /* the other one writes, and is not here yet */
    session_end(other);
    mount = mount_session(MOUNT, process);
    CHECK_EQ(mount_it(mount, 4711, 0), 0);
    CHECK_EQ(mount_it(mount, 4711, 0), -EEXIST);
    CHECK_EQ(rig_simple(mount, PROTO_REF, 1, shared->ino, 1, 0), 0);
    change_waits();
    for (unsigned waves = 0; waves < 2;) {
        done = next_news(done, &inval);
        CHECK_EQ(inval.ino, shared->ino);
        CHECK_EQ(inval.what, DFE_INVAL_PAGES);
        waves++;
        if (waves == 1)
            change_waits();
    }
    change_waits();
    /* The last one's answer comes with the next question, which the end of the mount answers. */
    CHECK_EQ(rig_simple(mount, PROTO_INVAL_STOP, 1, 0, 0, 0), 0);
    change_ends(thread);
    session_end(mount);
    change_is_free();
    forget();
    worker_end();
}

/* A process that dies while it is waited for, and one that died before. */
static void dies(void)
{
    pid_t pid = process;
    pthread_t thread;

    process = idle_process();
    first_worker(mounts);
    worker_begin();
    thread = change_begins();
    change_waits();
    end_process(process);
    change_ends(thread);
    forget();
    worker_end();

    process = idle_process();
    first_worker(mounts);
    end_process(process);
    worker_begin();
    change_is_free();
    mount = mount_session(MOUNT + 1, pid);
    CHECK_EQ(mount_it(mount, 0, 0), 0);
    session_end(mount);
    forget();
    worker_end();
    process = pid;
}

/* Ended in order with the first worker: by its word, its handle, its session. */
static void stops(void)
{
    mounts();
    CHECK_EQ(rig_simple(mount, PROTO_INVAL_STOP, 1, 0, 0, 0), 0);
}

static void closes(void)
{
    mounts();
    CHECK_EQ(rig_simple(mount, PROTO_CLOSE, 1, 0, 0, 0), 0);
}

static void ends(void)
{
    mounts();
    session_end(mount);
}

static void ended_in_order(void)
{
    static void (*const ways[])(void) = {stops, closes, ends};

    for (unsigned i = 0; i < 3; i++) {
        first_worker(ways[i]);
        worker_begin();
        change_is_free();
        forget();
        worker_end();
    }
}

/* The session is back, and ends or mounts anew without having come for its mount. */
static void back_without_it(void)
{
    pthread_t thread;

    first_worker(mounts);
    worker_begin();
    thread = change_begins();
    change_waits();
    mount = mount_session(MOUNT, process);
    change_waits();
    session_end(mount);
    change_ends(thread);
    forget();
    worker_end();

    first_worker(mounts);
    worker_begin();
    thread = change_begins();
    change_waits();
    mount = mount_session(MOUNT, process);
    CHECK_EQ(mount_it(mount, 0, 0), 0); /* it never heard the answer */
    change_ends(thread);
    CHECK_EQ(rig_simple(mount, PROTO_INVAL_STOP, 1, 0, 0, 0), 0);
    session_end(mount);
    forget();
    worker_end();
}

/* The service ends while a change waits. */
static void service_ends(void)
{
    pthread_t thread;

    first_worker(mounts);
    worker_begin();
    thread = change_begins();
    change_waits();
    host_dismiss(host);
    change_ends(thread);
    forget();
    worker_end();
    memset(roll, 0, ROLL_BYTES); /* the supervisor ends, too */
}

/* Of a mount that was let go nobody expects an answer, and it is told so, by any worker. */
static void is_let_go(void)
{
    struct roll_mount m = {.session = MOUNT, .handle = 1};
    struct roll all;

    first_worker(mounts);
    roll_open(&all, roll, ROLL_BYTES);
    CHECK(roll_at(&all, 0, &m));
    roll_lost(&all, &m);
    CHECK(roll_at(&all, 0, &m));
    CHECK_EQ(m.flags, ROLL_LOST);
    for (unsigned i = 0; i < 2; i++) {
        worker_begin();
        change_is_free();
        mount = mount_session(MOUNT, process);
        CHECK_EQ(mount_it(mount, 4711, 0), 0);
        CHECK_EQ(rig_getattr(mount, 1, RIG_ROOT, NULL), -EIO);
        CHECK_EQ(rig_simple(mount, PROTO_INVAL_NEXT, 1, 0, 0, 0), -ETIMEDOUT);
        session_end(mount);
        CHECK(!roll_at(&all, 0, &m));
        CHECK_EQ(roll_enter(&all, &m), 0); /* as if the worker had died once more */
        worker_end();
    }
    roll_end(&all, MOUNT);
    worker_begin();
    forget();
    worker_end();
    roll_close(&all);
}

/* -- links of inodes whose names a dead worker took ------------------------------------------- */

static const struct removal {
    uint32_t op, arg, flags;
    const char *push;
} removals[] = {
    {PROTO_UNLINK, 0, 0, "taken"},
    {PROTO_RENAME, 5, 0, "othertaken"},
    {PROTO_RENAME, 5, DFE_EXCHANGE, "othertaken"},
};
static unsigned removal;

static int64_t remove_name(uint32_t ctl)
{
    const struct removal *r = &removals[removal];
    struct rig_call call = {.e = {.op = r->op,
                                  .handle = 1,
                                  .ino = RIG_ROOT,
                                  .off = r->op == PROTO_RENAME ? RIG_ROOT : 0,
                                  .arg = r->arg,
                                  .flags = r->flags,
                                  .ctl = ctl,
                                  .seq = 500 + removal,
                                  .push_len = (uint32_t)strlen(r->push)},
                            .push = r->push};
    int64_t ret = rig_do(api, &call);

    CHECK_EQ(call.cqe.value, 0);
    return ret;
}

static void *serve_all(void *arg)
{
    struct dfe_inval inval = {0};
    struct proto_cqe cqe;

    for (;;) {
        struct request req = {.e = {.op = PROTO_INVAL_NEXT,
                                    .handle = 1,
                                    .off = inval.id,
                                    .reply_cap = sizeof(inval)},
                              .reply = &inval};

        CHECK_EQ(dispatch(mount, &req, true, &cqe), 0);
        if (cqe.result < 0)
            break;
        if (inval.ino == shared->ino && inval.what == DFE_INVAL_ATTR)
            atomic_fetch_add((atomic_uint *)arg, 1);
    }
    CHECK_EQ(cqe.result, -ESHUTDOWN);
    return NULL;
}

static void removes(void)
{
    struct rig_call link = {
        .e = {.op = PROTO_LINK, .handle = 1, .off = RIG_ROOT, .push_len = 4}, .push = "kept"};
    atomic_uint news = 0;
    struct dfe_attr attr;
    pthread_t thread;

    link.e.reply_cap = sizeof(attr);
    CHECK_EQ(rig_make(api, 1, RIG_ROOT, "taken", S_IFREG | 0644, DFE_REF, &attr), 0);
    shared->ino = link.e.ino = attr.ino;
    CHECK_EQ(rig_do(api, &link), 0);
    CHECK_EQ(rig_make(api, 1, RIG_ROOT, "other", S_IFREG | 0644, DFE_REF, &attr), 0);
    mount = mount_session(MOUNT, process);
    CHECK_EQ(mount_it(mount, 0, 1), 0);
    CHECK_EQ(pthread_create(&thread, NULL, serve_all, &news), 0);
    CHECK_EQ(remove_name(0), 0);
}

/* The mount is back first, and has looked: only then is the removal asked for again. */
static void links_are_told(void)
{
    for (removal = 0; removal < sizeof(removals) / sizeof(removals[0]); removal++) {
        atomic_uint news = 0;
        pthread_t thread;

        first_worker(removes);
        worker_begin();
        mount = mount_session(MOUNT, process);
        CHECK_EQ(mount_it(mount, 4711, 1), 0);
        CHECK_EQ(rig_simple(mount, PROTO_REF, 1, shared->ino, 1, 0), 0);
        CHECK_EQ(pthread_create(&thread, NULL, serve_all, &news), 0);
        CHECK_EQ(remove_name(PROTO_CTL_RETRY), 0);
        CHECK(atomic_load(&news) > 0);
        CHECK_EQ(rig_simple(mount, PROTO_INVAL_STOP, 1, 0, 0, 0), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        session_end(mount);
        rig_name(api, PROTO_UNLINK, 1, RIG_ROOT, "taken", 0, NULL);
        rig_name(api, PROTO_UNLINK, 1, RIG_ROOT, "other", 0, NULL);
        rig_name(api, PROTO_UNLINK, 1, RIG_ROOT, "kept", 0, NULL);
        worker_end();
    }
}

/* -- the roll itself -------------------------------------------------------------------------- */

static void the_roll(void)
{
    struct roll_mount m = {.handle = 1, .cont = 2, .pid = 3}, got;
    struct roll all;

    roll_open(&all, roll, ROLL_BYTES);
    for (m.session = 1; m.session <= ROLL_MOUNTS; m.session++)
        CHECK_EQ(roll_enter(&all, &m), 0);
    CHECK_EQ(roll_enter(&all, &m), -EUSERS);
    m.session = 5;
    m.flags = ROLL_READ_ONLY;
    CHECK_EQ(roll_enter(&all, &m), 0);
    CHECK(roll_at(&all, 4, &got));
    CHECK_EQ(got.flags, ROLL_READ_ONLY);
    CHECK(!roll_at(&all, ROLL_MOUNTS, &got));
    roll_leave(&all, &m);
    CHECK(!roll_at(&all, 4, &got));
    m.session = ROLL_MOUNTS + 1;
    CHECK_EQ(roll_enter(&all, &m), 0);
    for (m.session = 1; m.session <= ROLL_MOUNTS + 1; m.session++)
        roll_end(&all, m.session);
    for (unsigned i = 0; i < ROLL_MOUNTS; i++)
        CHECK(!roll_at(&all, i, &got));
    roll_close(&all);
    roll_open(&all, NULL, 0);
    CHECK_EQ(roll_enter(&all, &m), 0);
    CHECK(!roll_at(&all, 0, &got));
    roll_close(&all);
    /* Processes: another one with the number is not the one that was meant. */
    m.pid = getpid();
    m.started = roll_started(getpid());
    CHECK(m.started > 0);
    CHECK(close(roll_process(&m)) == 0);
    m.started++;
    CHECK_EQ(roll_process(&m), -ESRCH);
    m.pid = 0;
    CHECK_EQ(roll_process(&m), -1);
}

/* Of a mount without a process that could be looked at nobody hears when it is dead: after its
 * minute another may write. */
static void nobody_knows(void)
{
    struct roll_mount gone = {.session = 3, .handle = 1, .cont = 2}, next = gone;
    struct cohere *co = cohere_open(10000);
    uint64_t now_ns = base_mono_ns(), generation = 0;
    struct face *face;
    struct refs held;
    struct roll all;

    CHECK(co != NULL);
    refs_open(&held, 10);
    roll_open(&all, roll, ROLL_BYTES);
    CHECK_EQ(roll_enter(&all, &gone), 0);
    next.session = 4;
    CHECK_EQ(cohere_expect(co, &all, 2, now_ns), 0);
    CHECK_EQ(face_open(co, &next, &held, &generation, &face), -EBUSY);
    CHECK_EQ(cohere_expect(co, &all, 2, now_ns - 61000000000ull), 0);
    CHECK_EQ(face_open(co, &next, &held, &generation, &face), 0);
    face_close(face);
    roll_end(&all, gone.session);
    cohere_close(co);
    roll_close(&all);
}

int main(void)
{
    path = api_path("pool");
    process = getpid();
    shared = share(sizeof(*shared));
    roll = share(ROLL_BYTES);
    mem_bytes = keep_bytes(LOG_BYTES, LOG_BYTES);
    mem = share(mem_bytes);
    CHECK_EQ(keep_format(mem, mem_bytes, LOG_BYTES, LOG_BYTES), 0);
    CHECK_EQ(host_close(rig_open(path, 0, NULL)), 0);
    RUN(the_roll);
    RUN(nobody_knows);
    RUN(is_waited_for);
    RUN(dies);
    RUN(ended_in_order);
    RUN(back_without_it);
    RUN(service_ends);
    RUN(is_let_go);
    RUN(links_are_told);
    CHECK_EQ(dfe_pool_destroy(path, 0), 0);
    return 0;
}
