/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the worker: clients, their channels, the ring thread.
 *
 * Invariants:
 * 1. The main thread alone makes, lists and frees clients and channels, and counts what users have.
 * 2. The ring thread holds ring->lock while it looks at channels; whoever changes what it looks at
 *    takes the lock through ring_lock. A client whose `bad` or `gone` is set is passed over.
 * 3. An entry is copied once; only the copy is looked at. A channel has at most PROTO_RING entries
 *    between sq->tail and the last completion; more is nonsense and ends the session.
 * 4. A client ends in this order: the ring thread has let go of it; queued requests are dropped;
 *    running ones are waited for; the session ends; memory and descriptors go; it is freed. So no
 *    request sees its session or its channel go away.
 * 5. Nothing here waits for a client: sends are MSG_DONTWAIT, the bell is never read (edge-
 *    triggered), strangers' descriptors are closed on threads that may hang.
 *
 * Locks: ring->lock, then channel->lock, then the pool's. dispatch() runs under ring->lock when it
 * may not wait, and for INVAL_NEXT, which parks at once; else under none.
 */
#ifndef DFE_SERVICE_WORKER_H
#define DFE_SERVICE_WORKER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "base/list.h"
#include "client/spin.h"
#include "service/dispatch.h"
#include "service/pool.h"

/* Limits, PROTOCOL.md. Strangers are users other than the pool's owner and root. */
#define WORKER_HELLOS 8u             /* connections of a user that have not said hello */
#define WORKER_HELLO_MS 5000u
#define WORKER_SESSIONS 1024u        /* of the owner */
#define WORKER_STRANGER_SESSIONS 64u
#define WORKER_CHANNELS 512u         /* of a session */
#define WORKER_USER_CHANNELS 8192u
#define WORKER_STRANGER_CHANNELS 1024u
#define WORKER_USER_BYTES (64ull << 30)
#define WORKER_STRANGER_BYTES (4ull << 30)
#define WORKER_ENDED 1024u           /* ids of ended sessions that are remembered */
#define WORKER_ODD_FDS 16u           /* a session's descriptors that wait to be closed */
#define WORKER_STOP_MS 3000u         /* for those that hang in it, when the worker ends */

struct worker;

struct chan {
    struct list link;   /* peer->ring_chans; ring->lock */
    struct chan *next;  /* peer->chans */
    struct peer *peer;
    uint32_t id;
    const struct proto_sq *sq;
    const uint8_t *push;
    uint32_t push_bytes;
    size_t sq_bytes;
    struct proto_cq *cq;
    uint8_t *reply;
    size_t cq_bytes;
    int wake_fd;
    atomic_int hit;      /* SIGBUS in its memory */
    atomic_uint users;   /* tasks on their way, or with the dispatcher */
    bool closing;        /* CHANNEL_CLOSE came; main thread */
    /* ring thread: */
    uint32_t taken;
    uint64_t last_seq;
    /* lock: */
    pthread_mutex_t lock;
    uint32_t posted;     /* completions in the ring so far */
    atomic_uint answered; /* ... that were a request's last */
    struct list tasks;   /* free ones */
    struct task *all_tasks;
};

/* A request that waits: on a thread of the pool, or (INVAL_NEXT) in the dispatcher. */
struct task {
    struct pool_job job;
    struct chan *chan;
    struct request req;
    uint64_t taken_ns;
};

struct user {
    struct list link;
    uid_t uid;
    unsigned refs; /* its clients, those included that have ended and are not freed yet */
    unsigned hellos, sessions, channels;
    uint64_t bytes;
    uint64_t told_ns; /* when the log last had a line about this user's clients */
};

enum peer_state { PEER_HELLO, PEER_UP, PEER_ENDING };

struct watch { /* what epoll tells about */
    enum { WATCH_LISTEN, WATCH_SIGNAL, WATCH_KICK, WATCH_SOCKET, WATCH_PROCESS } what;
    struct peer *peer;
};

