/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the session client.
 *
 * Invariants:
 * 1. A channel's memory and descriptors are used by its thread alone; others only take them away
 *    (client_close, client_forked), when by contract no call is running.
 * 2. A channel struct lives as long as its client (client->channels) or its thread
 *    (thread->channels) knows it: refs. It holds a reference of its client.
 * 3. client->life counts connections. A channel of another life is stale: its thread makes it anew
 *    before it submits.
 * 4. Lists that client_forked walks (channels, extents) change by one store of a pointer, so that a
 *    fork at any instruction leaves them whole.
 * 5. Memory that client_lease_read may be reading is never unmapped before client_close: what has
 *    served is replaced by zeros in place, which no lease matches.
 *
 * Locks: client->lock guards the socket, the channel list and all that makes and retires; signals
 * are off while it is held. Nothing else is taken under it. The hot path of client_do takes none.
 */
#ifndef DFE_CLIENT_INT_H
#define DFE_CLIENT_INT_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "client/client.h"
#include "client/spin.h"

#define CLIENT_BUCKETS 256u   /* of the extent table */
#define CLIENT_TRIES 1000u    /* looks at a record that is being changed */

/* The two shared tables of one life. Readers take the pointer once. */
struct tables {
    struct tables *older;
    const struct proto_line *lines;
    const struct proto_record *records;
    uint32_t n_lines, n_records;
};

/* One extent of the arena. base NULL: the engine would not give it. A loan in an extent of an
 * earlier life stays readable; leases there are dead. */
struct extent {
    struct extent *next;
    uint64_t life;
    uint64_t stamp;
    uint32_t id;
    atomic_bool gone; /* zeros: another took its number, or client_forget_old */
    size_t len;
    const uint8_t *base;
};

/* The engine's eventfd: one a life, shared by the life's channels. */
struct bell {
    atomic_uint refs;
    uint64_t life;
    int fd;
};

struct channel {
    struct channel *next;        /* client->channels */
    struct channel *thread_next; /* thread->channels */
    struct client *client;
    atomic_uint refs;
    bool linked;                 /* in client->channels; client->lock */
    uint64_t life;               /* 0: has no memory */
    uint32_t id;
    uint32_t tail, head;         /* what sq->tail and sq->cq_head are */
    struct spin spin;
    struct proto_sq *sq;
    uint8_t *push;
    const struct proto_cq *cq;
    const uint8_t *reply;
    size_t sq_bytes, cq_bytes, reply_bytes;
    struct bell *bell;
    int wake_fd;
};

/* What one thread has, for all clients of the process. */
struct thread {
    struct channel *channels;
    volatile sig_atomic_t busy; /* a signal handler's call in the middle of another is refused */
};

enum client_state { CLIENT_UP, CLIENT_RESUMING, CLIENT_DEAD };

struct client {
    struct client_opts opts;
    char path[108]; /* as long as a socket's name may be */
    uint32_t push_bytes;
    pid_t pid;
    atomic_uint refs;
    atomic_int state;
    atomic_ulong life, epoch, seq;
    pthread_mutex_t lock;
    _Atomic pthread_t resumer;   /* while CLIENT_RESUMING */
    uint64_t session, secret;
    int sock;                    /* -1 while there is none */
    uint32_t next_channel;
    struct channel *channels;
    struct bell *bell;           /* of this life, or NULL */
    struct tables *_Atomic tables;
    struct extent *_Atomic extents[CLIENT_BUCKETS];
};

/* A connection that has been welcomed. */
struct link {
    int sock, fds[2];
    struct proto_welcome welcome;
};

/* -- link.c: the socket. */
/* May take wait_ms, and wants no lock. */
int link_connect(struct client *c, uint64_t session, uint64_t secret, unsigned wait_ms,
                 struct link *out);
/* Makes the connection the client's. This and what follows with the lock held, or while nobody else
 * knows the client. */
int link_take(struct client *c, const struct link *l);
void link_lose(struct client *c);
/* Sends m (and fd, if not -1) and waits for the answer with at most max descriptors. -EPIPE: the
 * engine has gone. */
int link_ask(struct client *c, const struct proto_msg *m, int fd, struct proto_answer *a, int *fds,
             unsigned max, unsigned *n);
void link_tell(struct client *c, const struct proto_msg *m);
/* Maps memory that the engine made, once it is sure that it cannot shrink. Takes fd. */
int link_map(int fd, size_t bytes, const void **out);

/* -- channel.c */
struct thread *thread_get(bool make);
/* This thread's channel, of the current life; waits for a resumption by another thread. */
int channel_get(struct client *c, struct thread *t, struct channel **out);
void channel_drop_memory(struct channel *ch);
/* In a forked child: what was answered so far can still be taken; nothing more is sent or heard. */
void channel_cut(struct channel *ch);
void channel_put(struct channel *ch);
void client_put(struct client *c);
void client_lock(struct client *c, uint64_t *saved);
void client_unlock(struct client *c, const uint64_t *saved);

/* -- await.c */
void await_init(struct channel *ch);
/* Waits for the next completion: 0, or -EPIPE: the engine has gone. */
int await_completion(struct channel *ch, struct proto_cqe *out);
void await_ring(struct channel *ch);

/* -- resume.c */
/* The connection of `life` is lost: returns when there is another, or -EOWNERDEAD. */
int client_lost(struct client *c, uint64_t life);
/* Waits while another thread resumes: 0 or -EOWNERDEAD. */
int client_wait_up(struct client *c);

#endif
