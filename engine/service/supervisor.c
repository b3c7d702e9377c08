/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Supervisor of a pool's worker process: holds the listening socket and the kept memory, and
 * nothing of the pool or its device, so that nothing that happens to a worker can hurt it.
 *
 *  1. One worker at a time; it never outlives the supervisor (it is told to end when that dies).
 *  2. The supervisor ends with a worker that ended by itself, and never before one that was told to
 *     end has replayed and written what the kept memory holds.
 *  3. The socket's name appears when a worker serves, so that only who has the pool has the name;
 *     it goes only while it is this one's.
 */
#include <dfe.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api/api.h"
#include "base/clock.h"
#include "base/keep.h"
#include "base/log.h"
#include "base/window.h"
#include "service/roll.h"
#include "service/service.h"

/* Kept memory. The log of data holds what may be unwritten, within reason: a full log only makes
 * writers wait for a publication. Pages are touched when they are used. */
#define TX_BYTES ((size_t)32 << 20)
#define DATA_LEAST_BYTES ((size_t)64 << 20)
#define DATA_MOST_BYTES ((size_t)256 << 20)
#define DATA_FLOOR_BYTES ((size_t)16 << 20) /* on hosts with little memory */
#define HOST_SHARE 16u                      /* at most this part of the host's memory */

#define BACKLOG 128
#define SHORT_LIFE_NS 1000000000ull /* a worker that dies younger than this is replaced slower */
#define FREE_DEATHS 2u              /* ... from the third one in a row */
#define BACK_OFF_MS 50u             /* twice as long each time, */
#define BACK_OFF_MOST_MS 1000u      /* up to this */
#define HOPELESS 5u                 /* short lives in a row, and not serving: there is no point */

struct supervisor {
    struct dfe_service_opts opts;
    struct keep_memory {
        void *ptr;
        size_t bytes;
    } keep;
    struct keep_tables tables;
    uint8_t key[16]; /* of sessions' secrets: the same for every worker */
    int listen_fd, signal_fd;
    sigset_t old_mask;
    dev_t socket_dev; /* of the name that was made */
    ino_t socket_ino;
    bool made_socket, published;

    pid_t pid, worker;
    uint64_t born_ns;
    int line_fd;    /* the worker's ready_fd ends here */
    char line[512]; /* what it said */
    size_t line_len;
    bool serves;    /* this worker has said "ok" */
    bool told;      /* the world has been told */
    bool ending;    /* asked to end */
    unsigned restarts, short_lives;
};

/* -- log --------------------------------------------------------------------------------------- */

/* One write for each line: threads and both processes share standard error. */
static void log_line(int level, const char *text, void *arg)
{
    static const char *const names[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
    char stamp[32], line[700];
    struct timespec now;
    struct tm tm;
    int len;

    if (level < BASE_LOG_INFO)
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &tm);
    strftime(stamp, sizeof(stamp), "%Y-%m-%d %H:%M:%S", &tm);
    len = snprintf(line, sizeof(line), "%s,%03ld %d %s service %s\n", stamp,
                   now.tv_nsec / 1000000, getpid(), names[level], text);
    if (len >= (int)sizeof(line)) {
        len = sizeof(line);
        line[len - 1] = '\n';
    }
    if (write(STDERR_FILENO, line, (size_t)len) < 0)
        return; /* nobody is left to be told */
}

/* The one line for whoever started the service: "ok", or "ERRNO why". */
static void tell(struct supervisor *s, int err, const char *why)
{
    char line[640];
    int len;

    if (s->told || s->opts.ready_fd < 0)
        return;
    s->told = true;
    len = err ? snprintf(line, sizeof(line), "%d %s\n", -err, why) : snprintf(line, 4, "ok\n");
    if (write(s->opts.ready_fd, line, (size_t)len) != len)
        base_log(BASE_LOG_INFO, "nobody waits to be told that the service is ready");
}

/* -- what the supervisor holds ----------------------------------------------------------------- */

static size_t data_log_bytes(const struct dfe_service_opts *o)
{
    uint64_t arena = o->arena_bytes ? o->arena_bytes : api_arena_default();
    uint64_t wanted = o->dirty_bytes ? o->dirty_bytes : arena / 4;
    uint64_t host = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

    wanted += wanted / 8; /* heads, and what waits to be retired */
    if (wanted < DATA_LEAST_BYTES)
        wanted = DATA_LEAST_BYTES;
    if (wanted > DATA_MOST_BYTES)
        wanted = DATA_MOST_BYTES;
    if (wanted > host / HOST_SHARE)
        wanted = host / HOST_SHARE;
    return wanted < DATA_FLOOR_BYTES ? DATA_FLOOR_BYTES : (size_t)wanted & ~(size_t)4095;
}