struct peer { /* one client */
    struct list link;         /* worker->peers, then worker->ended */
    struct worker *worker;
    struct user *user;
    enum peer_state state;
    struct watch on_socket, on_process;
    int fd, pid_fd, bell_fd;
    uint64_t hello_until_ns;
    struct session_who who;
    uint64_t id;
    struct session *session;
    struct chan *chans;
    unsigned n_chans, n_closing;
    uint64_t bytes;           /* of client memory, charged to the user */
    struct list ring_link;    /* ring->peers; ring->lock */
    struct list ring_chans;
    const char *_Atomic bad;  /* why it must go, or NULL */
    struct pool_lane requests, changes, longs, odds;
    struct pool_job end_job;
    atomic_uint odd_fds;      /* strangers' descriptors that wait to be closed */
    atomic_uint proofs;       /* of them, those that are looked at */
};

#define RING_WAITS UINT32_MAX /* no processor's place */

struct ring {
    struct worker *worker;
    pthread_t thread;
    pthread_mutex_t lock, gate;
    atomic_bool wanted, stop;
    struct list peers;
    bool asleep;
    uint32_t client_place; /* of the client served last, or RING_WAITS */
    struct spin spin;
    int epoll_fd, kick_fd;
};

struct worker {
    struct host *host;
    int listen_fd, epoll_fd, signal_fd, kick_fd;
    struct watch on_listen, on_signal, on_kick;
    struct ring ring;
    struct pool pool;
    struct pool_lane ends;
    struct list peers, users;
    pthread_mutex_t lock;     /* ended */
    struct list ended;        /* peers, to be freed by the main thread */
    uint64_t epoch;
    int lines_fd, records_fd;
    uint32_t lines, records;
    uint64_t past[WORKER_ENDED]; /* sessions that this worker has ended */
    unsigned n_past;
    bool stopping, deaf;      /* deaf: no descriptors left, does not accept for a moment */
    uint64_t deaf_until_ns, idle_since_ns, stop_ns;
    uint64_t started_ns;
    unsigned restarts;
    atomic_ulong n_sessions, n_channels, n_requests, n_sleeps, n_bad;
};

/* -- worker.c */
void worker_wake(struct worker *w);
uint64_t worker_secret(uint64_t session);

/* -- ring.c */
int ring_open(struct ring *r, struct worker *w);
void ring_close(struct ring *r);
void ring_lock(struct ring *r);
void ring_unlock(struct ring *r);
int ring_add_peer(struct ring *r, struct peer *p);
void ring_remove_peer(struct ring *r, struct peer *p);
void ring_add_chan(struct ring *r, struct chan *ch);
void ring_remove_chan(struct ring *r, struct chan *ch);

/* -- channel.c */
/* Takes fd: the client's memory. wake_fd and cq_fd are for the client. */
int chan_open(struct peer *p, uint32_t id, int fd, struct chan **out, int *cq_fd, int *wake_fd);
void chan_close(struct chan *ch); /* nothing of it runs */
bool chan_busy(struct chan *ch); /* the ring thread has let go of it, but requests run */
/* Is there something to take? */
bool chan_pending(const struct chan *ch);
/* Takes and executes entries, and counts them, while what they cost is within the budget. Returns
 * the cost, and in *place, if there were any, where the client ran; RING_WAITS: the last one went
 * to another thread. Sets peer->bad. */
unsigned chan_serve(struct chan *ch, unsigned budget, unsigned *requests, uint32_t *place);

/* -- socket.c */
void socket_accept(struct worker *w);
void socket_event(struct peer *p);
/* Ends the session on another thread; bad: it was the client's fault. */
void peer_end(struct peer *p, const char *bad);
bool peer_free(struct peer *p); /* after it has come through worker->ended; false: not yet */
void peer_sweep(struct peer *p); /* frees channels that were busy when they were closed */

/* -- users.c */
struct user *user_get(struct worker *w, uid_t uid); /* a reference, which user_put drops */
void user_put(struct worker *w, struct user *u);
void user_forget_all(struct worker *w);
bool user_may_connect(const struct user *u);
int user_charge_session(struct user *u);
int user_charge_channel(struct user *u, unsigned in_session, uint64_t bytes);
void user_return_channel(struct user *u, uint64_t bytes);

#endif
