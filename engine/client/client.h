/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session with the engine: libc only, for the Python and C API and for interception.
 *
 * A client is one process's session; a channel is one thread's way into it (its ring, its data
 * areas), made at the thread's first call and gone with the thread. A call submits one entry and
 * waits: it spins a little (adaptive), then sleeps on an eventfd. When the engine goes away the
 * client takes its session up again with the next worker, tells it what it holds, and submits what
 * was not answered once more; callers see only the delay. -EOWNERDEAD after CLIENT_RESUME_MS.
 *
 * fork: a child must call client_forked on every client it inherited and open its own. Nothing here
 * prints, exits, or touches signal dispositions. A call from a signal handler that interrupted
 * another call of the same thread is -EDEADLK; any other is served. errno is not touched.
 */
#ifndef DFE_CLIENT_CLIENT_H
#define DFE_CLIENT_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "client/proto.h"

#define CLIENT_RESUME_MS 60000u

struct client;

struct client_opts {
    size_t size;          /* sizeof */
    const char *path;     /* of the unix socket */
    uint32_t role;        /* PROTO_ROLE_* */
    uint32_t push_bytes;  /* of each channel; 0: PROTO_PUSH_BYTES */
    uint32_t min_fd;      /* own descriptors are at least this (interception: high ones); 0: any */
    uint32_t no_resume;   /* a lost engine is -EOWNERDEAD at once */
    /* After a resumed session, before waiting calls go on, on the thread that found out: opens
     * handles again, takes references again (client_call works inside). 0 or a negative errno,
     * which ends the session. */
    int (*resumed)(struct client *client, void *arg);
    void *arg;
};

int client_open(const struct client_opts *opts, struct client **out);
void client_close(struct client *client);
void client_forked(struct client *client); /* in the child: frees, speaks to nobody */
/* The same where the fork came in the middle of a call of this thread, by a signal's handler: the
 * call may go on in the child, and ends with -EOWNERDEAD. Nothing is freed. */
void client_abandoned(struct client *client);
uint64_t client_epoch(const struct client *client); /* changes with every new worker */

/* One request. In: everything of sqe but seq, ctl, push_off, push_len, reply_off, reply_cap, which
 * are filled in here; push: up to 4 pieces, together at most client_push_max(); reply_cap at most
 * PROTO_REPLY_BYTES. Out: *cqe, and *reply: cqe->reply_len bytes that stay until this thread's next
 * call. Returns cqe->result, or -EOWNERDEAD, -ENOMEM, -E2BIG. With a negative result *reply is the
 * reason in words (not terminated). */
struct client_call {
    struct proto_sqe sqe;
    const struct iovec *push;
    unsigned n_push;
    size_t reply_cap;
    struct proto_cqe cqe;
    const void *reply;
    /* PROTO_CHECK: called for completions that come before the last; may be NULL */
    void (*progress)(uint64_t done, uint64_t total, void *arg);
    void *arg;
};
int64_t client_do(struct client *client, struct client_call *call);
size_t client_push_max(const struct client *client);

/* -- leases: reading without a message -------------------------------------------------------- */

/* Copies up to len bytes at off of what the lease covers, if nothing has changed since it was
 * given and the record still is its file's: the count (0: end of file), or -ESTALE (ask for
 * another). Never reads past the end of the file. The extent must be mapped: client_map_extent. */
ssize_t client_lease_read(struct client *client, const struct proto_lease *lease, uint64_t off,
                          void *dst, size_t len);
/* The record as it is at one moment. -ESTALE: it is another file's. */
int client_record_read(struct client *client, uint32_t record, uint64_t ino,
                       struct proto_record *out);
/* Where the extent is mapped (maps it when needed: one message on the socket), or NULL: not to be
 * had (other read domain; gone). */
const void *client_map_extent(struct client *client, uint32_t extent, uint64_t stamp);

/* Lets go of extents of earlier epochs, which stay mapped for the sake of loans: for callers that
 * hold none. */
void client_forget_old(struct client *client);
/* Before client_forked, where loans are out: their memory stays mapped in the child, for good. */
void client_leave_extents(struct client *client);

/* Shows the engine that this process has `fd` open with F_GETFL's `flags`: rights by descriptor. */
int client_prove(struct client *client, uint32_t handle, uint64_t ino, int fd, int flags);

#endif
