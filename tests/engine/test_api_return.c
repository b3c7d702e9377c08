/* SPDX-License-Identifier: Apache-2.0 */
/* Mounts, processes of their own, that are held while the service's worker is killed: a session's
 * change is answered when they are back and have been told, or are dead. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "api_session.h"
#include "base/clock.h"

#define ROOT 1u

static const struct dfe_cred cred = {.uid = 7, .gid = 8};
static const char *path;
static struct dfe_pool *pool;
static struct dfe_cont *cont;
static struct dfe_fs *fs;

static struct shared {
    uint64_t ino;
    atomic_uint told; /* how often the mount heard of that one's pages */
} *shared;

/* -- a mount ---------------------------------------------------------------------------------- */

struct mount {
    pid_t pid;
    int says, hears; /* it says that it is ready; a word ends it */
};

static void *serve(void *arg)
{
    struct dfe_inval inval = {0};
    int ret;

    while ((ret = dfe_fs_inval_next(arg, inval.id, &inval)) == 0)
        if (inval.ino == shared->ino && inval.what == DFE_INVAL_PAGES)
            atomic_fetch_add(&shared->told, 1);
    return (void *)(intptr_t)ret;
}

/* Its end is with the service's, or (gone) without. */
static void be_a_mount(const char *label, bool gone, int says, int hears)
{
    struct dfe_pool *own;
    struct dfe_cont *c;
    struct dfe_fs *f;
    struct dfe_attr attr;
    uint64_t generation = 0;
    pthread_t thread;
    void *ended;
    char word = 'r';

    CHECK_EQ(session_open(path, true, &own), 0);
    CHECK_EQ(dfe_cont_open(own, label, NULL, &c), 0);
    CHECK_EQ(dfe_fs_open(c, &f), 0);
    CHECK_EQ(dfe_fs_mount(f, 1, &generation), 0);
    CHECK_EQ(dfe_fs_lookup(f, ROOT, "file", 4, DFE_REF, &attr), gone ? -ENOENT : 0);
    CHECK_EQ(pthread_create(&thread, NULL, serve, f), 0);
    CHECK_EQ(write(says, &word, 1), 1);
    CHECK_EQ(read(hears, &word, 1), 1);
    CHECK_EQ(dfe_fs_getattr(f, ROOT, 0, &attr), gone ? -EOWNERDEAD : 0);
    if (!gone)
        dfe_fs_inval_stop(f);
    CHECK_EQ(pthread_join(thread, &ended), 0);
    CHECK_EQ((intptr_t)ended, gone ? -EOWNERDEAD : -ESHUTDOWN);
    if (!gone)
        CHECK_EQ(dfe_fs_inval_next(f, 0, &(struct dfe_inval){0}), -ESHUTDOWN);
    dfe_fs_close(f);
    dfe_cont_close(c);
    dfe_pool_close(own);
    _exit(0);
}

static void mount_begin(struct mount *m, const char *label, bool gone)
{
    struct pollfd ready;
    int out[2], in[2];
    char word;

    CHECK_EQ(pipe(out), 0);
    CHECK_EQ(pipe(in), 0);
    fflush(NULL);
    m->pid = fork();
    CHECK(m->pid >= 0);
    if (m->pid == 0)
        be_a_mount(label, gone, out[1], in[0]);
    close(out[1]);
    close(in[0]);
    m->says = out[0];
    m->hears = in[1];
    ready = (struct pollfd){.fd = m->says, .events = POLLIN};
    CHECK_EQ(poll(&ready, 1, 30000), 1);
    CHECK_EQ(read(m->says, &word, 1), 1);
}

static int mount_status(struct mount *m)
{
    int status;

    CHECK_EQ(waitpid(m->pid, &status, 0), m->pid);
    close(m->says);
    close(m->hears);
    return status;
}

static void mount_end(struct mount *m)
{
    CHECK_EQ(write(m->hears, "e", 1), 1);
    CHECK_EQ(mount_status(m), 0);
}

static void mount_hold(const struct mount *m)
{
    int status;

    CHECK_EQ(kill(m->pid, SIGSTOP), 0);
    CHECK_EQ(waitpid(m->pid, &status, WUNTRACED), m->pid);
    CHECK(WIFSTOPPED(status));
}

/* Returns when there is another. */
static void kill_worker(void)
{
    struct dfe_service_info before, now;

    CHECK_EQ(dfe_service_query(pool, &before), 0);
    CHECK_EQ(kill((pid_t)before.worker_pid, SIGKILL), 0);
    do
        CHECK_EQ(dfe_service_query(pool, &now), 0);
    while (now.restarts == before.restarts);
}

