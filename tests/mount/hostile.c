/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that means harm: speaks the session protocol by hand, and wrongly.
 *
 *     hostile RUNDIR SOCKET ROLE UID SEED SECONDS LABEL SECRET INO...
 *
 * It becomes UID, then makes one session after another: half handshakes, floods, wrong descriptors,
 * rings and data areas that change while they are read, completions that nobody takes, ends in the
 * middle. It tries to write to, shrink, punch and reopen all memory that it is given, and looks
 * through all of it for SECRET (hexadecimal; "-": it may see everything). INO are inodes to ask
 * for. ROLE 1 is a mount that reads and never says what its kernel has forgotten. Exit status 1: it
 * had success with something.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "client/proto.h"

enum { PUSH = 1 << 16, CHANNELS = 4, FDS = 8, WINDOWS = 16, INOS = 32, PATIENCE_S = 60 };
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
#define HARM(...) (fprintf(stderr, "hostile: " __VA_ARGS__), fputc('\n', stderr), _exit(1))
#define NEED(cond)                                                                                 \
    ((cond) ? (void)0 : (fprintf(stderr, "hostile: line %d: %m\n", __LINE__), _exit(2)))

struct channel {
    struct proto_sq *sq;
    const struct proto_cq *cq;
    int bell, wake;
    atomic_bool stop;
    pthread_t scribbler;
};

struct attack {
    int sock;
    uint64_t seq;
    struct proto_welcome welcome;
    struct channel ch[CHANNELS];
    unsigned n_ch;
    struct {
        const uint8_t *at;
        size_t bytes;
    } window[WINDOWS]; /* what it was given */
    unsigned n_windows;
};

static const char *socket_name, *label;
static uint32_t role;
static uint8_t secret[64];
static size_t secret_len;
static uint64_t inos[INOS];
static unsigned n_inos;
static _Thread_local uint64_t state;
static unsigned long sessions, requests, extents;

static uint64_t roll(uint64_t below)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (state * 0x2545F4914F6CDD1Dull >> 8) % below;
}

static uint64_t odd_number(void)
{
    static const uint64_t odd[] = {0,    1,          2,          63,         64,        4095,
                                   4096, 0x7fffffff, 0xffffffff, 1ull << 40, INT64_MAX, UINT64_MAX};

    return roll(2) ? odd[roll(sizeof(odd) / sizeof(*odd))] : roll(UINT64_MAX) >> roll(64);
}

/* -- the socket -------------------------------------------------------------------------------- */

static int dial(void)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = PATIENCE_S};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    strncpy(addr.sun_path, socket_name, sizeof(addr.sun_path) - 1);
    NEED(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    NEED(connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0);
    return fd;
}

static bool say(int sock, const void *buf, size_t len, const int *fds, unsigned n)
{
    char control[CMSG_SPACE(sizeof(int) * FDS)] = {0};
    struct iovec iov = {(void *)buf, len};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

    if (n > 0) {
        m.msg_control = control;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * n);
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof(int) * n);
        memcpy(CMSG_DATA(h), fds, sizeof(int) * n);
    }
    return sendmsg(sock, &m, MSG_NOSIGNAL) >= 0;
}

/* False: the session has ended. */
static bool hear(int sock, void *buf, size_t len, int *fds, unsigned *n)
{
    char control[CMSG_SPACE(sizeof(int) * FDS)];
    struct iovec iov = {buf, len};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = sizeof(control)};
    ssize_t got = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
    struct cmsghdr *h = got > 0 ? CMSG_FIRSTHDR(&m) : NULL;

    *n = 0;
    if (got < 0 && errno == EAGAIN)
        HARM("the engine has said nothing for %d s", PATIENCE_S);
    if (h) {
        *n = (unsigned)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(h), *n * sizeof(int));
    }
    return got == (ssize_t)len;
}

/* -- memory that it is given ------------------------------------------------------------------- */

static void try_reopened(int fd, const char *what, size_t bytes)
{
    char path[32];
    void *p;
    int again;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    again = open(path, O_RDWR);
    if (again < 0)
        return;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
    if (p != MAP_FAILED || pwrite(again, "x", 1, 0) == 1 || ftruncate(again, 0) == 0)
        HARM("%s can be written to once it is opened again", what);
    close(again);
}

