/* SPDX-License-Identifier: Apache-2.0 */
/* The supervisor with workers of the test's own: what it replaces, what it passes on, what it
 * leaves behind. */
#include <dfe.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/log.h"
#include "service/service.h"
#include "test.h"

static struct shared {
    int dies;         /* so many workers die by SIGKILL, before or after they have said "ok" */
    bool serves_first;
    int error;        /* the worker ends with this */
    bool quick;       /* it ends by itself at once */
    int workers, terms, restarts;
    bool kept;        /* the next worker found what the last one wrote */
    pid_t pid;
    uint8_t key[16];
} *shared;

void worker_set_key(const uint8_t key[16])
{
    if (shared->workers == 0)
        memcpy(shared->key, key, 16);
    CHECK_EQ(memcmp(shared->key, key, 16), 0); /* all workers have the same */
}

static void serve(void)
{
    sigset_t term;
    int number;

    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    CHECK_EQ(sigwait(&term, &number), 0);
    shared->terms++;
}

int worker_run(const struct dfe_service_opts *opts, int listen_fd, struct keep *keep,
               unsigned restarts)
{
    int64_t record;
    void *ptr;

    shared->workers++;
    shared->restarts = (int)restarts;
    shared->pid = getpid();
    shared->kept = !keep_empty(keep);
    CHECK(fcntl(listen_fd, F_GETFD) >= 0);
    if (shared->error)
        return base_refuse(shared->error, "the pool is in a sorry state");
    if (shared->serves_first || shared->dies == 0)
        CHECK_EQ(dprintf(opts->ready_fd, "ok\n"), 3);
    if (shared->dies > 0) {
        shared->dies--;
        record = keep_reserve(keep, KEEP_TX, 100, &ptr);
        CHECK(record >= 0);
        memset(ptr, 7, 100);
        keep_commit(keep, KEEP_TX, record, 1);
        raise(SIGKILL);
    }
    if (!shared->quick)
        serve();
    return 0;
}

static const char *socket_path(void)
{
    static char path[200];
    snprintf(path, sizeof(path), "%s/it.sock", test_dir());
    return path;
}

/* Starts a supervisor; its first line into `line`. */
static pid_t start(char line[300], int listen_fd)
{
    int ends[2];
    pid_t pid;
    ssize_t n;

    CHECK_EQ(pipe2(ends, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0) {
        struct dfe_service_opts opts = {
            .size = sizeof(opts),
            .path = "/nowhere",
            .socket = listen_fd < 0 ? socket_path() : NULL,
            .listen_fd = listen_fd,
            .ready_fd = ends[1],
            .arena_bytes = 64 << 20,
        };
        close(ends[0]);
        _exit(-dfe_service_run(&opts));
    }
    close(ends[1]);
    n = read(ends[0], line, 299);
    CHECK(n >= 0);
    line[n] = '\0';
    close(ends[0]);
    return pid;
}

static int status_of(pid_t pid)
{
    int status;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void reset(void)
{
    memset(shared, 0, sizeof(*shared));
}

static bool answers(const char *path)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), ret;

    strcpy(name.sun_path, path);
    ret = connect(fd, (struct sockaddr *)&name, sizeof(name));
    close(fd);
    return ret == 0;
}

static void test_ends_when_told(void)
{
    char line[300];
    struct stat st;
    pid_t pid;

    reset();
    pid = start(line, -1);
    CHECK_EQ(strcmp(line, "ok\n"), 0);
    CHECK(answers(socket_path()));
    CHECK_EQ(stat(socket_path(), &st), 0);
    CHECK_EQ(st.st_mode & 0777, 0666);
    kill(pid, SIGTERM);
    CHECK_EQ(status_of(pid), 0);
    CHECK_EQ(shared->terms, 1);
    CHECK_EQ(stat(socket_path(), &st), -1);
}

static void test_ends_with_an_idle_worker(void)
{
    char line[300];

    reset();
    shared->quick = true;
    CHECK_EQ(status_of(start(line, -1)), 0);
    CHECK_EQ(strcmp(line, "ok\n"), 0);
}

static void test_a_failure_is_told(void)
{
    char line[300];

    reset();
    shared->error = -EUCLEAN;
    CHECK_EQ(status_of(start(line, -1)), EUCLEAN);
    CHECK_EQ(strcmp(line, "117 the pool is in a sorry state\n"), 0);
    CHECK_EQ(shared->workers, 1);
}

