/* SPDX-License-Identifier: Apache-2.0 */
/* The dispatcher: the table of operations, and what is the same for all of them. */
#include "service/dispatch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/assert.h"
#include "base/limits.h"
#include "service/dispatch_int.h"

/* -- the table -------------------------------------------------------------------------------- */

#define A OP_API
#define AI (OP_API | OP_IL)
#define W OP_WAITS
#define C OP_CHANGES
#define NAME_MAX_BYTES DFE_NAME_BYTES
#define CRED_BYTES ((uint32_t)sizeof(struct dfe_cred))
#define ATTR_BYTES ((uint32_t)sizeof(struct dfe_attr))
#define KEY_BYTES ((uint32_t)sizeof(struct dfe_oid) + 8)
#define OID_BYTES ((uint32_t)sizeof(struct dfe_oid))
#define XATTR_BYTES (DFE_XATTR_NAME_BYTES + DFE_XATTR_VALUE_BYTES)
#define LABELS_BYTES (2 * DFE_LABEL_BYTES)

/* function, answer to what was done before, how, flags; push: least, most; least reply */
static const struct op ops[] = {
    [PROTO_NOP] = {op_nop, NULL, AI, 0, 0, 0, 0},
    [PROTO_POOL_QUERY] = {op_pool_query, NULL, A | W, 0, 0, 0, sizeof(struct dfe_pool_info)},
    [PROTO_POOL_SYNC] = {op_pool_sync, NULL, A | W, 0, 0, 0, 0},
    [PROTO_POOL_CHECKPOINT] = {op_pool_checkpoint, NULL, A | W, 0, 0, 0, 0},
    [PROTO_POOL_DROP_CACHES] = {op_pool_drop_caches, NULL, A | W, 0, 0, 0, 0},
    [PROTO_CONT_CREATE] = {op_cont_create, again_value, A | W | C, 0, CRED_BYTES + 8,
                           CRED_BYTES + 8 + DFE_LABEL_BYTES, 0},
    [PROTO_CONT_DESTROY] = {op_cont_destroy, again_value, A | W | C, 0, 0, DFE_LABEL_BYTES, 0},
    [PROTO_CONT_LIST] = {op_cont_list, NULL, A | W, 0, 0, 0, 0},
    [PROTO_CONT_OPEN] = {op_cont_open, NULL, A | W, 0, 1, LABELS_BYTES, 0},
    [PROTO_CLOSE] = {op_close, NULL, AI | W, 0, 0, 0, 0},
    [PROTO_CONT_QUERY] = {op_cont_query, NULL, A | W | OP_CONT, 0, 0, 0,
                          sizeof(struct dfe_cont_info)},
    [PROTO_PROP_GET] = {op_prop_get, NULL, A | W | OP_CONT, 0, 1, 4096, 1},
    [PROTO_PROP_SET] = {op_prop_set, again_value, A | W | C | OP_CONT, 0, 1, 65536, 0},
    [PROTO_SNAP_CREATE] = {op_snap_create, again_value, A | W | C | OP_CONT, 0, 1, DFE_LABEL_BYTES,
                           0},
    [PROTO_SNAP_DESTROY] = {op_snap_destroy, again_value, A | W | C | OP_CONT, 0, 1,
                            DFE_LABEL_BYTES, 0},
    [PROTO_SNAP_LIST] = {op_snap_list, NULL, A | W | OP_CONT, 0, 0, 0, 0},
    [PROTO_CHECK] = {op_check, NULL, A | W | OP_CONT, 0, 0, 0, 0},

    [PROTO_KV_GET] = {op_kv_get, NULL, A | W | OP_CONT, 0, KEY_BYTES, KEY_BYTES + 2 * UINT16_MAX,
                      0},
    [PROTO_KV_SCAN] = {op_kv_scan, NULL, A | W | OP_CONT, 0, KEY_BYTES, KEY_BYTES + 2 * UINT16_MAX,
                       0},
    [PROTO_ARRAY_READ] = {op_array_read, NULL, A | W | OP_CONT, 0, OID_BYTES, OID_BYTES, 0},
    [PROTO_ARRAY_WRITE] = {op_array_write, again_written, A | W | C | OP_CONT, 0, OID_BYTES,
                           PROTO_AREA_MAX_BYTES, 0},
    [PROTO_ARRAY_PUNCH] = {op_array_punch, again_value, A | W | C | OP_CONT, 0, OID_BYTES + 8,
                           OID_BYTES + 8, 0},
    [PROTO_ARRAY_NEXT] = {op_array_next, NULL, A | W | OP_CONT, 0, OID_BYTES, OID_BYTES, 0},
    [PROTO_TX_COMMIT] = {op_tx_commit, again_value, A | W | C | OP_CONT, 0, OID_BYTES, PUSH_MAX, 0},

    [PROTO_FS_OPEN] = {op_fs_open, NULL, AI | W, 0, 0, DFE_LABEL_BYTES, 0},
    [PROTO_FS_MOUNT] = {op_fs_mount, NULL, A | OP_FS, 0, 0, 0, 0},
    [PROTO_INVAL_NEXT] = {op_inval_next, NULL, A | OP_FS, 0, 0, 0, sizeof(struct dfe_inval)},
    [PROTO_FS_QUERY] = {op_fs_query, NULL, A | OP_FS, 0, 0, 0, sizeof(struct dfe_fs_info)},
    [PROTO_FS_SYNC] = {op_fs_sync, NULL, A | W | OP_FS, 0, 0, 0, 0},
    [PROTO_STATFS] = {op_statfs, NULL, A | OP_FS, 0, 0, 0, sizeof(struct dfe_statfs)},
    [PROTO_INVAL_STOP] = {op_inval_stop, NULL, A | OP_FS, 0, 0, 0, 0},
    [PROTO_REF] = {op_ref, NULL, A | OP_FS, 0, 0, 0, 0},
    [PROTO_UNREF] = {op_unref, NULL, A | OP_FS, 0, 0, 0, 0},

    [PROTO_LOOKUP] = {op_lookup, NULL, A | OP_FS, DFE_REF, 1, NAME_MAX_BYTES + 1, ATTR_BYTES},
    [PROTO_GETATTR] = {op_getattr, NULL, AI | OP_FS, 0, 0, 0, ATTR_BYTES},
    [PROTO_SETATTR] = {op_setattr, again_attr, AI | C | OP_FS, 0, ATTR_BYTES, ATTR_BYTES,
                       ATTR_BYTES},
    [PROTO_MKNOD] = {op_mknod, again_name, A | C | OP_FS, DFE_REF, CRED_BYTES,
                     CRED_BYTES + NAME_MAX_BYTES + 1, ATTR_BYTES},
    [PROTO_MKDIR] = {op_mkdir, again_name, A | C | OP_FS, DFE_REF, CRED_BYTES,
                     CRED_BYTES + NAME_MAX_BYTES + 1, ATTR_BYTES},
    [PROTO_SYMLINK] = {op_symlink, again_name, A | C | OP_FS, DFE_REF, CRED_BYTES,
                       CRED_BYTES + NAME_MAX_BYTES + DFE_SYMLINK_BYTES + 2, ATTR_BYTES},
    [PROTO_READLINK] = {op_readlink, NULL, A | OP_FS, 0, 0, 0, 0},
    [PROTO_LINK] = {op_link, again_link, A | C | OP_FS, DFE_REF, 1, NAME_MAX_BYTES + 1, ATTR_BYTES},
    [PROTO_UNLINK] = {op_unlink, again_removed, A | C | OP_FS, 0, 1, NAME_MAX_BYTES + 1, 0},
    [PROTO_RMDIR] = {op_rmdir, again_removed, A | C | OP_FS, 0, 1, NAME_MAX_BYTES + 1, 0},
    [PROTO_RENAME] = {op_rename, again_removed, A | C | OP_FS, DFE_NOREPLACE | DFE_EXCHANGE, 1,
                      2 * NAME_MAX_BYTES + 2, 0},
    [PROTO_READDIR] = {op_readdir, NULL, A | OP_FS, DFE_PLUS | DFE_REF, 0, 0, 0},
    [PROTO_PARENT] = {op_parent, NULL, A | OP_FS, 0, 0, 0, 0},

    [PROTO_READ] = {op_read, NULL, AI | OP_FS, 0, 0, 0, 0},
    [PROTO_WRITE] = {op_write, again_written, AI | C | OP_FS | OP_RAW, DFE_APPEND, 0,
                     PROTO_AREA_MAX_BYTES, 0},
    [PROTO_PUNCH] = {op_punch, again_value, AI | C | OP_FS, 0, 8, 8, 0},
    [PROTO_NEXT] = {op_next, NULL, AI | W | OP_FS, 0, 0, 0, 0},
    [PROTO_FSYNC] = {op_fsync, NULL, AI | W | OP_FS, DFE_DATASYNC, 0, 0, 0},
    [PROTO_GETXATTR] = {op_getxattr, NULL, A | OP_FS, 0, 1, DFE_XATTR_NAME_BYTES + 1, 0},
    [PROTO_SETXATTR] = {op_setxattr, again_value, A | C | OP_FS,
                        DFE_XATTR_CREATE | DFE_XATTR_REPLACE, 1, XATTR_BYTES + 2, 0},
    [PROTO_LISTXATTR] = {op_listxattr, NULL, A | OP_FS, 0, 0, 0, 0},
    [PROTO_REMOVEXATTR] = {op_removexattr, again_value, A | C | OP_FS, 0, 1,
                           DFE_XATTR_NAME_BYTES + 1, 0},
    [PROTO_LEASE] = {op_lease, NULL, AI | OP_FS, 0, 0, 0, sizeof(struct proto_lease)},
    [PROTO_LOAN] = {op_loan, NULL, A | OP_FS, 0, 0, 0, sizeof(struct proto_lease)},
    [PROTO_DROP] = {op_drop, NULL, A, 0, 0, 0, 0},
    [PROTO_SERVICE_QUERY] = {op_service_query, NULL, A, 0, 0, 0, sizeof(struct dfe_service_info)},
};