static int make_keep(struct supervisor *s)
{
    size_t data = data_log_bytes(&s->opts);
    int ret;

    s->keep.bytes = keep_bytes(TX_BYTES, data);
    s->keep.ptr = mmap(NULL, s->keep.bytes, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s->keep.ptr == MAP_FAILED) {
        s->keep.ptr = NULL;
        return base_refuse(-ENOMEM, "no memory for %zu MiB of kept data", s->keep.bytes >> 20);
    }
    ret = keep_format(s->keep.ptr, s->keep.bytes, TX_BYTES, data);
    return ret < 0 ? base_refuse(ret, "the kept memory cannot be set up") : 0;
}

/* Tables that readers of a dead worker share with the next one; and the roll of mounts. */
static int make_tables(struct supervisor *s)
{
    struct keep_tables *t = &s->tables;

    t->roll = mmap(NULL, ROLL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t->roll == MAP_FAILED) {
        t->roll = NULL;
        return base_refuse(-ENOMEM, "no memory for the roll of mounts");
    }

    t->bytes = WINDOW_TABLE * sizeof(struct proto_line);
    t->lines_fd = window_make("dfusepy-lines", t->bytes, WINDOW_PAGES, NULL, &t->lines);
    if (t->lines_fd < 0)
        return base_refuse(t->lines_fd, "no memory for the tables of leases");
    t->records_fd = window_make("dfusepy-records", t->bytes, WINDOW_PAGES, NULL, &t->records);
    return t->records_fd < 0 ? base_refuse(t->records_fd, "no memory for the tables of leases") : 0;
}

static void drop_tables(struct supervisor *s)
{
    if (s->tables.roll)
        munmap(s->tables.roll, ROLL_BYTES);
    if (s->tables.lines_fd >= 0) {
        munmap(s->tables.lines, s->tables.bytes);
        close(s->tables.lines_fd);
    }
    if (s->tables.records_fd >= 0) {
        munmap(s->tables.records, s->tables.bytes);
        close(s->tables.records_fd);
    }
}

static int draft_name(const struct supervisor *s, struct sockaddr_un *draft)
{
    int len = snprintf(draft->sun_path, sizeof(draft->sun_path), "%s.%d", s->opts.socket, s->pid);

    draft->sun_family = AF_UNIX;
    return len < (int)sizeof(draft->sun_path)
               ? 0
               : base_refuse(-ENAMETOOLONG, "the socket's name %s is too long", s->opts.socket);
}

/* A socket that listens, under a name of its own until a worker serves. */
static int make_socket(struct supervisor *s)
{
    struct sockaddr_un draft;
    struct stat st;
    int ret;

    ret = draft_name(s, &draft);
    if (ret < 0)
        return ret;
    s->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (s->listen_fd < 0)
        return base_refuse(-errno, "no socket: %s", strerror(errno));
    unlink(draft.sun_path); /* of a dead process with this number */
    if (bind(s->listen_fd, (struct sockaddr *)&draft, sizeof(draft)) < 0)
        return base_refuse(-errno, "%s cannot be made: %s", s->opts.socket, strerror(errno));
    s->made_socket = true;
    if (chmod(draft.sun_path, 0666) < 0 || stat(draft.sun_path, &st) < 0 ||
        listen(s->listen_fd, BACKLOG) < 0)
        return base_refuse(-errno, "%s cannot be made: %s", s->opts.socket, strerror(errno));
    s->socket_dev = st.st_dev;
    s->socket_ino = st.st_ino;
    return 0;
}

/* Supervisors change names one at a time: the folder is locked, or -1. */
static int lock_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[sizeof(((struct sockaddr_un *)0)->sun_path) + 1];
    int fd;

    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path) + 1 : 1,
             slash ? path : ".");
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX) < 0)
        base_log(BASE_LOG_WARN, "%s cannot be locked: %s", folder, strerror(errno));
    return fd;
}

/* Gives the socket its name, in place of a dead service's: the pool is ours now. */
static int publish_socket(struct supervisor *s)
{
    struct sockaddr_un draft;
    int fd, ret = 0;

    if (!s->made_socket || s->published)
        return 0;
    draft_name(s, &draft);
    fd = lock_folder(s->opts.socket);
    if (rename(draft.sun_path, s->opts.socket) < 0)
        ret = base_fail(-errno, "%s cannot be made: %s", s->opts.socket, strerror(errno));
    if (fd >= 0)
        close(fd);
    s->published = ret == 0;
    return ret;
}

