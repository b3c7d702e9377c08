/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may do what with an inode: sessions of interception are anybody's.
 *
 * Root and the owner of the pool, who can read its device, may use any file. Others show their
 * descriptor first: the bits of an inode are not enough, since it is named by its number, and the
 * kernel would have asked for a way to it: a mount that is open to them, and directories.
 *
 * Decisions are kept for as long as nobody changes rights in the file system: everything that does
 * goes through the dispatcher, which counts it (host_cont.rights) after it has been applied. What
 * was decided while the change was under way has the old count and is not believed.
 */
#ifndef DFE_SERVICE_RIGHTS_H
#define DFE_SERVICE_RIGHTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct host_cont;
struct session;

enum { RIGHT_READ = 1, RIGHT_WRITE = 2, RIGHT_EITHER = 4 };

/* Decisions that a session remembers, and inodes that it has proved; others are asked for again. */
#define RIGHTS_SLOTS 256u
#define RIGHTS_PROOFS 1024u

struct rights_slot {
    const struct host_cont *hc;
    uint64_t ino;
    unsigned long count;
    uint8_t may;   /* RIGHT_READ, RIGHT_WRITE */
    uint8_t plain; /* a write has nothing to take away: no setuid, no setgid, no capabilities */
    uint8_t regular;
};

struct rights_proof {
    const struct host_cont *hc;
    uint64_t ino;
    uint8_t may;
};

struct rights {
    pthread_mutex_t lock;
    struct rights_slot slots[RIGHTS_SLOTS];
    struct rights_proof proofs[RIGHTS_PROOFS];
    unsigned next_proof; /* the oldest goes first */
};

void rights_open(struct rights *r);
void rights_close(struct rights *r);

/* need: one of RIGHT_*. 0, or -EACCES, or the errno of looking. -EINPROGRESS with DFE_NOWAIT. */
int rights_check(struct session *s, struct host_cont *hc, uint64_t ino, unsigned need,
                 unsigned flags);
/* Before a change of the data by somebody other than root: what the kernel would take away. */
int rights_strip(struct session *s, struct host_cont *hc, uint64_t ino, unsigned flags);
/* The descriptor's holder may do with the inode what the descriptor can. */
void rights_prove(struct session *s, struct host_cont *hc, uint64_t ino, unsigned may);
/* The session does not use this file system any more. */
void rights_forget(struct session *s, const struct host_cont *hc);
/* May the session read all data of the container? */
bool rights_window(const struct session *s, const struct host_cont *hc);

#endif
