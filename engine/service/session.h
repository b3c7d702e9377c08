/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session: who it is, its handles, what it has been lent.
 *
 * A handle has `users`: requests under way, those that wait for news included. CLOSE and the end of
 * the session wait until there are none. session->lock guards the table of handles and all counts
 * of users; nothing is called under it.
 */
#ifndef DFE_SERVICE_SESSION_H
#define DFE_SERVICE_SESSION_H

#include "client/proto.h"
#include "service/cohere.h"
#include "service/host.h"
#include "service/loans.h"
#include "service/rights.h"

/* Requests whose tags are kept until they are answered: places for their numbers. */
#define SESSION_TAGS 256u

enum handle_kind { HANDLE_NONE, HANDLE_CONT, HANDLE_FS };

struct handle {
    enum handle_kind kind;
    unsigned users;
    bool closing;
    struct host_cont *hc;
    /* file systems: */
    struct refs refs;
    _Atomic(struct face *) face; /* after FS_MOUNT */
};

struct session {
    struct host *host;
    uint64_t id;
    uint32_t role;
    uid_t uid;
    gid_t gid;
    pid_t pid;
    pthread_mutex_t lock;
    pthread_cond_t cond; /* users or running became less */
    unsigned running;    /* requests under way */
    bool ending;
    struct handle *handles[PROTO_HANDLES];
    struct rights rights;
    struct loans loans;
    /* Where two numbers meet in a place, the session takes any request for one with a tag. */
    _Atomic uint64_t tags[SESSION_TAGS];
    atomic_bool all_tagged;
};

/* A request begins and ends; -ESHUTDOWN: the session is ending. */
int session_enter(struct session *s);
void session_leave(struct session *s);

/* The handle with one user more, or -EBADF. */
int session_use(struct session *s, uint32_t number, enum handle_kind kind, struct handle **out);
void session_unuse(struct session *s, struct handle *h);

/* Takes the number for a handle that is not there yet: -EEXIST, -EBADF (number too large). */
int session_reserve(struct session *s, uint32_t number);
/* The handle that was reserved, or NULL: gives the number back. */
void session_install(struct session *s, uint32_t number, struct handle *h);
/* Closes it when nobody uses it any more. (waits) */
int session_close(struct session *s, uint32_t number);

#endif
