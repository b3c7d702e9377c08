/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of sessions, executed: knows neither sockets nor rings, so that it can be fuzzed.
 *
 * A host is an open pool and what its sessions share: open containers and file systems (one for all
 * sessions), coherence with the kernels of mounts. A session is one client: who it is, its handles,
 * its references, loans. Nothing that a request says can harm the host: every field is checked
 * here, the push area is read once and never trusted to stay the same.
 *
 * Rights: roles API and MOUNT are for the owner of the pool (the uid this process runs as) and
 * root; session_new refuses others. Role IL is for anybody: file systems by label, data calls by
 * inode, which anybody but those two shows a descriptor of first (session_prove).
 *
 * Threads: any, one at a time for each request; session_end waits for what runs.
 */
#ifndef DFE_SERVICE_DISPATCH_H
#define DFE_SERVICE_DISPATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/keep.h"
#include "client/proto.h"

struct dfe_pool;
struct dfe_service_info;
struct host;
struct session;

struct host_opts {
    size_t size;
    const char *path;          /* of the pool */
    uint64_t arena_bytes, dirty_bytes;
    bool no_hugepages;
    struct keep *keep;         /* NULL: what is not on the device dies with the process */
    uint32_t orphan_grace_ms;  /* 0: 30,000 with keep */
    uint64_t inval_ms;         /* a mount that does not answer for so long is let go; 0: 10,000 */
    void *roll;                /* ROLL_BYTES (roll.h) that outlive the process, or NULL */
};

int host_open(const struct host_opts *opts, struct host **out);
/* The end is near: nobody waits any more for mounts that have not come back. */
void host_dismiss(struct host *host);
int host_close(struct host *host); /* every session has ended */
struct dfe_pool *host_pool(struct host *host);
/* The service's own part of the answer to PROTO_SERVICE_QUERY. */
void host_set_info(struct host *host, void (*fn)(struct dfe_service_info *info, void *arg),
                   void *arg);
int host_tables(struct host *host, int *lines_fd, uint32_t *lines, int *records_fd,
                uint32_t *records);

struct session_who {
    uint32_t role; /* PROTO_ROLE_* */
    uid_t uid;
    gid_t gid;
    pid_t pid; /* 0: not known */
};

/* id: known to keep's tags. -EACCES: this role is not for this user. */
int session_new(struct host *host, const struct session_who *who, uint64_t id,
                struct session **out);
/* Gives back all that the session held, files it kept open included. (waits) */
void session_end(struct session *session);
/* A descriptor of the extent, if the session's user may read that domain. -EACCES, -ESTALE. */
int session_extent(struct session *session, uint32_t extent, uint64_t stamp);
/* The client showed `fd`, which fstat and F_GETFL describe: the inode's rights for this session. */
int session_prove(struct session *session, uint32_t handle, uint64_t ino, int fd);

struct request {
    struct proto_sqe e;   /* a private copy */
    const void *push;     /* e.push_len bytes; the client may change them at any time */
    void *reply;          /* e.reply_cap bytes */
    void (*progress)(uint64_t done, uint64_t total, void *arg); /* PROTO_CHECK; may be NULL */
    /* The answer to a request that dispatch() returned DISPATCH_LATER for: once, from any thread,
     * perhaps before dispatch() has returned, at the latest within session_end. Must not wait, nor
     * call what is declared here. The request and its memory stay until then. NULL: dispatch()
     * waits in place, where it may. */
    void (*later)(struct request *req, const struct proto_cqe *out);
    void *arg;
};

/* PROTO_INVAL_NEXT without news, which may take for ever and is not to cost a thread. */
#define DISPATCH_LATER 1

/* Executes it: 0 and *out (all but seq, reply_off and the times), DISPATCH_LATER, or with may_wait
 * false -EINPROGRESS: nothing has happened, do it on a thread that may wait. One that may wait also
 * waits for mounts (their kernels forget what is about to change), and they for requests of their
 * own: whoever has few threads keeps some for mounts. */
int dispatch(struct session *session, struct request *req, bool may_wait, struct proto_cqe *out);
/* Is it a change of a file system's, which may wait for mounts? */
bool dispatch_changes(uint32_t op);
/* The answer to a request has been posted: what keeps it from being done twice may go. */
void dispatch_posted(struct session *session, uint64_t seq);

#endif