/* -- a change --------------------------------------------------------------------------------- */

static atomic_bool answered;

static void *change(void *arg)
{
    CHECK_EQ(dfe_fs_write(fs, shared->ino, 0, "changed", 7, 0, NULL), 7);
    atomic_store(&answered, true);
    return arg;
}

static pthread_t change_waits(void)
{
    pthread_t thread;

    atomic_store(&answered, false);
    CHECK_EQ(pthread_create(&thread, NULL, change, NULL), 0);
    usleep(300000);
    CHECK(!atomic_load(&answered));
    return thread;
}

static void is_held(void)
{
    struct mount m;
    pthread_t thread;

    mount_begin(&m, "c", false);
    mount_hold(&m);
    kill_worker();
    thread = change_waits();
    CHECK_EQ(atomic_load(&shared->told), 0);
    CHECK_EQ(kill(m.pid, SIGCONT), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(atomic_load(&shared->told) >= 2);
    mount_end(&m);
}

static void is_killed(void)
{
    uint64_t began;
    struct mount m;
    pthread_t thread;

    mount_begin(&m, "c", false);
    mount_hold(&m);
    kill_worker();
    thread = change_waits();
    began = base_mono_ns();
    CHECK_EQ(kill(m.pid, SIGKILL), 0);
    CHECK(WIFSIGNALED(mount_status(&m)));
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(base_mono_ns() - began < 10000000000u); /* of the minute that it had */
}

/* One that cannot be a mount with the next worker: its session ends, or its kernel would go on with
 * what nobody tells it to forget. */
static void is_gone(void)
{
    struct mount m;

    CHECK_EQ(dfe_cont_create(pool, "d", 1, &cred, 0755), 0);
    mount_begin(&m, "d", true);
    mount_hold(&m);
    kill_worker();
    CHECK_EQ(dfe_cont_destroy(pool, "d"), 0);
    CHECK_EQ(kill(m.pid, SIGCONT), 0);
    mount_end(&m);
}

/* One that has ended in order is no mount with the next worker, though its session goes on. */
static void is_over(void)
{
    uint64_t generation = 0;
    struct dfe_service_info info;
    struct dfe_pool *own;
    struct dfe_cont *c;
    struct dfe_fs *f;
    struct dfe_attr attr;

    CHECK_EQ(session_open(path, true, &own), 0);
    CHECK_EQ(dfe_cont_open(own, "c", NULL, &c), 0);
    CHECK_EQ(dfe_fs_open(c, &f), 0);
    CHECK_EQ(dfe_fs_mount(f, 0, &generation), 0);
    dfe_fs_inval_stop(f);
    kill_worker();
    CHECK_EQ(dfe_fs_inval_next(f, 0, &(struct dfe_inval){0}), -ESHUTDOWN);
    CHECK_EQ(dfe_fs_getattr(f, ROOT, 0, &attr), 0);
    CHECK_EQ(dfe_service_query(pool, &info), 0);
    CHECK_EQ(info.mounts, 0);
    change(NULL);
    CHECK_EQ(dfe_fs_close(f), 0);
    CHECK_EQ(dfe_cont_close(c), 0);
    CHECK_EQ(dfe_pool_close(own), 0);
}

int main(void)
{
    struct dfe_attr attr;

    path = api_path("pool");
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    CHECK_EQ(api_create(path, 64u << 20), 0);
    session_serve(path);
    CHECK_EQ(session_open(path, false, &pool), 0);
    CHECK_EQ(dfe_cont_create(pool, "c", 1, &cred, 0755), 0);
    CHECK_EQ(dfe_cont_open(pool, "c", NULL, &cont), 0);
    CHECK_EQ(dfe_fs_open(cont, &fs), 0);
    CHECK_EQ(dfe_fs_mknod(fs, ROOT, "file", 4, S_IFREG | 0644, 0, &cred, DFE_REF, &attr), 0);
    shared->ino = attr.ino;
    RUN(is_held);
    RUN(is_killed);
    RUN(is_gone);
    RUN(is_over);
    dfe_fs_unref(fs, attr.ino, 1);
    CHECK_EQ(dfe_fs_close(fs), 0);
    CHECK_EQ(dfe_cont_close(cont), 0);
    CHECK_EQ(dfe_pool_close(pool), 0);
    session_end_service(path);
    CHECK_EQ(dfe_pool_destroy(path, 0), 0);
    return 0;
}