/* -- answers ---------------------------------------------------------------------------------- */

void reply_struct(struct call *c, const void *data, size_t len)
{
    DFE_ASSERT(len <= c->e->reply_cap); /* the table says so, or the operation looked */
    memcpy(c->req->reply, data, len);
    c->out->reply_len = (uint32_t)len;
}

/* A negative result carries the reason in words. */
static void reply_words(struct call *c)
{
    const char *text = base_last_error();
    size_t len = strlen(text);

    if (len > c->e->reply_cap)
        len = c->e->reply_cap;
    if (len)
        memcpy(c->req->reply, text, len);
    c->out->reply_len = (uint32_t)len;
}

/* -- answers that come later ------------------------------------------------------------------ */

struct pending *pending_new(struct call *c)
{
    struct pending *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    list_init(&p->waiter.link);
    p->s = c->s;
    p->h = c->h;
    p->req = c->req;
    return p;
}

void pending_done(struct pending *p)
{
    p->req->later(p->req, &p->out);
    if (p->h)
        session_unuse(p->s, p->h);
    session_leave(p->s);
    free(p);
}

/* -- a request -------------------------------------------------------------------------------- */

static const struct op *op_find(uint32_t number)
{
    return number < DFE_ARRAY_LEN(ops) && ops[number].fn ? &ops[number] : NULL;
}

