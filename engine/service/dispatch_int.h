/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the dispatcher's files share: a call, and the table of operations.
 *
 * An operation is a function of a call. Before it runs, dispatch.c has checked the role, found the
 * handle, copied the push area (but for bytes of data), and looked at lengths and flags as the
 * table says; what remains to be checked is the operation's own. It returns a result: a count, 0 or
 * a negative errno; -EINPROGRESS: it would have to wait, and nothing has happened.
 */
#ifndef DFE_SERVICE_DISPATCH_INT_H
#define DFE_SERVICE_DISPATCH_INT_H

#include <dfe.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "service/dispatch.h"
#include "service/session.h"

struct call {
    struct session *s;
    struct request *req;
    const struct proto_sqe *e;
    struct handle *h;      /* as the operation asks for; NULL: none */
    struct host_cont *hc;  /* the handle's */
    struct dfe_fs *fs;
    struct dfe_cont *cont;
    const uint8_t *push;   /* a private copy, but for OP_RAW */
    size_t push_len;
    unsigned flags;        /* DFE_*; with DFE_NOWAIT where the call must not wait */
    bool later;            /* somebody else answers */
    bool mount;            /* the session is a mount's */
    bool may_wait;         /* the thread, whatever the client asks for */
    struct proto_cqe *out;
    struct cohere_change change;
    bool holds;            /* marks wait for the change (cohere_hold) */
    uint64_t names;        /* that it changes (cohere_name); held from begin to end */
    struct victim {
        uint64_t dir;
        const void *name;
        size_t len;
    } victims[2];          /* names whose inodes the change touches */
    unsigned n_victims;
    uint64_t victim;       /* the inode of the last one, which loses the name; 0: none */
    struct growing growing;
    uint64_t seen;         /* count of changes before the engine was asked */
};

typedef int64_t op_fn(struct call *c);

enum {
    OP_API = 1,      /* for roles API and MOUNT */
    OP_IL = 2,       /* for interception */
    OP_WAITS = 4,    /* always may wait */
    OP_CHANGES = 8,  /* is not to be done twice: tagged in the kept memory */
    OP_RAW = 16,     /* the push area holds data: not copied here */
    OP_CONT = 32,    /* on a container ... */
    OP_FS = 64       /* ... or a file system */
};

struct op {
    op_fn *fn;
    op_fn *again;        /* the answer to a request that was done by an earlier worker; the kept
                          * value is in out->value. NULL: 0 and the value */
    unsigned how;        /* OP_* */
    unsigned flags;      /* DFE_* that it knows, beside DFE_NOWAIT */
    uint32_t push_min, push_max;
    uint32_t reply_min;
};

/* What one operation takes: a whole transaction with all its heads. */
#define PUSH_MAX (16u << 20)

/* A request whose answer comes later. */
struct pending {
    struct session *s;
    struct handle *h;
    struct request *req;
    struct proto_cqe out;
    struct face_waiter waiter;
};
/* For the call's request; it belongs to whoever answers it, by pending_done. NULL: no memory. */
struct pending *pending_new(struct call *c);
void pending_done(struct pending *p);

static inline bool must_not_wait(const struct call *c)
{
    return c->flags & DFE_NOWAIT;
}

/* -- answers ---------------------------------------------------------------------------------- */

/* The struct becomes the reply. */
void reply_struct(struct call *c, const void *data, size_t len);
/* Attributes of an inode that the request named. */
void reply_attr(struct call *c, struct dfe_attr *attr);
/* Of one that the engine found: the mark comes after, so the attributes are looked at again. */
void reply_found(struct call *c, struct dfe_attr *attr);
/* The parts of it: takes the reference and marks; true: something changed meanwhile. */
bool found(struct call *c, uint64_t ino, unsigned marks);
void tell_shared(struct call *c, struct dfe_attr *attr);

/* -- coherence: dispatch_change.c ------------------------------------------------------------- */

/* The kernel of the calling mount will have that of the inode: before the engine is asked. */
int mark(struct call *c, uint64_t ino, unsigned marks);
/* Room for n references that DFE_REF may take. */
int reserve_refs(struct call *c, uint64_t n);
void unreserve_refs(struct call *c, uint64_t n);

/* A change of the targets that were added to c->change: begin, apply, end. Where begin has failed
 * there is no end. */
int change_begin(struct call *c);
int64_t change_end(struct call *c, int64_t ret);
/* The change of its PAGES has given the file data, or a size, up to there. */
void change_grew(struct call *c, uint64_t end);
void change_inode(struct call *c, uint64_t ino, uint32_t what);
void change_name(struct call *c, uint64_t dir, const void *name, size_t len);
/* The inode behind a name, as it is when the change is applied. */
void change_named(struct call *c, uint64_t dir, const void *name, size_t len);

/* -- operations ------------------------------------------------------------------------------- */

/* dispatch_pool.c */
op_fn op_nop, op_pool_query, op_pool_sync, op_pool_checkpoint, op_pool_drop_caches,
    op_service_query, op_cont_create, op_cont_destroy, op_cont_list, op_cont_open, op_close,
    op_cont_query, op_prop_get, op_prop_set, op_snap_create, op_snap_destroy, op_snap_list,
    op_check;
/* dispatch_object.c */
op_fn op_kv_get, op_kv_scan, op_array_read, op_array_write, op_array_punch, op_array_next,
    op_tx_commit;
/* dispatch_fs.c */
op_fn op_fs_open, op_fs_mount, op_inval_next, op_inval_stop, op_fs_query, op_fs_sync, op_statfs,
    op_ref, op_unref;
/* dispatch_name.c */
op_fn op_lookup, op_mknod, op_mkdir, op_symlink, op_readlink, op_link, op_unlink, op_rmdir,
    op_rename, op_readdir, op_parent;
/* dispatch_attr.c */
op_fn op_getattr, op_setattr, op_getxattr, op_setxattr, op_listxattr, op_removexattr;
/* dispatch_data.c */
op_fn op_read, op_write, op_punch, op_next, op_fsync, op_lease, op_loan, op_drop;
/* The names of an operation that an earlier worker did. */
int change_again_names(struct call *c);
/* What an earlier worker did: */
op_fn again_value, again_removed, again_written, again_attr, again_name, again_link;

#endif
