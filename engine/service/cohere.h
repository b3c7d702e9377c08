/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coherence with the kernels of mounts, one object a file system: knows no sockets and no sessions.
 *
 * A face is a mount: a kernel that caches. What it may hold is marked in the table of the inodes it
 * holds (dispatch_refs.h), before the engine is asked for what goes to it. Whoever else changes
 * something that is marked does it in five steps: invalidate and wait until the faces say that it
 * is done; apply; count the change; invalidate again what is marked by now, and wait; answer.
 *
 * Why nothing old stays in a kernel once a change has been answered. Consider a reply R to a face,
 * with data that the engine read before the change was applied.
 *
 *  1. R names an inode that the request named (READ, GETATTR, names of a directory). Its mark was
 *     set before the engine read. If the first look for marks saw it, the first invalidation was
 *     sent after R's request had left the kernel. If the first look was before the mark, the second
 *     one, after the change was applied, is later than the engine's read, hence than the mark, and
 *     the second invalidation is sent. Either way an invalidation reaches the kernel after R's
 *     request left it; and a kernel does not keep what a request brings that it sent before an
 *     invalidation: a page is locked from before the READ until the reply, and an invalidation
 *     waits for the lock; attributes carry the kernel's count of changes, which an invalidation
 *     moves; a name is looked up and invalidated under the directory's lock. That is why an
 *     invalidation must come from a thread that no request of the mount waits for, and why no
 *     request of a mount ever waits for its own invalidation here.
 *  2. R names an inode that the request did not (LOOKUP, READDIR with attributes, creations). It
 *     can be marked only when the engine has answered. So after the marking the count of changes is
 *     compared with that before the engine was asked. A change whose second look came before the
 *     mark has been counted by then (it counts first, then looks): if its application came after
 *     the engine's read, the counts differ, and the attributes are asked for again or declared
 *     shared. A change whose second look comes after the mark invalidates. The kernel may not know
 *     the inode when that arrives, because R is still on its way: so a mount acknowledges an
 *     invalidation of an inode that its kernel does not know only when the requests that it had in
 *     hand have been answered. See dfe_fs_inval_next.
 *
 * A change that runs from memory alone has it simpler: no mark is set while it looks and is applied
 * (cohere_hold), so if nothing is marked, nothing has to be invalidated, and else it is done again
 * as above on a thread that may wait. What is on its way to a kernel without a mark, the count
 * tells.
 *
 * The first invalidation is there for dirty pages of mmaps: they are written back before the
 * change, and so do not come after it.
 *
 * What a change holds while it waits for faces (cohere_wait), and why none waits for itself:
 *
 *  - Locks: none, neither of the engine (a change is applied between two waits, not during one) nor
 *    of the service (the ring thread never waits: what would, goes to a thread of the pool without
 *    ring->lock; cohere_hold and the names are held only around the application). The uses of its
 *    session, handle and channel it does hold: whoever ends those stops the faces of the session
 *    first, and a change that waits for another's face ends with that face's time.
 *  - Of its own kernel a mount's change holds all that the system call locked: a directory, pages
 *    that are written back. An invalidation of that inode waits for it in that kernel. So a mount
 *    that writes is waited for by sessions, and itself waits for mounts that only read, of which
 *    the others may be many but which change nothing: their kernels hold locks for READ, LOOKUP,
 *    GETATTR alone, and these wait for no face. A second one that writes would close the circle:
 *    face_open refuses it.
 *  - Threads: the requests of mounts have their own (pool.h), so that sessions which wait for a
 *    mount cannot keep its pages from being written back; INVAL_NEXT needs none.
 *  - A client that takes its session up again makes no change in between; its other threads wait
 *    for it, and changes wait for them for as long as RETURN_NS. They do so from the new worker's
 *    first moment: a stand-in is there for the mount, and what a session changes before the mount
 *    is back is answered when the mount has heard of it. What that needs is nothing that the change
 *    holds: opening handles, taking references and asking for news wait for no face.
 *
 * No mount's word is needed for another's coherence: one that asks for news too soon, or says
 * "done" of what it has not done, leaves old things in its own kernel; one that is slow costs time.
 *
 * Locks: one inside, held for nothing that waits; a table's lock is below it. Waiters are called
 * without locks.
 */
#ifndef DFE_SERVICE_COHERE_H
#define DFE_SERVICE_COHERE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "dfe_types.h"
#include "service/dispatch_refs.h"
#include "service/roll.h"

struct cohere;
struct face;

/* A face that does not answer an invalidation for inval_ms is let go. NULL: no memory. */
struct cohere *cohere_open(uint64_t inval_ms);
void cohere_close(struct cohere *co); /* no faces, no changes */
/* Of a container that is being opened: its mounts are noted on the roll from now on, and for each
 * that is noted there, an earlier worker's, a stand-in holds everything and collects what the mount
 * has to forget. Changes wait for it as for the mount, until the mount comes for it, its process
 * dies, its session ends, or it has not come within a minute of since_ns. -ENOMEM. */