/* Tries to harm others by it, maps it and keeps it. */
static void try_memory(struct attack *a, int fd, size_t bytes, const char *what)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (p != MAP_FAILED)
        HARM("%s can be mapped for writing", what);
    if (pwrite(fd, "x", 1, 0) == 1 || ftruncate(fd, 4096) == 0 || ftruncate(fd, 1ll << 32) == 0)
        HARM("%s can be written to or cut", what);
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) == 0)
        HARM("%s can be punched", what);
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0)
        HARM("%s can be sealed", what);
    try_reopened(fd, what, bytes);
    p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    NEED(p != MAP_FAILED);
    if (mprotect(p, 4096, PROT_READ | PROT_WRITE) == 0 || madvise(p, bytes, MADV_REMOVE) == 0)
        HARM("%s can be made writable or removed", what);
    close(fd);
    if (a->n_windows == WINDOWS) {
        munmap(p, bytes);
        return;
    }
    a->window[a->n_windows].at = p;
    a->window[a->n_windows++].bytes = bytes;
}

static void look_for_secret(const struct attack *a)
{
    for (unsigned i = 0; secret_len && a->n_ch && i < a->n_windows; i++)
        if (memmem(a->window[i].at, a->window[i].bytes, secret, secret_len))
            HARM("the secret is in memory of %zu bytes that uid %u was given", a->window[i].bytes,
                 getuid());
}

