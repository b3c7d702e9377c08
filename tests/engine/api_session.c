/* SPDX-License-Identifier: Apache-2.0 */
/* Services for tests of the public API. */
#include "api_session.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define SERVICES 8u

static struct service {
    char path[400], socket[100];
    pid_t pid; /* 0: none */
} services[SERVICES];

static struct service *find(const char *path)
{
    for (unsigned i = 0; i < SERVICES; i++)
        if (services[i].pid && strcmp(services[i].path, path) == 0)
            return &services[i];
    return NULL;
}

bool session_wanted(void)
{
    return getenv("DFE_TEST_SESSION") != NULL;
}

static void be_the_service(const struct service *s, int ready_fd, pid_t parent)
{
    struct dfe_service_opts opts = {
        .size = sizeof(opts),
        .path = s->path,
        .socket = s->socket,
        .listen_fd = -1,
        .ready_fd = ready_fd,
        .arena_bytes = 64u << 20,
        .idle_ms = UINT32_MAX,
        .no_hugepages = 1,
    };
    int ret;

    prctl(PR_SET_PDEATHSIG, SIGTERM); /* a test that fails leaves nothing behind */
    if (getppid() != parent)
        _exit(1);
    ret = dfe_service_run(&opts);
    if (ret < 0)
        fprintf(stderr, "service of %s: %s: %s\n", s->path, strerror(-ret), dfe_errmsg());
    _exit(ret < 0);
}

const char *session_serve(const char *path)
{
    pid_t parent = getpid();
    struct service *s = services;
    struct pollfd ready;
    char line[300] = "";
    int ends[2];

    while (s->pid)
        s++;
    CHECK(s < services + SERVICES);
    snprintf(s->path, sizeof(s->path), "%s", path);
    snprintf(s->socket, sizeof(s->socket), "%s/%u.sock", test_dir(), (unsigned)(s - services));
    CHECK_EQ(pipe(ends), 0);
    fflush(NULL);
    s->pid = fork();
    CHECK(s->pid >= 0);
    if (s->pid == 0) {
        close(ends[0]);
        be_the_service(s, ends[1], parent);
    }
    close(ends[1]);
    ready = (struct pollfd){.fd = ends[0], .events = POLLIN};
    CHECK_EQ(poll(&ready, 1, 30000), 1);
    CHECK(read(ends[0], line, sizeof(line) - 1) > 0);
    close(ends[0]);
    if (strncmp(line, "ok", 2) != 0)
        fprintf(stderr, "service of %s: %s\n", path, line);
    CHECK(strncmp(line, "ok", 2) == 0);
    return s->socket;
}

void session_end_service(const char *path)
{
    struct service *s = find(path);
    int status = 0;

    CHECK(s);
    CHECK_EQ(kill(s->pid, SIGTERM), 0);
    CHECK_EQ(waitpid(s->pid, &status, 0), s->pid);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
    s->pid = 0;
}

int session_open(const char *path, bool mount, struct dfe_pool **pool)
{
    struct service *s = find(path);
    struct dfe_pool_open_opts opts = {
        .size = sizeof(opts),
        .path = path,
        .socket = s ? s->socket : "/nowhere",
        .mount = mount,
    };

    return dfe_pool_open(&opts, pool);
}

void session_setup(const char *path, int posix, struct dfe_pool **pool, struct dfe_cont **cont)
{
    struct dfe_cred cred = {.uid = 7, .gid = 8};

    if (!session_wanted()) {
        api_setup(path, posix, pool, cont);
        return;
    }
    CHECK_EQ(api_create(path, 64u << 20), 0);
    session_serve(path);
    CHECK_EQ(session_open(path, false, pool), 0);
    CHECK_EQ(dfe_cont_create(*pool, "c", posix, &cred, 0755), 0);
    CHECK_EQ(dfe_cont_open(*pool, "c", NULL, cont), 0);
}

void session_teardown(const char *path, struct dfe_pool *pool, struct dfe_cont *cont)
{
    CHECK_EQ(dfe_cont_close(cont), 0);
    CHECK_EQ(dfe_pool_close(pool), 0);
    if (session_wanted())
        session_end_service(path);
    CHECK_EQ(dfe_pool_destroy(path, 0), 0);
}