static int check_entry(const struct call *c, const struct op *op)
{
    const struct proto_sqe *e = c->e;
    unsigned role = c->s->role == PROTO_ROLE_IL ? OP_IL : OP_API;

    if (!op)
        return base_refuse(-ENOSYS, "there is no operation %u", e->op);
    if (!(op->how & role))
        return base_refuse(-EACCES, "operation %u is not for this session", e->op);
    if (e->flags & ~(op->flags | DFE_NOWAIT))
        return base_refuse(-EINVAL, "operation %u has no flags 0x%x", e->op, e->flags);
    if (e->ctl & ~(uint32_t)(PROTO_CTL_RETRY | PROTO_CTL_FENCE))
        return base_refuse(-EINVAL, "unknown control bits 0x%x", e->ctl);
    if (e->push_len < op->push_min || e->push_len > op->push_max)
        return base_refuse(-EINVAL, "operation %u comes with %u bytes", e->op, e->push_len);
    if (e->reply_cap < op->reply_min)
        return base_refuse(-EINVAL, "operation %u answers with more than %u bytes", e->op,
                           e->reply_cap);
    return 0;
}

static int find_handle(struct call *c, const struct op *op)
{
    enum handle_kind kind = op->how & OP_FS ? HANDLE_FS : HANDLE_CONT;
    int ret;

    if (!(op->how & (OP_FS | OP_CONT)))
        return 0;
    ret = session_use(c->s, c->e->handle, kind, &c->h);
    if (ret < 0) {
        c->h = NULL;
        return base_refuse(ret, "%u is no handle of that kind", c->e->handle);
    }
    c->hc = c->h->hc;
    c->cont = c->hc->cont;
    if (kind == HANDLE_FS)
        c->fs = c->hc->fs; /* whose use keeps it: with another's it comes and goes */
    c->change.self = c->h->face;
    if (c->h->face && face_lost(c->h->face) && c->e->op != PROTO_INVAL_NEXT)
        return base_refuse(-EIO, "this mount did not say in time what its kernel has forgotten");
    return 0;
}

/* Bytes that a client could change while they are looked at. `small` saves most an allocation. */
static int copy_push(struct call *c, const struct op *op, uint8_t *small, size_t small_len,
                     void **mem)
{
    size_t len = c->e->push_len;

    *mem = NULL;
    c->push_len = len;
    c->push = c->req->push;
    if (len == 0 || op->how & OP_RAW)
        return 0;
    if (len > small_len) {
        small = *mem = malloc(len);
        if (!small)
            return -ENOMEM;
    }
    memcpy(small, c->req->push, len);
    c->push = small;
    return 0;
}

