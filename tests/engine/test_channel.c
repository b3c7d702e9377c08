/* SPDX-License-Identifier: Apache-2.0 */
/* The worker against clients that are not ours: refusals, nonsense, sudden deaths, idleness. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "channel_rig.h"
#include "test.h"

#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
#define PUSH_BYTES 65536u

static uint64_t seed;

/* -- a client by hand -------------------------------------------------------------------------- */

struct raw {
    int fd, bell, wake;
    struct proto_welcome welcome;
    struct proto_sq *sq;
    const struct proto_cq *cq;
    size_t cq_bytes;
};

static void send_msg(int sock, const void *buf, size_t len, const int *fds, unsigned n)
{
    char control[CMSG_SPACE(sizeof(int) * 8)] = {0};
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
    if (sendmsg(sock, &m, MSG_NOSIGNAL) < 0)
        CHECK(errno == EPIPE || errno == ECONNRESET);
}

/* Length, 0 at the end. */
static ssize_t receive(int sock, void *buf, size_t len, int *fds, unsigned *n)
{
    char control[CMSG_SPACE(sizeof(int) * 8)];
    struct iovec iov = {buf, len};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = sizeof(control)};
    ssize_t rc = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
    struct cmsghdr *h = rc > 0 ? CMSG_FIRSTHDR(&m) : NULL;

    *n = 0;
    if (h) {
        *n = (unsigned)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(h), *n * sizeof(int));
    }
    return rc < 0 ? 0 : rc;
}

static int dial(void)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    strcpy(addr.sun_path, rig_path());
    if (fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
        fprintf(stderr, "no connection: %s; the worker ended with %d, sessions %ld\n",
                strerror(errno), atomic_load(&rig_state()->exit_code),
                atomic_load(&rig_state()->sessions));
        CHECK(false);
    }
    return fd;
}

static struct proto_hello good_hello(void)
{
    return (struct proto_hello){
        .magic = PROTO_MAGIC, .version = PROTO_VERSION, .role = PROTO_ROLE_IL};
}

/* The welcome's error; 1: none came. */
static int hello(struct raw *r, const struct proto_hello *h, size_t len)
{
    int fds[8];
    unsigned n;

    *r = (struct raw){.fd = dial(), .bell = -1, .wake = -1};
    send_msg(r->fd, h, len, NULL, 0);
    ssize_t rc = receive(r->fd, &r->welcome, sizeof(r->welcome), fds, &n);
    if (rc == 0)
        return 1;
    CHECK_EQ(rc, sizeof(r->welcome));
    CHECK_EQ(r->welcome.magic, PROTO_MAGIC);
    CHECK_EQ(n, r->welcome.error ? 0 : 2);
    while (n > 0)
        close(fds[--n]);
    return r->welcome.error;
}

static void raw_open(struct raw *r)
{
    struct proto_hello h = good_hello();

    CHECK_EQ(hello(r, &h, sizeof(h)), 0);
}

static int make_memory(off_t bytes, int seals, void **map)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CHECK(fd >= 0 && ftruncate(fd, bytes) == 0);
    if (map) {
        *map = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(*map != MAP_FAILED);
    }
    CHECK_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

