/* SPDX-License-Identifier: Apache-2.0 */
/* One channel: a client's sealed memory read, requests executed, completions posted. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "service/guard.h"
#include "service/worker.h"

#define CLIENT_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

#define COST_BYTES (64u << 10) /* copied in the time of an ordinary request, or ten */

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

/* -- making ------------------------------------------------------------------------------------ */

/* The client's memory, which can neither shrink nor be punched. */
static int map_client(struct chan *ch, int fd)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    void *p;

    if (seals < 0 || (seals & CLIENT_SEALS) != CLIENT_SEALS)
        return base_refuse(-EPERM, "memory that is not sealed");
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_size < (off_t)(sizeof(struct proto_sq) + 4096) || st.st_size % 4096 ||
        st.st_size > (off_t)(sizeof(struct proto_sq) + PROTO_AREA_MAX_BYTES))
        return base_refuse(-EINVAL, "memory of %lld bytes", (long long)st.st_size);
    p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    /* The ring itself, so that the ring thread need not fault. Not the data area: pages that the
     * client has not written would be made here, in our memory's account. */
    madvise(p, sizeof(struct proto_sq), MADV_POPULATE_READ);
    ch->sq = p;
    ch->sq_bytes = (size_t)st.st_size;
    ch->push = (const uint8_t *)(ch->sq + 1);
    ch->push_bytes = (uint32_t)(ch->sq_bytes - sizeof(struct proto_sq));
    return guard_add(p, ch->sq_bytes, &ch->hit);
}

/* The engine's memory, sealed once it is mapped here: whoever gets the descriptor can only read. */
static int make_cq(struct chan *ch)
{
    size_t bytes = sizeof(struct proto_cq) + PROTO_REPLY_BYTES;
    int rc, fd = memfd_create("dfusepy-reply", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    void *p = MAP_FAILED;

    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
        fd = memfd_create("dfusepy-reply", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    if (ftruncate(fd, (off_t)bytes) == 0)
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED || fcntl(fd, F_ADD_SEALS, CLIENT_SEALS) < 0) {
        rc = -errno;
        if (p != MAP_FAILED)
            munmap(p, bytes);
        close(fd);
        return rc;
    }
    ch->cq = p;
    ch->cq_bytes = bytes;
    ch->reply = (uint8_t *)(ch->cq + 1);
    ch->cq->reply_bytes = PROTO_REPLY_BYTES;
    return fd;
}

int chan_open(struct peer *p, uint32_t id, int fd, struct chan **out, int *cq_fd, int *wake_fd)
{
    struct chan *ch = calloc(1, sizeof(*ch));
    int ends[2], rc;

    if (!ch)
        return -ENOMEM;
    ch->peer = p;
    ch->id = id;
    ch->wake_fd = -1;
    list_init(&ch->link);
    list_init(&ch->tasks);
    pthread_mutex_init(&ch->lock, NULL);
    ch->all_tasks = calloc(PROTO_RING, sizeof(*ch->all_tasks));
    rc = ch->all_tasks ? map_client(ch, fd) : -ENOMEM;
    if (rc < 0)
        goto fail;
    for (unsigned i = 0; i < PROTO_RING; i++) {
        ch->all_tasks[i].chan = ch;
        list_add_tail(&ch->tasks, &ch->all_tasks[i].job.link);
    }
    rc = make_cq(ch);
    if (rc < 0)
        goto fail;
    *cq_fd = rc;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) {
        rc = -errno;
        close(*cq_fd);
        goto fail;
    }
    ch->wake_fd = ends[0];
    *wake_fd = ends[1];
    *out = ch;
    return 0;
fail:
    chan_close(ch);
    return rc;
}

void chan_close(struct chan *ch)
{
    if (ch->sq) {
        guard_remove(ch->sq);
        munmap((void *)ch->sq, ch->sq_bytes);
    }
    if (ch->cq)
        munmap(ch->cq, ch->cq_bytes);
    if (ch->wake_fd >= 0)
        close(ch->wake_fd);
    pthread_mutex_destroy(&ch->lock);
    free(ch->all_tasks);
    free(ch);
}

bool chan_busy(struct chan *ch)
{
    return atomic_load(&ch->users) > 0;
}

/* -- completions ------------------------------------------------------------------------------- */

/* The ring thread's, which alone takes entries. */
static void tell_taken(struct chan *ch)
{
    __atomic_store_n(&ch->cq->place, spin_place(), __ATOMIC_RELAXED);
    __atomic_store_n(&ch->cq->sq_head, ch->taken, __ATOMIC_RELEASE);
}