int cohere_expect(struct cohere *co, struct roll *roll, uint32_t cont, uint64_t since_ns);

/* -- faces ------------------------------------------------------------------------------------ */

/* held: the face's table, which outlives it. *generation 0: a new mount. Else it is that of a mount
 * which has lost an engine and comes back: its kernel still holds what nobody here knows of. It
 * takes over its stand-in; where there is none it is told what has changed since this object was
 * made. It counts as holding everything until it asks for news for the first time: by then it has
 * taken all its references again, which marks what they are of. -EBUSY: another face writes;
 * -EEXIST: the handle has one. */
int face_open(struct cohere *co, const struct roll_mount *who, struct refs *held,
              uint64_t *generation, struct face **out);
void face_close(struct face *face);

/* One who waits for news; gets either an invalidation (err 0) or an end (err < 0). */
struct face_waiter {
    struct list link;
    struct dfe_inval inval;
    int err;
    void (*fn)(struct face_waiter *w);
};
/* done: the id that has been carried out, or 0. 0: w->inval is filled; 1: w->fn will be called once
 * (never from within this call); -ESHUTDOWN: stopped; -ETIMEDOUT: let go; -EBUSY: another waits. */
int face_next(struct face *face, uint64_t done, struct face_waiter *w);
/* The first half of face_next: whoever waits for that id goes on. */
void face_done(struct face *face, uint64_t done);
void face_stop(struct face *face);
bool face_lost(struct face *face);
/* An invalidation that nobody waits for. */
void face_tell(struct face *face, uint64_t ino, uint32_t what);
/* What its kernel holds could not be noted: it counts as holding everything as long as it lives. */
void face_untold(struct face *face);

/* -- changes by others ------------------------------------------------------------------------ */

/* A rename with what it replaces: two names, two directories in them, two inodes. */
#define COHERE_TARGETS 6u

struct cohere_target {
    uint64_t ino;
    uint32_t what;    /* DFE_INVAL_* */
    uint32_t name_len;
    const char *name; /* of an entry */
};

struct cohere_change {
    const struct face *self; /* needs no invalidation; NULL: no mount */
    unsigned n;
    unsigned left;           /* invalidations under way; the lock inside */
    uint64_t deadline_ns;
    struct cohere_target t[COHERE_TARGETS];
};

void cohere_target(struct cohere_change *change, uint64_t ino, uint32_t what, const char *name,
                   uint32_t name_len);
/* Is there another face at all? */
bool cohere_others(struct cohere *co, const struct face *self);
/* Does another face hold what the change touches? */
bool cohere_due(struct cohere *co, const struct cohere_change *change);
/* In between no mark is set: for changes that run from memory, and for marks. Above all locks of
 * the engine. */
void cohere_hold(struct cohere *co);
void cohere_release(struct cohere *co);
/* Who changes names holds them from before it looks what they lead to until they have been changed,
 * and never while it waits for a face: a kernel that holds a directory while its own change of the
 * name waits here could not answer. Below it only locks of the engine, and cohere_hold. */
#define COHERE_NAMES 64u
uint64_t cohere_name(uint64_t dir, const void *name, size_t len); /* its bit; more of them: | */
int cohere_names_lock(struct cohere *co, uint64_t names, bool may_wait); /* -EINPROGRESS */
void cohere_names_unlock(struct cohere *co, uint64_t names);
/* Returns when what is held at the moment has been let go of. */
void cohere_names_pass(struct cohere *co);
/* Asks the faces that do; cohere_wait returns when they are done or let go. */
void cohere_send(struct cohere *co, struct cohere_change *change);
void cohere_wait(struct cohere *co, struct cohere_change *change); /* (waits) */
/* The same, and nobody waits. */
void cohere_tell(struct cohere *co, struct cohere_change *change);
/* A change has been applied: before the second look. */
void cohere_count(struct cohere *co);
uint64_t cohere_changes(struct cohere *co);

/* -- who writes ------------------------------------------------------------------------------- */

/* Somebody other than a mount is about to change the inode's data ... */
void cohere_wrote(struct cohere *co, uint64_t ino);
/* ... did so within the last seconds: a kernel is not to keep its attributes. */
bool cohere_shared(struct cohere *co, uint64_t ino);
/* Nobody else has changed the inode's data since the face's kernel began to know of it. */
bool face_alone(struct face *face, uint64_t ino);
/* In the first minute of an engine mounts may come back that hold what was before a change, also
 * while others are there already. An inode is about to change, or did so within a minute; a name
 * is about to change. */
bool cohere_young(struct cohere *co);
void cohere_changed(struct cohere *co, uint64_t ino);
bool cohere_changed_lately(struct cohere *co, uint64_t ino);
void cohere_renamed(struct cohere *co, uint64_t dir, const char *name, uint32_t name_len);

#endif