static void test_lost_workers_are_replaced(void)
{
    char line[300];
    pid_t pid;

    reset();
    shared->dies = 8;
    shared->serves_first = true;
    pid = start(line, -1);
    CHECK_EQ(strcmp(line, "ok\n"), 0);
    for (int i = 0; i < 1000 && shared->workers < 9; i++)
        usleep(10000);
    CHECK_EQ(shared->workers, 9);
    CHECK_EQ(shared->restarts, 8);
    CHECK(shared->kept);
    kill(pid, SIGINT);
    CHECK_EQ(status_of(pid), 0);
}

static void test_hopeless_workers_are_not(void)
{
    char line[300];

    reset();
    shared->dies = 100;
    CHECK_EQ(status_of(start(line, -1)), EOWNERDEAD);
    CHECK(strncmp(line, "130 ", 4) == 0);
    CHECK_EQ(shared->workers, 5);
}

/* A worker that dies while it ends has not written everything: another one does. */
static void test_a_worker_that_dies_while_it_ends(void)
{
    char line[300];
    pid_t pid, first;

    reset();
    pid = start(line, -1);
    first = shared->pid;
    kill(first, SIGSTOP);
    kill(pid, SIGTERM);
    usleep(50000);
    kill(first, SIGKILL);
    CHECK_EQ(status_of(pid), 0);
    CHECK_EQ(shared->workers, 2);
    CHECK_EQ(shared->terms, 1);
}

static void test_a_worker_ends_with_its_supervisor(void)
{
    char line[300];
    int status;
    pid_t pid;

    reset();
    pid = start(line, -1);
    kill(pid, SIGKILL);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    for (int i = 0; i < 500 && shared->terms == 0; i++)
        usleep(10000);
    CHECK_EQ(shared->terms, 1);
    /* The name that is left is replaced by the next one's. */
    reset();
    pid = start(line, -1);
    CHECK_EQ(strcmp(line, "ok\n"), 0);
    CHECK(answers(socket_path()));
    kill(pid, SIGTERM);
    CHECK_EQ(status_of(pid), 0);
}

static void test_a_name_of_another_stays(void)
{
    char line[300];
    struct stat st;
    pid_t pid;
    int fd;

    reset();
    pid = start(line, -1);
    CHECK_EQ(unlink(socket_path()), 0);
    fd = open(socket_path(), O_CREAT | O_WRONLY, 0600);
    close(fd);
    kill(pid, SIGTERM);
    CHECK_EQ(status_of(pid), 0);
    CHECK_EQ(stat(socket_path(), &st), 0);
    unlink(socket_path());
}

static void test_a_given_socket(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    char line[300];
    struct stat st;
    pid_t pid;

    reset();
    snprintf(name.sun_path, sizeof(name.sun_path), "%s/given.sock", test_dir());
    CHECK_EQ(bind(fd, (struct sockaddr *)&name, sizeof(name)), 0);
    CHECK_EQ(listen(fd, 4), 0);
    pid = start(line, fd);
    CHECK_EQ(strcmp(line, "ok\n"), 0);
    kill(pid, SIGTERM);
    CHECK_EQ(status_of(pid), 0);
    CHECK_EQ(stat(name.sun_path, &st), 0); /* its maker's to remove */
    close(fd);
    unlink(name.sun_path);
}

static void test_refusals(void)
{
    struct dfe_service_opts opts = {.size = sizeof(opts), .listen_fd = -1, .ready_fd = -1};
    char path[300];

    CHECK_EQ(dfe_service_run(&opts), -EINVAL);
    opts.path = "/nowhere";
    CHECK_EQ(dfe_service_run(&opts), -EINVAL);
    memset(path, 'x', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    opts.socket = path;
    CHECK_EQ(dfe_service_run(&opts), -ENAMETOOLONG);
    opts.socket = "/nowhere/at/all.sock";
    CHECK_EQ(dfe_service_run(&opts), -ENOENT);
}

int main(void)
{
    socket_path(); /* the folder is this process's */
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    RUN(test_ends_when_told);
    RUN(test_ends_with_an_idle_worker);
    RUN(test_a_failure_is_told);
    RUN(test_lost_workers_are_replaced);
    RUN(test_hopeless_workers_are_not);
    RUN(test_a_worker_that_dies_while_it_ends);
    RUN(test_a_worker_ends_with_its_supervisor);
    RUN(test_a_name_of_another_stays);
    RUN(test_a_given_socket);
    RUN(test_refusals);
    return 0;
}