/* The worker that did it may have died before mounts had forgotten what was before. */
static int64_t answer_again(struct call *c, const struct op *op)
{
    uint64_t value = c->out->value;
    int64_t ret = 0;

    if (!(op->how & OP_FS))
        return op->again(c);
    if (c->e->op == PROTO_WRITE || c->e->op == PROTO_PUNCH || c->e->op == PROTO_SETATTR)
        change_inode(c, c->e->ino, DFE_INVAL_PAGES);
    else if (c->e->op == PROTO_SETXATTR || c->e->op == PROTO_REMOVEXATTR)
        change_inode(c, c->e->ino, DFE_INVAL_ATTR);
    else
        ret = change_again_names(c);
    if (ret == 0)
        ret = change_begin(c);
    if (ret < 0)
        return ret;
    c->out->value = value;
    change_grew(c, UINT64_MAX); /* or not: it is answered */
    return change_end(c, op->again(c));
}

/* dispatch_posted asks the kept memory only about those that may be in it: most requests read. */
static void tag(struct session *s, uint64_t seq)
{
    uint64_t old = atomic_exchange(&s->tags[seq % SESSION_TAGS], seq);

    if (old && old != seq)
        atomic_store(&s->all_tagged, true);
}

/* The operation itself, and once: what was done by an earlier worker is answered. */
static int64_t run_op(struct call *c, const struct op *op)
{
    struct keep *keep = c->s->host->keep;

    if (!(op->how & OP_CHANGES) || !keep)
        return op->fn(c);
    tag(c->s, c->e->seq);
    if (c->e->ctl & PROTO_CTL_RETRY && keep_done(keep, c->s->id, c->e->seq, &c->out->value)) {
        /* To look at what was done may take a wait, and a client that hears so asks anew, by
         * another number: it would be done twice. */
        c->req->e.flags &= ~(uint32_t)DFE_NOWAIT;
        if (c->may_wait)
            c->flags &= ~(unsigned)DFE_NOWAIT;
        return answer_again(c, op);
    }
    keep_begin(keep, c->s->id, c->e->seq);
    return op->fn(c);
}

static int64_t run_call(struct call *c)
{
    const struct op *op = op_find(c->e->op);
    uint8_t small[640];
    void *mem = NULL;
    int64_t ret;

    ret = check_entry(c, op);
    if (ret == 0)
        ret = find_handle(c, op);
    if (ret == 0 && op->how & OP_WAITS && must_not_wait(c))
        ret = -EINPROGRESS;
    else if (ret == 0)
        ret = copy_push(c, op, small, sizeof(small), &mem);
    if (ret == 0)
        ret = run_op(c, op);
    free(mem);
    return ret;
}

/* 0 with the answer, DISPATCH_LATER, or -EINPROGRESS. The session has been entered. */
static int run(struct session *s, struct request *req, bool may_wait, struct proto_cqe *out)
{
    struct call c = {
        .s = s,
        .req = req,
        .e = &req->e,
        .flags = req->e.flags,
        .mount = s->role == PROTO_ROLE_MOUNT,
        .may_wait = may_wait,
        .out = out,
    };
    int64_t ret;

    base_clear_error();
    memset(out, 0, sizeof(*out));
    if (!may_wait)
        c.flags |= DFE_NOWAIT;
    ret = run_call(&c);
    if (c.later)
        return DISPATCH_LATER; /* with the handle's use */
    if (c.h)
        session_unuse(s, c.h);
    if (ret == -EINPROGRESS && !may_wait && !(req->e.flags & DFE_NOWAIT))
        return -EINPROGRESS;
    out->result = ret;
    if (ret < 0)
        reply_words(&c);
    return 0;
}

int dispatch(struct session *s, struct request *req, bool may_wait, struct proto_cqe *out)
{
    int ret = session_enter(s);

    if (ret < 0) {
        memset(out, 0, sizeof(*out));
        out->result = ret;
        return 0;
    }
    ret = run(s, req, may_wait, out);
    if (ret != DISPATCH_LATER)
        session_leave(s);
    return ret;
}

bool dispatch_changes(uint32_t number)
{
    const struct op *op = op_find(number);

    return op && op->how & OP_CHANGES && op->how & OP_FS;
}

void dispatch_posted(struct session *s, uint64_t seq)
{
    uint64_t tagged = seq;

    if (!s->host->keep)
        return;
    if (atomic_compare_exchange_strong(&s->tags[seq % SESSION_TAGS], &tagged, 0) ||
        atomic_load(&s->all_tagged))
        keep_answered(s->host->keep, s->id, seq);
}