/* The next service may have taken the name already: then it stays. */
static void remove_socket(struct supervisor *s)
{
    struct sockaddr_un draft;
    const char *path = s->opts.socket;
    struct stat st;
    int fd;

    if (!s->made_socket)
        return;
    draft_name(s, &draft);
    fd = lock_folder(path);
    if (lstat(path, &st) == 0 && st.st_dev == s->socket_dev && st.st_ino == s->socket_ino)
        unlink(path);
    if (!s->published)
        unlink(draft.sun_path);
    if (fd >= 0)
        close(fd);
}

static int catch_signals(struct supervisor *s)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGCHLD);
    signal(SIGTERM, SIG_DFL); /* signals that are ignored never reach a signalfd */
    signal(SIGCHLD, SIG_DFL);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return -errno;
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signal_fd < 0 ? base_refuse(-errno, "no signalfd: %s", strerror(errno)) : 0;
}

/* -- the worker -------------------------------------------------------------------------------- */

/* The child: SIGTERM stays blocked for worker_run to take; the terminal's signals are the
 * supervisor's to hear. Ends with the worker's errno as its status. */
static _Noreturn void become_worker(struct supervisor *s, int line_fd)
{
    struct dfe_service_opts opts = s->opts;
    struct keep *keep = NULL;
    sigset_t term;
    int ret;

    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != s->pid)
        _exit(EOWNERDEAD); /* it died before it could be watched */
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, SIG_DFL);
    signal(SIGCHLD, SIG_DFL);
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_SETMASK, &term, NULL);
    close(s->signal_fd);
    if (opts.ready_fd >= 0)
        close(opts.ready_fd);
    opts.ready_fd = line_fd;
    worker_set_key(s->key);
    ret = keep_open(s->keep.ptr, s->keep.bytes, &keep);
    if (ret < 0)
        base_fail(ret, "the kept memory is damaged");
    else {
        keep_lend_tables(keep, &s->tables);
        ret = worker_run(&opts, s->listen_fd, keep, s->restarts);
    }
    if (ret < 0 && base_last_error()[0])
        dprintf(line_fd, "%s\n", base_last_error()); /* read only where the worker said nothing */
    _exit(ret < 0 ? (-ret & 0xff ? -ret & 0xff : EIO) : 0);
}

static int start_worker(struct supervisor *s)
{
    int ends[2];
    pid_t pid;

    if (pipe2(ends, O_CLOEXEC) < 0)
        return base_refuse(-errno, "no pipe: %s", strerror(errno));
    pid = fork();
    if (pid == 0) {
        close(ends[0]);
        become_worker(s, ends[1]);
    }
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return base_refuse(-errno, "no worker process: %s", strerror(errno));
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    s->line_fd = ends[0];
    s->line_len = 0;
    s->serves = false;
    s->worker = pid;
    s->born_ns = base_mono_ns();
    if (s->ending)
        kill(pid, SIGTERM); /* it recovers and writes what the last one kept, then ends */
    return 0;
}

/* Takes in what the worker says; its first line counts. */
static void hear(struct supervisor *s)
{
    ssize_t n;

    while (s->line_fd >= 0) {
        char rest[256];
        bool full = s->line_len >= sizeof(s->line) - 1;
        n = full ? read(s->line_fd, rest, sizeof(rest))
                 : read(s->line_fd, s->line + s->line_len, sizeof(s->line) - 1 - s->line_len);
        if (n > 0 && !full)
            s->line_len += (size_t)n;
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            close(s->line_fd);
            s->line_fd = -1;
        }
        if (n < 0)
            break;
    }
    s->line[s->line_len] = '\0';
    if (!s->serves && strncmp(s->line, "ok\n", 3) == 0) {
        int err = publish_socket(s);
        s->serves = true;
        tell(s, err, base_last_error());
        if (err)
            kill(s->worker, SIGTERM); /* nobody could find it */
        base_log(BASE_LOG_INFO, "worker %d serves pool %s", (int)s->worker, s->opts.path);
    }
}

/* Takes the signals that have come. Returns whether the worker has ended. */
static bool take_signals(struct supervisor *s, int *status)
{
    struct signalfd_siginfo info;

    while (read(s->signal_fd, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGCHLD)
            continue;
        if (!s->ending)
            base_log(BASE_LOG_INFO, "signal %u: ending", info.ssi_signo);
        s->ending = true;
        if (s->worker > 0)
            kill(s->worker, SIGTERM);
    }
    return s->worker > 0 && waitpid(s->worker, status, WNOHANG) == s->worker;
}