static int make_memory(size_t bytes, int seals, void **map)
{
    int fd = memfd_create("dfusepy-push", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    NEED(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    if (map) {
        *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        NEED(*map != MAP_FAILED);
    }
    NEED(fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

/* -- sessions ---------------------------------------------------------------------------------- */

static void half_handshakes(void)
{
    struct proto_hello h = {.magic = PROTO_MAGIC, .version = PROTO_VERSION, .role = role};
    int socks[12], fds[2] = {0, 1};

    for (unsigned i = 0; i < 12; i++) {
        struct proto_hello bad = h;
        socks[i] = dial();
        switch (roll(8)) {
        case 0:
            bad.magic = odd_number();
            break;
        case 1:
            bad.version = (uint32_t)odd_number();
            break;
        case 2:
            bad.role = (uint32_t)odd_number();
            break;
        case 3:
            bad.session = odd_number(), bad.secret = odd_number();
            break;
        case 4:
            say(socks[i], &h, sizeof(h), fds, 2);
            break;
        case 5:
            say(socks[i], &h, roll(sizeof(h)), NULL, 0);
            break;
        case 6:
            continue;
        }
        say(socks[i], &bad, sizeof(bad), NULL, 0);
    }
    for (unsigned i = 0; i < 12; i++)
        close(socks[i]);
}

static bool attack_open(struct attack *a)
{
    struct proto_hello h = {.magic = PROTO_MAGIC, .version = PROTO_VERSION, .role = role};
    int fds[FDS];
    unsigned n = 0;

    memset(a, 0, sizeof(*a));
    a->sock = dial();
    if (!say(a->sock, &h, sizeof(h), NULL, 0) ||
        !hear(a->sock, &a->welcome, sizeof(a->welcome), fds, &n) || a->welcome.error) {
        close(a->sock);
        return false;
    }
    NEED(n == 2);
    try_memory(a, fds[0], a->welcome.lines * sizeof(struct proto_line), "the generation table");
    try_memory(a, fds[1], a->welcome.records * sizeof(struct proto_record), "the record table");
    sessions++;
    return true;
}

static bool add_channel(struct attack *a)
{
    struct proto_msg m = {.type = PROTO_MSG_CHANNEL, .id = a->n_ch};
    struct channel *ch = &a->ch[a->n_ch];
    struct proto_answer ans;
    int got[FDS], fd;
    unsigned n;
    void *map;

    fd = make_memory(sizeof(struct proto_sq) + PUSH, SEALS, &map);
    ch->sq = map;
    say(a->sock, &m, sizeof(m), &fd, 1);
    if (ftruncate(fd, 4096) == 0)
        HARM("sealed memory shrinks");
    close(fd);
    if (!hear(a->sock, &ans, sizeof(ans), got, &n) || ans.error) {
        munmap(map, sizeof(struct proto_sq) + PUSH);
        return false;
    }
    NEED(n == 3);
    ch->bell = got[1];
    ch->wake = got[2];
    try_memory(a, got[0], ans.bytes, "the completion ring");
    ch->cq = (const void *)a->window[a->n_windows - 1].at;
    a->n_ch++;
    return true;
}

static void attack_close(struct attack *a)
{
    look_for_secret(a);
    for (unsigned i = 0; i < a->n_ch; i++) {
        if (a->ch[i].scribbler) {
            atomic_store(&a->ch[i].stop, true);
            pthread_join(a->ch[i].scribbler, NULL);
        }
        munmap(a->ch[i].sq, sizeof(struct proto_sq) + PUSH);
        close(a->ch[i].bell);
        close(a->ch[i].wake);
    }
    for (unsigned i = 0; i < a->n_windows; i++)
        munmap((void *)a->window[i].at, a->window[i].bytes);
    close(a->sock);
}

static void flood(void)
{
    enum { MANY = 100 };
    static struct attack many[MANY];
    unsigned n = 0;

    while (n < MANY && attack_open(&many[n]))
        n++;
    for (unsigned i = 0; i < 3 && n > 0; i++)
        add_channel(&many[roll(n)]);
    while (n > 0)
        attack_close(&many[--n]);
}

static void wrong_descriptors(struct attack *a)
{
    const int seals[] = {SEALS & ~F_SEAL_SHRINK, SEALS & ~F_SEAL_FUTURE_WRITE, SEALS};
    const size_t sizes[] = {0, 4096, sizeof(struct proto_sq) + 1, sizeof(struct proto_sq) + PUSH};
    struct proto_msg m = {.id = (uint32_t)odd_number(), .stamp = odd_number(), .ino = odd_number()};
    struct proto_answer ans;
    int fds[FDS], ends[2], n = (int)roll(4);
    unsigned n_got;

    m.type = (uint32_t)(roll(4) ? 1 + roll(4) : odd_number());
    NEED(pipe(ends) == 0);
    for (int i = 0; i < n; i++) {
        switch (roll(6)) {
        case 0:
            fds[i] = dup(ends[roll(2)]);
            break;
        case 1:
            fds[i] = open("/", O_RDONLY | O_DIRECTORY);
            break;
        case 2:
            fds[i] = dup(a->sock);
            break;
        case 3:
            fds[i] = open("/dev/zero", O_RDWR);
            break;
        default:
            fds[i] = make_memory(sizes[roll(4)], seals[roll(3)], NULL);
        }
    }
    say(a->sock, &m, sizeof(m), fds, (unsigned)n);
    close(ends[0]);
    close(ends[1]);
    while (n > 0)
        close(fds[--n]);
    struct pollfd p = {.fd = a->sock, .events = POLLIN};
    if (poll(&p, 1, 20) == 1 && hear(a->sock, &ans, sizeof(ans), fds, &n_got))
        while (n_got > 0)
            close(fds[--n_got]);
}

static bool try_extent(struct attack *a, uint32_t id, uint64_t stamp)
{
    struct proto_msg m = {.type = PROTO_MSG_EXTENT, .id = id, .stamp = stamp};
    struct proto_answer ans;
    int fds[FDS];
    unsigned n;

    if (!say(a->sock, &m, sizeof(m), NULL, 0) || !hear(a->sock, &ans, sizeof(ans), fds, &n))
        return false;
    if (n == 1 && ans.error == 0) {
        extents++;
        try_memory(a, fds[0], ans.bytes, "an extent");
    }
    return true;
}

/* -- rings ------------------------------------------------------------------------------------- */

static void entry(struct attack *a, struct proto_sqe *e)
{
    *e = (struct proto_sqe){
        .op = (uint32_t)(role == PROTO_ROLE_IL || roll(4) ? 30 + roll(45) : roll(31)),
        .seq = ++a->seq,
        .handle = roll(4) ? 1 : (uint32_t)odd_number(),
        .flags = roll(4) ? 0 : (uint32_t)(1u << roll(32)),
        .ino = roll(8) ? inos[roll(n_inos)] : odd_number(),
        .off = roll(8) ? roll(4 << 20) : odd_number(),
        .len = (uint32_t)(roll(4) ? roll(1 << 17) : odd_number()),
        .push_off = (uint32_t)roll(64) * 8,
        .push_len = (uint32_t)roll(roll(2) ? 64 : PUSH - 512),
        .reply_off = (uint32_t)roll(8) * 8192,
        .reply_cap = (uint32_t)roll(PROTO_REPLY_BYTES - 65536),
        .arg = (uint32_t)(roll(2) ? roll(16) : odd_number())};
    if (e->op == PROTO_FS_MOUNT || e->op == PROTO_INVAL_NEXT)
        e->op = PROTO_LEASE; /* role 1 does it on purpose */
    if (roll(300) == 0)
        e->seq -= roll(3);
    if (roll(300) == 0)
        e->ctl = (uint32_t)odd_number();
    if (roll(300) == 0)
        e->push_off = (uint32_t)odd_number();
}

/* One good request; false: the session has ended, or it was not answered. */
static bool ask(struct attack *a, struct channel *ch, struct proto_sqe e, const void *push,
                struct proto_cqe *out)
{
    uint32_t at = ch->sq->tail;
    uint64_t one = 1;

    memcpy(ch->sq + 1, push, e.push_len);
    e.seq = ++a->seq;
    ch->sq->e[at % PROTO_RING] = e;
    __atomic_store_n(&ch->sq->tail, at + 1, __ATOMIC_RELEASE);
    NEED(write(ch->bell, &one, sizeof(one)) == sizeof(one));
    for (unsigned i = 0; i < PATIENCE_S * 1000; i++) {
        if (__atomic_load_n(&ch->cq->tail, __ATOMIC_ACQUIRE) == at + 1) {
            *out = ch->cq->e[at % PROTO_RING];
            ch->sq->cq_head = at + 1;
            requests++;
            return true;
        }
        struct pollfd p = {.fd = a->sock, .events = POLLIN};
        if (poll(&p, 1, 1) == 1)
            return false;
    }
    HARM("a request has not been answered for %d s", PATIENCE_S);
    return false;
}

/* Handle 1 is the file system, 2 the container where the role has one. */
static bool open_files(struct attack *a)
{
    uint32_t len = (uint32_t)strlen(label);
    struct proto_sqe cont = {.op = PROTO_CONT_OPEN, .handle = 2, .arg = len, .push_len = len};
    struct proto_sqe fs = {.op = PROTO_FS_OPEN, .handle = 1, .arg = 2};
    struct proto_cqe out;

    if (role == PROTO_ROLE_IL)
        fs.push_len = len;
    else if (!ask(a, &a->ch[0], cont, label, &out) || out.result < 0)
        return false;
    return ask(a, &a->ch[0], fs, label, &out) && out.result == 0;
}

/* Leases, reads and proofs of files, also those that it may not read, and the memory behind. */
static bool spy(struct attack *a)
{
    struct proto_sqe e = {.op = roll(3) ? PROTO_LEASE : PROTO_READ,
                          .handle = 1,
                          .ino = inos[roll(n_inos)],
                          .off = roll(64) * 4096,
                          .len = 65536,
                          .reply_cap = 65536};
    struct proto_lease lease;
    struct proto_cqe out;

    if (!ask(a, &a->ch[0], e, "", &out))
        return false;
    if (e.op == PROTO_LEASE && out.result >= 0 && out.reply_len == sizeof(lease)) {
        memcpy(&lease, (const uint8_t *)(a->ch[0].cq + 1) + out.reply_off, sizeof(lease));
        if (!try_extent(a, lease.extent, lease.stamp) ||
            !try_extent(a, lease.extent + (uint32_t)roll(3), lease.stamp + roll(3)))
            return false;
    }
    return try_extent(a, (uint32_t)roll(64), odd_number());
}

struct scribble {
    struct channel *ch;
    uint64_t seed;
};

static void *scribble(void *arg)
{
    struct scribble *s = arg;
    struct timespec nap = {.tv_nsec = 20000};
    uint64_t *words = (uint64_t *)s->ch->sq;

    state = s->seed;
    while (!atomic_load(&s->ch->stop)) {
        for (unsigned i = 0; i < 64; i++)
            words[sizeof(struct proto_sq) / 8 + roll(PUSH / 8)] = roll(UINT64_MAX);
        if (roll(16) == 0)
            words[1 + roll(sizeof(struct proto_sq) / 8 - 1)] = odd_number();
        nanosleep(&nap, NULL);
    }
    free(s);
    return NULL;
}

static bool alive(struct attack *a)
{
    struct pollfd p = {.fd = a->sock, .events = POLLIN};

    return poll(&p, 1, 0) == 0 || !(p.revents & POLLHUP);
}

static void nonsense(struct attack *a)
{
    for (unsigned i = 0; i < a->n_ch; i++) {
        struct scribble *s = malloc(sizeof(*s));
        NEED(s);
        *s = (struct scribble){&a->ch[i], roll(UINT64_MAX) | 1};
        NEED(pthread_create(&a->ch[i].scribbler, NULL, scribble, s) == 0);
    }
    for (unsigned round = 0; round < 60 && alive(a); round++) {
        struct channel *ch = &a->ch[roll(a->n_ch)];
        uint64_t one = roll(16) ? 1 : odd_number();
        uint32_t n = (uint32_t)roll(24), tail = ch->sq->tail;
        struct timespec nap = {.tv_nsec = (long)roll(400000)};

        for (uint32_t i = 0; i < n; i++)
            entry(a, &ch->sq->e[(tail + i) % PROTO_RING]);
        requests += n;
        ch->sq->sleeping = (uint32_t)roll(2);
        if (roll(3)) /* else its completions are never taken */
            ch->sq->cq_head = ch->cq->tail;
        __atomic_store_n(&ch->sq->tail, roll(200) ? tail + n : (uint32_t)odd_number(),
                         __ATOMIC_RELEASE);
        fcntl(ch->bell, F_SETFL, O_NONBLOCK);
        if (write(ch->bell, &one, sizeof(one)) < 0 && errno != EAGAIN && errno != EINVAL)
            NEED(false);
        nanosleep(&nap, NULL);
    }
}

/* -- a mount that says nothing ----------------------------------------------------------------- */

static void silent_mount(struct attack *a, time_t end)
{
    struct proto_sqe mount = {.op = PROTO_FS_MOUNT, .handle = 1, .arg = 1}; /* read-only */
    struct proto_cqe out;

    NEED(ask(a, &a->ch[0], mount, "", &out) && out.result >= 0);
    while (time(NULL) < end) {
        struct proto_sqe e = {.op = roll(2) ? PROTO_GETATTR : PROTO_READ,
                              .handle = 1,
                              .ino = inos[roll(n_inos)],
                              .len = 4096,
                              .reply_cap = 8192};
        struct timespec nap = {.tv_nsec = 5000000};
        if (!ask(a, &a->ch[0], e, "", &out))
            return;
        nanosleep(&nap, NULL);
    }
}

static void one_session(time_t end)
{
    static struct attack a;
    bool goes_on;

    if (!attack_open(&a))
        return;
    goes_on = add_channel(&a) && open_files(&a);
    if (goes_on && role == PROTO_ROLE_MOUNT) {
        silent_mount(&a, end);
    } else if (goes_on) {
        for (unsigned i = 0; role == PROTO_ROLE_IL && goes_on && i < 12; i++)
            goes_on = spy(&a);
        while (goes_on && a.n_ch < CHANNELS && roll(3))
            goes_on = add_channel(&a);
        if (goes_on)
            nonsense(&a);
        for (unsigned i = 0; i < 4 && alive(&a); i++)
            wrong_descriptors(&a);
    }
    attack_close(&a);
}

int main(int argc, char **argv)
{
    time_t end;
    uid_t uid;

    if (argc < 10)
        return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    NEED(chdir(argv[1]) == 0);
    socket_name = argv[2];
    role = (uint32_t)atoi(argv[3]);
    uid = (uid_t)atoi(argv[4]);
    state = strtoull(argv[5], NULL, 10) * 2 + 1;
    end = time(NULL) + atoi(argv[6]);
    label = argv[7];
    for (const char *s = argv[8]; *s != '-' && s[0] && s[1] && secret_len < sizeof(secret); s += 2)
        NEED(sscanf(s, "%2hhx", &secret[secret_len++]) == 1);
    for (int i = 9; i < argc && n_inos < INOS; i++)
        inos[n_inos++] = strtoull(argv[i], NULL, 10);
    if (uid)
        NEED(setgroups(0, NULL) == 0 && setgid(uid) == 0 && setuid(uid) == 0);
    while (time(NULL) < end) {
        if (role != PROTO_ROLE_MOUNT && roll(8) == 0)
            half_handshakes();
        if (role != PROTO_ROLE_MOUNT && roll(30) == 0)
            flood();
        one_session(end);
    }
    printf("%lu sessions, %lu requests, %lu extents\n", sessions, requests, extents);
    return 0;
}
