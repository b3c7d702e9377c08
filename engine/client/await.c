/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for the engine: spin a little where that has paid, then sleep on the wake socket.
 *
 * Neither side can miss the other. The client stores `sleeping`, fences, looks at the tail; the
 * engine stores the tail, fences, looks at `sleeping`: of two such threads at least one sees what
 * the other stored (store buffering, forbidden by the fences). The same with the roles exchanged
 * when the engine sleeps. A byte that comes too late, or twice, only costs a further look.
 *
 * The wake socket's other end is held by the engine's worker alone, so that its death ends the
 * sleep, too. It is a socket and not an eventfd of the client's, since the engine's write to a full
 * eventfd could be made to block by whoever shares its description; a send with MSG_DONTWAIT never.
 */
#include <sched.h>

#include "client/client_int.h"
#include "client/sys.h"

void await_init(struct channel *ch)
{
    cpu_set_t set;
    long rc = sys_call(SYS_sched_getaffinity, 0, sizeof(set), (long)&set, 0, 0, 0);

    /* -EINVAL: more processors than the set has room for. */
    spin_init(&ch->spin, rc > 0 ? (unsigned)CPU_COUNT_S((size_t)rc, &set) : 2);
}

void await_ring(struct channel *ch)
{
    uint64_t one = 1;

    /* Between the store of the tail and the load of `sleeping`: see above. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&ch->cq->sleeping, __ATOMIC_RELAXED))
        sys_call(SYS_write, ch->bell->fd, (long)&one, sizeof(one), 0, 0, 0);
}

static inline bool arrived(const struct channel *ch)
{
    /* The completion's cache line comes over together with the tail's, not after it. */
    __builtin_prefetch(&ch->cq->e[ch->head % PROTO_RING]);
    /* Acquire: the completion and the reply were written before the tail. */
    return __atomic_load_n(&ch->cq->tail, __ATOMIC_ACQUIRE) != ch->head;
}

static bool spin(struct channel *ch)
{
    struct spin_time t = {0};

    if (!spin_pays(&ch->spin, spin_place(), __atomic_load_n(&ch->cq->place, __ATOMIC_RELAXED)))
        return false;
    do
        if (arrived(ch)) {
            spin_won(&ch->spin);
            return true;
        }
    while (spin_on(&t));
    spin_lost(&ch->spin);
    return false;
}

/* 0: something may have come. */
static int sleep_once(struct channel *ch)
{
    char bytes[64];
    long rc = 1;

    __atomic_store_n(&ch->sq->sleeping, 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (!arrived(ch))
        rc = sys_call(SYS_recvfrom, ch->wake_fd, (long)bytes, sizeof(bytes), 0, 0, 0);
    __atomic_store_n(&ch->sq->sleeping, 0, __ATOMIC_RELAXED);
    return rc > 0 || rc == -EINTR || rc == -EAGAIN ? 0 : -EPIPE;
}

/* 0, or -EPIPE: the engine has gone. */
static int sleep_until(struct channel *ch)
{
    bool learns = ch->spin.sleeps > 0;
    uint64_t begun = learns ? base_mono_ns() : 0;
    int rc;

    do
        rc = sleep_once(ch);
    while (rc == 0 && !arrived(ch));
    if (learns)
        spin_slept(&ch->spin, base_mono_ns() - begun);
    return rc;
}

int await_completion(struct channel *ch, struct proto_cqe *out)
{
    int rc = 0;

    if (!arrived(ch) && !spin(ch)) {
        rc = sleep_until(ch);
        /* What was answered before the engine went is an answer. */
        if (rc < 0 && !arrived(ch))
            return rc;
    }
    *out = ch->cq->e[ch->head % PROTO_RING];
    ch->head++;
    /* The engine is looking at that cache line: a last completion's place is given back together
     * with the next request's tail, see submit(). */
    if (out->flags & PROTO_CQE_MORE)
        __atomic_store_n(&ch->sq->cq_head, ch->head, __ATOMIC_RELEASE);
    return 0;
}
