/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of coherence share: faces, their queues, what is remembered of changes. */
#ifndef DFE_SERVICE_COHERE_INT_H
#define DFE_SERVICE_COHERE_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "service/cohere.h"

/* Inodes whose last writes are known; of more the older ones count as written. */
#define WRITERS 4096u
/* After a restart: names that are remembered for mounts that come back. */
#define RENAMED 4096u
/* That long mounts may come back to a new engine. */
#define LATELY_NS 60000000000ull
/* A mount that comes back answers only when its client has taken up everything again: a call that
 * its kernel makes meanwhile, dirty pages of the last invalidation among them, waits for that. */
#define RETURN_NS 60000000000ull

/* A change that waits for an item. */
struct ask {
    struct list link;
    struct cohere_change *change;
};

struct item {
    struct list link; /* face->queued or face->sent */
    struct list asks; /* none: nobody waits */
    bool told;        /* it was queued without anybody who waits */
    struct dfe_inval inval;
};

struct face {
    struct cohere *co;
    struct list link;
    struct refs *held; /* NULL: a stand-in's */
    struct roll_mount who;
    bool stopped;
    atomic_bool lost;
    bool stand;     /* a stand-in: nobody has come for it yet */
    int pid_fd;     /* its process, -1: not known */
    unsigned place; /* on the roll */
    uint64_t next_id;
    bool back;       /* its kernel knows what this object has never heard of */
    bool holds_all;  /* it has not yet said all that its kernel holds ... */
    bool untold;     /* ... and never will: something of it could not be noted */
    uint64_t alive_ns;    /* when it last said that something is done, or was about to begin */
    struct list queued, sent;
    unsigned n_told;
    struct face_waiter *parked;
};

struct writer {
    uint64_t ino, at_ns;
};

/* When inodes were changed last. */
struct writers {
    struct writer slots[WRITERS];
    uint64_t displaced_ns; /* the latest change that has lost its place */
};

struct renamed {
    uint64_t dir;
    uint32_t name_len;
    char name[256];
};

struct cohere {
    pthread_mutex_t held; /* cohere_hold */
    pthread_mutex_t names[COHERE_NAMES];
    pthread_mutex_t lock;
    pthread_cond_t cond; /* a change has nothing left */
    uint64_t inval_ns;
    atomic_uint n_faces;
    struct list faces;
    unsigned n_stands;
    struct roll *roll; /* NULL: there is none */
    atomic_ulong changes;
    uint64_t generation;
    struct writers wrote;   /* data, by others than mounts */
    struct writers changed; /* anything, by anybody: for mounts that come back */
    uint64_t opened_ns;
    struct renamed *renamed; /* RENAMED, made when needed */
    uint64_t n_renamed;
};

/* All under the lock. Nothing is asked of it any more: who waits for it goes on. wake: for wake_all
 * after the unlock. */
void face_drain(struct face *face, struct list *wake);
void face_lose(struct face *face, const char *why, struct list *wake);
struct face *face_new(struct cohere *co, const struct roll_mount *who, struct refs *held);
void face_drop(struct face *face);

/* -- stand-ins: cohere_stand.c ---------------------------------------------------------------- */

/* Drops those whose process has died or whose session has ended; lets go of those of which nobody
 * can tell whether they live, and whose time is up. */
void stands_sweep(struct cohere *co);
/* When to look for that again, if before until_ns. */
uint64_t stands_due(const struct cohere *co, uint64_t until_ns);
/* The mount has come for it, and what is queued. */
void stand_taken(struct face *face, const struct roll_mount *who, struct refs *held);

#endif
