/* SPDX-License-Identifier: Apache-2.0 */
/* Keeper and worker processes of the channel's tests. */
#include "channel_rig.h"

#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "service/service.h"
#include "test.h"

static struct rig_state *state;
static pid_t keeper;
static char path[300];

struct rig_state *rig_state(void)
{
    return state;
}

const char *rig_path(void)
{
    return path;
}

uint64_t rig_token(void)
{
    uint64_t n = atomic_fetch_add(&state->tokens, 1) + 1;

    CHECK(n < RIG_TOKENS);
    return n;
}

uint8_t rig_byte(uint64_t ino, uint64_t off)
{
    return (uint8_t)((off * 2654435761u >> 7) + ino * 31);
}

static int listening(void)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    CHECK(snprintf(path, sizeof(path), "%s/s", test_dir()) < (int)sizeof(addr.sun_path));
    strcpy(addr.sun_path, path);
    unlink(path);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0);
    CHECK_EQ(listen(fd, 128), 0);
    return fd;
}

/* Never returns: `keeper` in the process that keeps, the worker in its child. */
static void keep(int listen_fd, uint32_t idle_ms, int ready_fd)
{
    uint8_t key[16] = "sixteen letters";
    int status;

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
    worker_set_key(key);
    for (unsigned n = 0;; n++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            struct dfe_service_opts o = {.size = sizeof(o),
                                         .path = "rig",
                                         .ready_fd = n ? -1 : ready_fd,
                                         .idle_ms = idle_ms};
            atomic_store(&state->sessions, 0);
            atomic_store(&state->worker, getpid());
            atomic_fetch_add(&state->started, 1);
            exit(-worker_run(&o, listen_fd, NULL, n));
        }
        CHECK_EQ(waitpid(pid, &status, 0), pid);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
            continue;
        atomic_store(&state->exit_code,
                     WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
        _exit(0);
    }
}

void rig_start(uint32_t idle_ms)
{
    int ready[2], fd = listening();
    char line[8] = "";

    if (!state)
        state = mmap(NULL, sizeof(*state), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                     0);
    CHECK(state != MAP_FAILED);
    memset((void *)state, 0, sizeof(*state));
    CHECK_EQ(pipe(ready), 0);
    keeper = fork();
    CHECK(keeper >= 0);
    if (keeper == 0) {
        close(ready[0]);
        keep(fd, idle_ms, ready[1]);
    }
    close(fd);
    close(ready[1]);
    CHECK_EQ(read(ready[0], line, sizeof(line)), 3);
    CHECK_EQ(strcmp(line, "ok\n"), 0);
    close(ready[0]);
}

void rig_kill_worker(void)
{
    unsigned n = atomic_load(&state->started);

    kill(atomic_load(&state->worker), SIGKILL);
    while (atomic_load(&state->started) == n)
        usleep(200);
}

int rig_wait(void)
{
    int status;

    CHECK_EQ(waitpid(keeper, &status, 0), keeper);
    CHECK_EQ(status, 0);
    return atomic_load(&state->exit_code);
}

int rig_stop(void)
{
    kill(atomic_load(&state->worker), SIGTERM);
    return rig_wait();
}

struct client *rig_client(uint32_t role)
{
    struct client_opts o = {.size = sizeof(o), .path = path, .role = role};
    struct client *c = NULL;

    CHECK_EQ(client_open(&o, &c), 0);
    return c;
}

int64_t rig_nop(struct client *c)
{
    struct client_call call = {.sqe = {.op = PROTO_NOP}};

    return client_do(c, &call);
}

void rig_info(struct client *c, struct dfe_service_info *out)
{
    struct client_call call = {.sqe = {.op = PROTO_SERVICE_QUERY}, .reply_cap = sizeof(*out)};

    CHECK_EQ(client_do(c, &call), 0);
    CHECK_EQ(call.cqe.reply_len, sizeof(*out));
    memcpy(out, call.reply, sizeof(*out));
}

unsigned rig_fds(void)
{
    char name[64];
    unsigned n = 0;
    DIR *d;

    snprintf(name, sizeof(name), "/proc/%d/fd", atomic_load(&state->worker));
    d = opendir(name);
    CHECK(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

unsigned rig_maps(void)
{
    char name[64], line[1024];
    unsigned n = 0;
    FILE *f;

    snprintf(name, sizeof(name), "/proc/%d/maps", atomic_load(&state->worker));
    f = fopen(name, "r");
    CHECK(f);
    while (fgets(line, sizeof(line), f))
        n += strstr(line, "memfd:dfusepy-") != NULL;
    fclose(f);
    return n;
}