/* The answer's error; 1: the session has ended. */
static int channel(struct raw *r, uint32_t id, const int *fds, unsigned n)
{
    struct proto_msg m = {.type = PROTO_MSG_CHANNEL, .id = id};
    struct proto_answer a;
    int got[8];
    unsigned n_got;

    send_msg(r->fd, &m, sizeof(m), fds, n);
    if (receive(r->fd, &a, sizeof(a), got, &n_got) == 0)
        return 1;
    CHECK_EQ(a.type, m.type);
    CHECK_EQ(a.id, id);
    CHECK_EQ(n_got, a.error ? 0 : 3);
    if (a.error == 0) {
        r->cq_bytes = a.bytes;
        r->cq = mmap(NULL, a.bytes, PROT_READ, MAP_SHARED, got[0], 0);
        CHECK(r->cq != MAP_FAILED);
        CHECK(mmap(NULL, a.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, got[0], 0) == MAP_FAILED);
        CHECK_EQ(fcntl(got[0], F_GET_SEALS) & ALL_SEALS, ALL_SEALS);
        CHECK(ftruncate(got[0], 0) < 0);
        CHECK(fallocate(got[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) < 0);
        close(got[0]);
        r->bell = got[1];
        r->wake = got[2];
    }
    return a.error;
}

static void raw_channel(struct raw *r)
{
    void *map;
    int fd = make_memory(sizeof(struct proto_sq) + PUSH_BYTES, ALL_SEALS, &map);

    r->sq = map;
    CHECK_EQ(channel(r, 1, &fd, 1), 0);
    close(fd);
}

static void raw_close(struct raw *r)
{
    if (r->sq)
        munmap(r->sq, sizeof(struct proto_sq) + PUSH_BYTES);
    if (r->cq)
        munmap((void *)r->cq, r->cq_bytes);
    if (r->bell >= 0)
        close(r->bell);
    if (r->wake >= 0)
        close(r->wake);
    close(r->fd);
}

static bool ended(struct raw *r, int wait_ms)
{
    char byte;

    while (wait_ms-- > 0) {
        if (recv(r->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0)
            return true;
        usleep(1000);
    }
    return false;
}

static uint64_t bad_clients(struct client *c)
{
    struct dfe_service_info info;

    rig_info(c, &info);
    return info.bad_clients;
}

/* -- refusals ---------------------------------------------------------------------------------- */

static void test_hello(void)
{
    struct proto_hello h = good_hello();
    struct raw r, live;

    h.version++;
    CHECK_EQ(hello(&r, &h, sizeof(h)), -EPROTONOSUPPORT);
    raw_close(&r);
    h = good_hello();
    h.magic++;
    CHECK_EQ(hello(&r, &h, sizeof(h)), -EPROTO);
    raw_close(&r);
    h = good_hello();
    h.role = 3;
    CHECK_EQ(hello(&r, &h, sizeof(h)), -EINVAL);
    raw_close(&r);
    h = good_hello();
    CHECK_EQ(hello(&r, &h, sizeof(h) - 1), 1);
    raw_close(&r);

    raw_open(&live);
    h.session = live.welcome.session;
    h.secret = live.welcome.secret + 1;
    CHECK_EQ(hello(&r, &h, sizeof(h)), -EACCES);
    raw_close(&r);
    h.secret--; /* right, but it goes on */
    CHECK_EQ(hello(&r, &h, sizeof(h)), -ESTALE);
    raw_close(&r);
    raw_close(&live);
    usleep(100000); /* right, but it has ended */
    CHECK_EQ(hello(&r, &h, sizeof(h)), -ESTALE);
    raw_close(&r);
}

static void test_late_hello(void)
{
    struct raw r = {.fd = dial(), .bell = -1, .wake = -1};
    uint64_t t = base_mono_ns();
    char byte;

    CHECK_EQ(recv(r.fd, &byte, 1, 0), 0);
    t = base_mono_ns() - t;
    CHECK(t > 4000000000ull && t < 9000000000ull);
    raw_close(&r);
}

static void test_memory(void)
{
    const int seals[] = {0, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
                         F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL,
                         F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL,
                         F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE};
    const off_t sizes[] = {0, 4096, sizeof(struct proto_sq), sizeof(struct proto_sq) + 4095,
                           sizeof(struct proto_sq) + 4100,
                           sizeof(struct proto_sq) + PROTO_AREA_MAX_BYTES + 4096};
    struct raw r;
    int fds[2];

    raw_open(&r);
    for (unsigned i = 0; i < sizeof(seals) / sizeof(*seals); i++) {
        fds[0] = make_memory(sizeof(struct proto_sq) + 4096, seals[i], NULL);
        CHECK_EQ(channel(&r, 1, fds, 1), -EPERM);
        close(fds[0]);
    }
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        fds[0] = make_memory(sizes[i], ALL_SEALS, NULL);
        CHECK_EQ(channel(&r, 1, fds, 1), -EINVAL);
        close(fds[0]);
    }
    raw_channel(&r);
    fds[0] = fds[1] = make_memory(sizeof(struct proto_sq) + 4096, ALL_SEALS, NULL);
    CHECK_EQ(channel(&r, 1, fds, 1), -EINVAL); /* number in use */
    CHECK_EQ(channel(&r, 2, fds, 2), 1);
    raw_close(&r);
    raw_open(&r);
    CHECK_EQ(channel(&r, 2, fds, 0), 1);
    raw_close(&r);
    close(fds[0]);
    CHECK_EQ(pipe(fds), 0);
    raw_open(&r);
    CHECK_EQ(channel(&r, 2, fds, 1), 1);
    raw_close(&r);
    close(fds[0]);
    close(fds[1]);
}

static void test_messages(void)
{
    struct client *c = rig_client(PROTO_ROLE_API);
    struct proto_msg m = {.type = 99};
    uint64_t bad = bad_clients(c);
    struct raw r;
    int many[6] = {0, 0, 0, 0, 0, 0};

    raw_open(&r);
    send_msg(r.fd, &m, sizeof(m), NULL, 0);
    CHECK(ended(&r, 1000));
    raw_close(&r);
    raw_open(&r);
    send_msg(r.fd, &m, 7, NULL, 0);
    CHECK(ended(&r, 1000));
    raw_close(&r);
    raw_open(&r);
    m.type = PROTO_MSG_CHANNEL_CLOSE; /* of none: nothing happens */
    send_msg(r.fd, &m, sizeof(m), NULL, 0);
    CHECK(!ended(&r, 20));
    m.type = PROTO_MSG_EXTENT;
    send_msg(r.fd, &m, sizeof(m), many, 6);
    CHECK(ended(&r, 1000));
    raw_close(&r);
    /* answers that are never read */
    raw_open(&r);
    fcntl(r.fd, F_SETFL, O_NONBLOCK);
    for (unsigned i = 0; i < 100000; i++)
        if (send(r.fd, &m, sizeof(m), MSG_NOSIGNAL) < 0 && errno != EAGAIN)
            break;
    CHECK_EQ(rig_nop(c), 0);
    raw_close(&r);
    usleep(50000);
    CHECK_EQ(bad_clients(c), bad + 4);
    client_close(c);
}

/* -- nonsense in rings ------------------------------------------------------------------------- */

static void submit(struct raw *r, uint32_t tail)
{
    uint64_t one = 1;

    __atomic_store_n(&r->sq->tail, tail, __ATOMIC_RELEASE);
    CHECK_EQ(write(r->bell, &one, sizeof(one)), sizeof(one));
}

static void one_bad_entry(struct client *c, const struct proto_sqe *e)
{
    uint64_t bad = bad_clients(c);
    struct raw r;

    raw_open(&r);
    raw_channel(&r);
    r.sq->e[0] = *e;
    submit(&r, 1);
    CHECK(ended(&r, 2000));
    CHECK_EQ(bad_clients(c), bad + 1);
    CHECK_EQ(r.cq->tail, 0);
    raw_close(&r);
}

static void test_bad_entries(void)
{
    struct client *c = rig_client(PROTO_ROLE_API);
    const struct proto_sqe bad[] = {
        {.op = PROTO_NOP, .seq = 0},
        {.op = PROTO_NOP, .seq = 1, .ctl = PROTO_CTL_FENCE},
        {.op = PROTO_NOP, .seq = 1, .ctl = 1u << 31},
        {.op = PROTO_WRITE, .seq = 1, .push_len = PUSH_BYTES + 1},
        {.op = PROTO_WRITE, .seq = 1, .push_len = UINT32_MAX},
        {.op = PROTO_WRITE, .seq = 1, .push_off = 8, .push_len = PUSH_BYTES},
        {.op = PROTO_WRITE, .seq = 1, .push_off = UINT32_MAX - 7, .push_len = 8},
        {.op = PROTO_WRITE, .seq = 1, .push_off = 4, .push_len = 8},
        {.op = PROTO_READ, .seq = 1, .reply_cap = PROTO_REPLY_BYTES + 1},
        {.op = PROTO_READ, .seq = 1, .reply_off = UINT32_MAX - 7, .reply_cap = 8},
        {.op = PROTO_READ, .seq = 1, .reply_off = 8, .reply_cap = PROTO_REPLY_BYTES},
    };
    const uint32_t tails[] = {65, 1000, 0x80000000u, UINT32_MAX};
    struct raw r;

    for (unsigned i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        one_bad_entry(c, &bad[i]);
    for (unsigned i = 0; i < sizeof(tails) / sizeof(*tails); i++) {
        raw_open(&r);
        raw_channel(&r);
        submit(&r, tails[i]);
        CHECK(ended(&r, 2000));
        raw_close(&r);
    }
    /* a number twice, unless it is said to be a retry */
    raw_open(&r);
    raw_channel(&r);
    for (unsigned i = 0; i < 3; i++)
        r.sq->e[i] = (struct proto_sqe){.op = PROTO_NOP, .seq = 5};
    r.sq->e[1].ctl = PROTO_CTL_RETRY;
    submit(&r, 2);
    CHECK(!ended(&r, 20));
    CHECK_EQ(r.cq->tail, 2);
    submit(&r, 3);
    CHECK(ended(&r, 2000));
    raw_close(&r);
    client_close(c);
}

/* A full ring of requests that wait, and one more. */
static void test_credits(void)
{
    struct raw r;

    raw_open(&r);
    raw_channel(&r);
    for (unsigned i = 0; i < PROTO_RING; i++)
        r.sq->e[i] = (struct proto_sqe){.op = PROTO_FSYNC, .seq = i + 1, .off = 5000};
    submit(&r, PROTO_RING);
    while (__atomic_load_n(&r.cq->tail, __ATOMIC_ACQUIRE) < PROTO_RING)
        CHECK(!ended(&r, 2));
    r.sq->cq_head = PROTO_RING;
    for (unsigned i = 0; i < PROTO_RING; i++)
        r.sq->e[i].seq += PROTO_RING;
    submit(&r, 2 * PROTO_RING + 1);
    CHECK(ended(&r, 2000));
    raw_close(&r);
}

/* Mounts and sessions whose changes wait for a mount take no thread from what others ask. */
static void test_waiting_changes(void)
{
    enum { EACH = 8 };
    static const uint32_t roles[] = {PROTO_ROLE_MOUNT, PROTO_ROLE_API};
    struct proto_hello h = good_hello();
    struct raw r[2][EACH];

    atomic_store(&rig_state()->free, false);
    for (unsigned n = 0; n < 2 * EACH; n++) {
        struct raw *one = &r[n / EACH][n % EACH];

        h.role = roles[n / EACH];
        CHECK_EQ(hello(one, &h, sizeof(h)), 0);
        raw_channel(one);
        for (unsigned i = 0; i < PROTO_RING; i++)
            one->sq->e[i] = (struct proto_sqe){.op = PROTO_PUNCH, .seq = i + 1};
        submit(one, PROTO_RING);
    }
    while (atomic_load(&rig_state()->waiting) < 128) /* all threads of both */
        usleep(1000);
    for (unsigned i = 0; i < 2; i++) {
        struct client *c = rig_client(roles[i]);
        struct client_call call = {.sqe = {.op = PROTO_FSYNC, .off = 1}};

        CHECK_EQ(client_do(c, &call), 0);
        client_close(c);
    }
    CHECK_EQ(atomic_load(&rig_state()->waiting), 128);
    atomic_store(&rig_state()->free, true);
    for (unsigned n = 0; n < 2 * EACH; n++) {
        struct raw *one = &r[n / EACH][n % EACH];

        while (__atomic_load_n(&one->cq->tail, __ATOMIC_ACQUIRE) < PROTO_RING)
            CHECK(!ended(one, 2));
        raw_close(one);
    }
}

static void test_quota(void)
{
    int fd = make_memory(sizeof(struct proto_sq) + 4096, ALL_SEALS, NULL);
    unsigned n = 0;
    struct raw r;
    int rc;

    raw_open(&r);
    do {
        rc = channel(&r, n++, &fd, 1);
        if (rc == 0) {
            munmap((void *)r.cq, r.cq_bytes);
            close(r.bell);
            close(r.wake);
        }
    } while (rc == 0);
    CHECK_EQ(rc, -EDQUOT);
    CHECK_EQ(n, 513);
    r.cq = NULL;
    r.bell = r.wake = -1;
    raw_close(&r);
    close(fd);
}

static atomic_bool enough;

static void *good_client(void *arg)
{
    struct client *c = rig_client(PROTO_ROLE_API);
    uint64_t *n = arg;

    while (!atomic_load(&enough)) {
        struct client_call call = {.sqe = {.op = PROTO_READ, .ino = 3, .len = 100},
                                   .reply_cap = 100};
        CHECK_EQ(client_do(c, &call), 100);
        for (unsigned i = 0; i < 100; i++)
            CHECK_EQ(((const uint8_t *)call.reply)[i], rig_byte(3, i));
        ++*n;
        usleep(200);
    }
    client_close(c);
    return NULL;
}

static void scribble(struct raw *r, uint64_t *s)
{
    uint8_t *p = (uint8_t *)r->sq;
    uint64_t word;

    for (uint32_t i = 0; i < PROTO_RING; i++) {
        uint32_t at = r->sq->tail + i;
        struct proto_sqe *e = &r->sq->e[at % PROTO_RING];
        *e = (struct proto_sqe){.op = (uint32_t)(test_rand(s) % 90),
                                .seq = at + 1 - (test_rand(s) % 400 == 0),
                                .off = test_rand(s) % 100,
                                .len = (uint32_t)test_rand(s),
                                .push_off = (uint32_t)(test_rand(s) % 64) * 8,
                                .push_len = (uint32_t)(test_rand(s) % (PUSH_BYTES - 512)),
                                .reply_cap = (uint32_t)(test_rand(s) % PROTO_REPLY_BYTES)};
        if (e->op == PROTO_SERVICE_QUERY)
            e->op = PROTO_NOP;
        e->ctl = test_rand(s) % 400 == 0 ? (uint32_t)test_rand(s) % 4 : 0;
    }
    if (test_rand(s) % 8 == 0) {
        word = test_rand(s);
        memcpy(p + test_rand(s) % (sizeof(struct proto_sq) - sizeof(word)), &word, sizeof(word));
    }
    r->sq->sleeping = test_rand(s) % 2;
    submit(r, r->sq->tail + (uint32_t)(test_rand(s) % 20));
}

/* Random rings, beside a client that must not notice. */
static void test_scribbles(void)
{
    uint64_t n = 0, end = base_mono_ns() + 4000000000ull;
    unsigned rounds = 0;
    pthread_t id;

    CHECK_EQ(pthread_create(&id, NULL, good_client, &n), 0);
    while (base_mono_ns() < end) {
        struct raw r;
        raw_open(&r);
        raw_channel(&r);
        for (unsigned i = 0; i < 20 && !ended(&r, 1); i++, rounds++)
            scribble(&r, &seed);
        raw_close(&r);
    }
    atomic_store(&enough, true);
    CHECK_EQ(pthread_join(id, NULL), 0);
    CHECK(n > 100);
    fprintf(stderr, "   %u rounds, %llu calls beside them\n", rounds, (unsigned long long)n);
}

/* An eventfd that is full, a wake socket that nobody reads: nobody waits for them. */
static void test_bells(void)
{
    struct client *c = rig_client(PROTO_ROLE_API);
    uint64_t count = 0;
    struct raw r;

    raw_open(&r);
    raw_channel(&r);
    if (read(r.bell, &count, sizeof(count)) < 0)
        CHECK_EQ(errno, EAGAIN);
    CHECK_EQ(fcntl(r.bell, F_SETFL, 0), 0); /* the engine's reads and writes would block */
    count = UINT64_MAX - 1;
    CHECK_EQ(write(r.bell, &count, sizeof(count)), sizeof(count));
    CHECK_EQ(rig_nop(c), 0);
    r.sq->sleeping = 1;
    for (uint32_t i = 0; i < 20000; i++) {
        r.sq->e[i % PROTO_RING] = (struct proto_sqe){.op = PROTO_NOP, .seq = i + 1};
        __atomic_store_n(&r.sq->tail, i + 1, __ATOMIC_RELEASE);
        if (i % 16 == 0) /* our bell is broken: somebody else's wakes the engine */
            CHECK_EQ(rig_nop(c), 0);
        while (__atomic_load_n(&r.cq->tail, __ATOMIC_ACQUIRE) + PROTO_RING / 2 < i)
            CHECK_EQ(rig_nop(c), 0);
    }
    CHECK(!ended(&r, 5));
    raw_close(&r);
    client_close(c);
}

static void test_proofs(void)
{
    struct client *c = rig_client(PROTO_ROLE_IL);
    int pipes[2];
    unsigned fds;

    usleep(100000); /* what was before has ended */
    fds = rig_fds();
    CHECK_EQ(pipe(pipes), 0);
    for (unsigned i = 0; i < 300; i++)
        CHECK_EQ(client_prove(c, 3, 1, pipes[0], O_RDONLY), -EACCES);
    for (unsigned i = 0; i < 1000 && rig_fds() != fds; i++)
        usleep(1000);
    CHECK_EQ(rig_fds(), fds);
    close(pipes[0]);
    close(pipes[1]);
    client_close(c);
}

/* -- callers who say nothing ------------------------------------------------------------------- */

/* Bursts of them, and pauses: so all clients of the user end and are freed at once. */
static void test_silent_callers(void)
{
    unsigned started = atomic_load(&rig_state()->started);
    struct raw r;
    int fds[8];

    for (unsigned i = 0; i < 1000; i++) {
        unsigned n = 1 + (unsigned)(test_rand(&seed) % 8);
        for (unsigned j = 0; j < n; j++)
            fds[j] = dial();
        if (i % 4 == 0) { /* one among them says hello */
            raw_open(&r);
            raw_close(&r);
        }
        for (unsigned j = 0; j < n; j++)
            close(fds[j]);
        usleep((useconds_t)(test_rand(&seed) % 1000));
    }
    raw_open(&r); /* its turn comes after all of them */
    raw_close(&r);
    CHECK_EQ(atomic_load(&rig_state()->started), started);
}

/* -- sudden deaths ----------------------------------------------------------------------------- */

static void *work(void *arg)
{
    struct client *c = arg;
    uint64_t s = (uint64_t)getpid() * 977 + (uintptr_t)&s;

    for (;;) {
        uint64_t x = test_rand(&s) >> 8;
        struct client_call call = {.sqe = {.op = PROTO_READ, .len = 3000}, .reply_cap = 3000};
        if (x % 8 == 0)
            call.sqe = (struct proto_sqe){.op = PROTO_FSYNC, .off = x % 3000};
        client_do(c, &call);
    }
    return NULL;
}

static void *wait_for_news(void *arg)
{
    struct client_call call = {.sqe = {.op = PROTO_INVAL_NEXT, .handle = 1}};

    client_do(arg, &call);
    return NULL;
}

static _Noreturn void victim(void)
{
    struct client *c;
    pthread_t id;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    c = rig_client(PROTO_ROLE_MOUNT);
    CHECK_EQ(pthread_create(&id, NULL, wait_for_news, c), 0);
    for (unsigned i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&id, NULL, work, c), 0);
    work(c);
    abort();
}

static void test_kills(unsigned kills)
{
    struct client *c = rig_client(PROTO_ROLE_API);
    struct dfe_service_info info;
    unsigned fds, maps;
    uint64_t worst = 0, sessions;

    rig_info(c, &info);
    sessions = info.sessions;
    usleep(100000); /* the worker has closed what it sent */
    fds = rig_fds();
    maps = rig_maps();
    for (unsigned i = 0; i < kills; i++) {
        pid_t pid = fork();
        uint64_t t;
        if (pid == 0)
            victim();
        usleep((useconds_t)(test_rand(&seed) % 15000));
        kill(pid, SIGKILL);
        CHECK_EQ(waitpid(pid, NULL, 0), pid);
        t = base_mono_ns();
        do {
            usleep(500);
            rig_info(c, &info);
        } while (info.sessions != sessions || rig_fds() != fds || rig_maps() != maps);
        t = base_mono_ns() - t;
        if (t > worst)
            worst = t;
        CHECK(t < 2000000000ull); /* on a busy machine, with sanitizers; else well below 100 ms */
        CHECK_EQ(atomic_load(&rig_state()->sessions), sessions);
    }
    fprintf(stderr, "   %u kills, all given back after at most %.1f ms\n", kills, worst / 1e6);
    client_close(c);
}

/* -- idleness ---------------------------------------------------------------------------------- */

static double cpu_s(pid_t pid)
{
    char name[64], line[1024];
    unsigned long user, system;
    FILE *f;

    snprintf(name, sizeof(name), "/proc/%d/stat", pid);
    f = fopen(name, "r");
    CHECK(f && fgets(line, sizeof(line), f));
    fclose(f);
    CHECK_EQ(sscanf(strrchr(line, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                    &user, &system),
             2);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static void test_idle(void)
{
    struct client *c = rig_client(PROTO_ROLE_API);
    double before, used;

    for (unsigned tries = 0;; tries++) { /* ticks are counted: a busy machine's may be misplaced */
        CHECK_EQ(rig_nop(c), 0);
        usleep(200000);
        before = cpu_s(atomic_load(&rig_state()->worker));
        sleep(4);
        used = cpu_s(atomic_load(&rig_state()->worker)) - before;
        if (used < 0.02)
            break;
        CHECK(tries < 3);
    }
    CHECK_EQ(rig_nop(c), 0);
    client_close(c);
}

/* Kills, by hand more of them: test_channel 10000. */
int main(int argc, char **argv)
{
    unsigned kills = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 60;
    struct client *c;

    seed = test_seed();
    rig_start(4000); /* a busy machine may keep the first caller away for a second */
    RUN(test_silent_callers);
    c = rig_client(PROTO_ROLE_API); /* so that the worker stays */
    CHECK_EQ(rig_nop(c), 0);
    test_kills(kills);
    RUN(test_hello);
    RUN(test_memory);
    RUN(test_messages);
    RUN(test_bad_entries);
    RUN(test_credits);
    RUN(test_waiting_changes);
    RUN(test_quota);
    RUN(test_scribbles);
    RUN(test_bells);
    RUN(test_proofs);
    RUN(test_late_hello);
    RUN(test_idle);
    client_close(c);
    CHECK_EQ(rig_wait(), 0); /* it ends by itself */
    return 0;
}