static int await_end(struct supervisor *s)
{
    struct pollfd fds[2] = {{.fd = s->signal_fd, .events = POLLIN}, {.events = POLLIN}};
    int status = 0;

    for (;;) {
        bool ended;

        fds[1].fd = s->line_fd; /* -1 is passed over */
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            base_log(BASE_LOG_WARN, "poll: %s", strerror(errno));
        ended = take_signals(s, &status);
        hear(s);
        if (ended)
            break;
    }
    if (s->line_fd >= 0)
        close(s->line_fd);
    s->line_fd = -1;
    s->worker = 0;
    return status;
}

/* A worker that was killed is replaced at once, one that keeps dying after a while. -EOWNERDEAD:
 * there is no point in another one. */
static int after_death(struct supervisor *s, int number)
{
    uint64_t age_ns = base_mono_ns() - s->born_ns;
    unsigned delay_ms = 0;

    base_log(BASE_LOG_ERROR, "worker was lost (%s) after %llu ms; %s", strsignal(number),
             (unsigned long long)age_ns / 1000000,
             s->serves ? "what it acknowledged is kept" : "it had not served yet");
    s->short_lives = age_ns < SHORT_LIFE_NS ? s->short_lives + 1 : 0;
    if (s->short_lives >= HOPELESS && (!s->serves || s->ending))
        return base_fail(-EOWNERDEAD, "%u workers in a row died young (%s)",
                         s->short_lives, strsignal(number));
    if (s->short_lives > FREE_DEATHS) {
        unsigned shift = s->short_lives - FREE_DEATHS;
        delay_ms = shift < 6 ? BACK_OFF_MS << shift : BACK_OFF_MOST_MS;
        if (delay_ms > BACK_OFF_MOST_MS)
            delay_ms = BACK_OFF_MOST_MS;
    }
    if (delay_ms) {
        struct pollfd fd = {.fd = s->signal_fd, .events = POLLIN};
        int status;
        poll(&fd, 1, (int)delay_ms);
        take_signals(s, &status);
    }
    s->restarts++;
    return 0;
}

static int supervise(struct supervisor *s)
{
    int ret;

    for (;;) {
        int status;

        ret = start_worker(s);
        if (ret < 0)
            return ret;
        status = await_end(s);
        if (WIFEXITED(status)) {
            int err = WEXITSTATUS(status);
            s->line[strcspn(s->line, "\n")] = '\0';
            if (err)
                return base_refuse(-err, "%s",
                                   s->line_len && !s->serves ? s->line : strerror(err));
            base_log(BASE_LOG_INFO, "ended, all is written");
            return 0;
        }
        ret = after_death(s, WTERMSIG(status));
        if (ret < 0)
            return ret;
    }
}

static int check_opts(const struct dfe_service_opts *o)
{
    if (!o->path || !o->path[0])
        return base_refuse(-EINVAL, "no pool directory was given");
    if (o->listen_fd < 0 && (!o->socket || !o->socket[0]))
        return base_refuse(-EINVAL, "a service needs the name of its socket, or a socket");
    return 0;
}

int dfe_service_run(const struct dfe_service_opts *opts)
{
    struct supervisor s = {.listen_fd = -1, .signal_fd = -1, .line_fd = -1, .pid = getpid(),
                           .tables = {.lines_fd = -1, .records_fd = -1}};
    int ret;

    base_clear_error();
    ret = api_opts(&s.opts, sizeof(s.opts), opts);
    if (ret < 0)
        return ret;
    ret = check_opts(&s.opts);
    if (ret < 0)
        return ret;
    base_log_set(log_line, NULL);
    sigprocmask(SIG_SETMASK, NULL, &s.old_mask);
    ret = catch_signals(&s);
    if (ret < 0)
        goto out;
    if (getrandom(s.key, sizeof(s.key), 0) != sizeof(s.key)) {
        ret = base_refuse(-EIO, "no random numbers: %s", strerror(errno));
        goto out;
    }
    ret = make_keep(&s);
    if (ret == 0)
        ret = make_tables(&s);
    if (ret < 0)
        goto out;
    if (s.opts.listen_fd >= 0)
        s.listen_fd = s.opts.listen_fd;
    else
        ret = make_socket(&s);
    if (ret == 0) {
        fcntl(s.listen_fd, F_SETFL, fcntl(s.listen_fd, F_GETFL) | O_NONBLOCK);
        ret = supervise(&s);
    }
    remove_socket(&s);
    if (s.listen_fd >= 0 && s.opts.listen_fd < 0)
        close(s.listen_fd);
out:
    drop_tables(&s);
    if (s.keep.ptr)
        munmap(s.keep.ptr, s.keep.bytes);
    if (ret < 0)
        tell(&s, ret, base_last_error());
    if (s.signal_fd >= 0)
        close(s.signal_fd);
    sigprocmask(SIG_SETMASK, &s.old_mask, NULL);
    base_log_set(NULL, NULL);
    return ret;
}