/* The tail, then (fence) `sleeping`: engine/client/await.c has the argument. taken: says together
 * with the tail what was taken. The client is looking at that cache line, and between two stores,
 * or for a lock, it would travel once more. */
static void post(struct chan *ch, const struct proto_cqe *cqe, bool last, bool taken)
{
    uint32_t answered;
    char byte = 0;

    pthread_mutex_lock(&ch->lock);
    if (last) { /* written under the lock alone */
        answered = atomic_load_explicit(&ch->answered, memory_order_relaxed) + 1;
        atomic_store_explicit(&ch->answered, answered, memory_order_release);
    }
    ch->cq->e[ch->posted % PROTO_RING] = *cqe;
    ch->posted++;
    if (taken)
        tell_taken(ch);
    __atomic_store_n(&ch->cq->tail, ch->posted, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&ch->lock);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    /* A full socket buffer means that a wake-up is on its way already. */
    if (__atomic_load_n(&ch->sq->sleeping, __ATOMIC_RELAXED))
        send(ch->wake_fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* News of a long request, where there is room beside the answers to all that is outstanding. The
 * client's word on what it has taken can only cost itself. */
static void progress(uint64_t done, uint64_t total, void *arg)
{
    struct task *t = arg;
    struct chan *ch = t->chan;
    struct proto_cqe cqe = {
        .seq = t->req.e.seq, .flags = PROTO_CQE_MORE, .value = done, .value2 = total};
    uint32_t untaken, outstanding;

    pthread_mutex_lock(&ch->lock);
    untaken = ch->posted - __atomic_load_n(&ch->sq->cq_head, __ATOMIC_RELAXED);
    outstanding = __atomic_load_n(&ch->cq->sq_head, __ATOMIC_RELAXED) - atomic_load(&ch->answered);
    pthread_mutex_unlock(&ch->lock);
    if (untaken < PROTO_RING && untaken + outstanding < PROTO_RING)
        post(ch, &cqe, false, false);
}

static void answer(struct chan *ch, const struct proto_sqe *e, struct proto_cqe *cqe,
                   uint64_t taken_ns, uint64_t begun_ns, bool taken)
{
    DFE_ASSERT(cqe->reply_len <= e->reply_cap);
    cqe->seq = e->seq;
    cqe->reply_off = e->reply_off;
    cqe->queued_ns = begun_ns - taken_ns;
    cqe->engine_ns = base_mono_ns() - begun_ns;
    post(ch, cqe, true, taken);
}

/* -- requests ---------------------------------------------------------------------------------- */

/* Gives the task back first: the answer makes room for one request more. */
static void finish(struct task *t, struct proto_cqe *cqe, uint64_t begun_ns)
{
    struct chan *ch = t->chan;
    struct proto_sqe e = t->req.e;
    uint64_t taken = t->taken_ns;

    pthread_mutex_lock(&ch->lock);
    list_add(&ch->tasks, &t->job.link);
    pthread_mutex_unlock(&ch->lock);
    answer(ch, &e, cqe, taken, begun_ns, false);
}

/* A mount's news have come, or its session ends: from any thread, perhaps under locks. */
static void later(struct request *req, const struct proto_cqe *out)
{
    struct task *t = container_of(req, struct task, req);
    struct chan *ch = t->chan;
    struct proto_cqe cqe = *out;

    finish(t, &cqe, t->taken_ns);
    atomic_fetch_sub(&ch->users, 1); /* the channel may be gone now */
}

static void run_task(struct pool_job *job)
{
    struct task *t = container_of(job, struct task, job);
    struct chan *ch = t->chan;
    struct session *session = ch->peer->session;
    uint64_t begun = base_mono_ns(), seq = t->req.e.seq;
    struct proto_cqe cqe = {0};
    int rc = dispatch(session, &t->req, true, &cqe);

    if (rc == DISPATCH_LATER)
        return; /* not ours any more */
    if (rc < 0)
        cqe.result = rc;
    finish(t, &cqe, begun);
    dispatch_posted(session, seq);
    atomic_fetch_sub(&ch->users, 1); /* the channel may be gone now */
}

static struct pool_lane *lane_of(struct peer *p, uint32_t op)
{
    switch (op) {
    case PROTO_CHECK:
    case PROTO_CONT_DESTROY:
    case PROTO_POOL_CHECKPOINT:
        return &p->longs;
    default:
        return dispatch_changes(op) ? &p->changes : &p->requests;
    }
}

/* To a thread of the pool. A mount that asks for news needs none, it parks at once; and what it
 * said together with that, others wait for: they want the processor. */
static void hand_over(struct chan *ch, const struct request *req, uint64_t taken_ns)
{
    struct task *t;

    pthread_mutex_lock(&ch->lock);
    DFE_ASSERT(!list_empty(&ch->tasks)); /* invariant 3: no more than PROTO_RING requests */
    t = container_of(ch->tasks.next, struct task, job.link);
    list_del(&t->job.link);
    pthread_mutex_unlock(&ch->lock);
    t->req = *req;
    t->req.arg = t;
    t->req.later = later;
    t->req.progress = req->e.op == PROTO_CHECK ? progress : NULL;
    t->taken_ns = taken_ns;
    t->job.run = run_task;
    atomic_fetch_add(&ch->users, 1);
    if (req->e.op == PROTO_INVAL_NEXT)
        run_task(&t->job);
    else
        pool_submit(&ch->peer->worker->pool, lane_of(ch->peer, req->e.op), &t->job);
}

/* NULL, or what is wrong with an entry. */
static const char *fault(const struct chan *ch, const struct proto_sqe *e)
{
    bool retry = e->ctl == PROTO_CTL_RETRY;

    if (e->seq == 0 || (!retry && e->ctl != 0))
        return "an entry without a number, or with unknown control bits";
    if (!retry && e->seq <= ch->last_seq)
        return "a number that has been used";
    if (e->push_len > ch->push_bytes || e->push_off > ch->push_bytes - e->push_len ||
        e->push_off % 8)
        return "bytes outside of its data area";
    if (e->reply_cap > PROTO_REPLY_BYTES || e->reply_off > PROTO_REPLY_BYTES - e->reply_cap ||
        e->reply_off % 8)
        return "an answer outside of the data area";
    return NULL;
}

bool chan_pending(const struct chan *ch)
{
    /* The entry's cache line comes over together with the tail's, not after it. */
    __builtin_prefetch(&ch->sq->e[ch->taken % PROTO_RING]);
    return __atomic_load_n(&ch->sq->tail, __ATOMIC_ACQUIRE) != ch->taken;
}

/* Returns what it has cost: more for one that moves much, since others wait meanwhile. */
static unsigned serve_one(struct chan *ch, uint64_t now, bool *waits)
{
    struct request req = {0};
    struct proto_cqe cqe = {0};
    const char *bad;
    int rc;

    /* The only read of the entry: the barrier keeps the compiler from coming back for more. */
    memcpy(&req.e, &ch->sq->e[ch->taken % PROTO_RING], sizeof(req.e));
    __asm__ volatile("" : : : "memory");
    ch->taken++;
    bad = atomic_load(&ch->hit) ? "memory that cannot be read" : fault(ch, &req.e);
    if (bad) {
        atomic_store(&ch->peer->bad, bad);
        return 1;
    }
    if (req.e.seq > ch->last_seq)
        ch->last_seq = req.e.seq;
    req.push = ch->push + req.e.push_off;
    req.reply = ch->reply + req.e.reply_off;
    rc = dispatch(ch->peer->session, &req, false, &cqe);
    if (rc == -EINPROGRESS) {
        tell_taken(ch);
        hand_over(ch, &req, now);
        *waits = true;
        return 1;
    }
    *waits = false;
    if (rc < 0)
        cqe.result = rc;
    answer(ch, &req.e, &cqe, now, now, true);
    dispatch_posted(ch->peer->session, req.e.seq);
    return 1 + (req.e.push_len + cqe.reply_len) / COST_BYTES;
}

unsigned chan_serve(struct chan *ch, unsigned budget, unsigned *requests, uint32_t *place)
{
    uint32_t tail = __atomic_load_n(&ch->sq->tail, __ATOMIC_ACQUIRE);
    unsigned cost = 0;
    bool waits = false;
    uint64_t now;

    if (tail == ch->taken)
        return 0;
    if (tail - atomic_load_explicit(&ch->answered, memory_order_acquire) > PROTO_RING) {
        atomic_store(&ch->peer->bad, "more entries than the ring has");
        return 0;
    }
    now = base_mono_ns();
    *place = __atomic_load_n(&ch->sq->place, __ATOMIC_RELAXED);
    while (ch->taken != tail && cost < budget &&
           !atomic_load_explicit(&ch->peer->bad, memory_order_relaxed)) {
        cost += serve_one(ch, now, &waits);
        ++*requests;
    }
    if (waits)
        *place = RING_WAITS;
    return cost < budget ? cost : budget;
}
