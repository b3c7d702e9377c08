/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the dispatcher: sessions of all roles, on one or two threads each, execute entries decoded
 * from the input, while their push areas change under their hands.
 *
 * Any input decodes: bytes choose an operation, its natural arguments, and what is wrong with them.
 * So random bytes reach deep without coverage feedback (fuzz_main.c), and with it
 * (-fsanitize=fuzzer) small changes of an input are small changes of a request.
 *
 * Checked: nothing crashes, hangs or leaks; answers stay within what was offered; nothing is left
 * when the sessions have ended; what is stored is whole.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "../engine/api_fixture.h"
#include "base/assert.h"
#include "fuzz_dispatch.h"
#include "service/dispatch.h"

#define POOL_BYTES (64u << 20)
#define KEEP_LOG_BYTES (16u << 20)
#define PUSH_BYTES (128u << 10)
#define REPLY_BYTES (256u << 10)
#define HOST_LIFE 500u /* inputs; then a new pool */
#define INVAL_MS 3u    /* mounts that do not answer are usual here */
#define KNOWN 16u

struct input {
    const uint8_t *at;
    size_t left;
};

static uint8_t byte(struct input *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++;
}

static uint64_t number(struct input *in, unsigned bytes)
{
    uint64_t v = 0;

    while (bytes--)
        v = v << 8 | byte(in);
    return v;
}

/* One client. */
struct actor {
    struct session *s;
    unsigned index;
    struct input in;
    uint8_t *push, *reply;
    uint64_t inos[KNOWN]; /* that answers named */
    uint64_t last;        /* number that an answer gave: a loan, a cookie */
    atomic_uint later;    /* answers that are still to come */
};

#define ACTORS 6u
static const struct {
    uint32_t role;
    uid_t uid;         /* 0: the owner's */
    unsigned session;  /* that of which actor */
} casts[ACTORS] = {{PROTO_ROLE_MOUNT, 0, 0},  {PROTO_ROLE_API, 0, 1}, {PROTO_ROLE_IL, 4242, 2},
                   {PROTO_ROLE_IL, 0, 3}, {PROTO_ROLE_MOUNT, 0, 0}, {PROTO_ROLE_API, 0, 1}};

static struct host *host;
static struct session *keeper; /* has the file system open: closing it takes long */
static char path[256];
static void *keep_mem;
static struct keep *keep;
static uint8_t *push_mem, *reply_mem;
static atomic_bool chaos_stop;

/* -- the host --------------------------------------------------------------------------------- */

/* Handle 0 becomes the file system; of mounts, theirs. */
static void open_file_system(struct session *s, uint8_t *reply, bool mount)
{
    struct request req = {.e = {.op = PROTO_FS_OPEN,
                                .handle = 0,
                                .arg = PROTO_NO_HANDLE,
                                .push_len = 1,
                                .reply_cap = REPLY_BYTES},
                          .push = "c",
                          .reply = reply};
    struct proto_cqe cqe;

    CHECK_EQ(dispatch(s, &req, true, &cqe), 0);
    CHECK(cqe.result == 0 || cqe.result == -EEXIST);
    req.e.op = PROTO_FS_MOUNT;
    req.e.arg = 0;
    req.e.push_len = 0;
    if (mount)
        CHECK_EQ(dispatch(s, &req, true, &cqe), 0);
}

static void host_begin(void)
{
    size_t bytes = keep_bytes(KEEP_LOG_BYTES, KEEP_LOG_BYTES);
    struct host_opts opts = {.size = sizeof(opts),
                             .path = path,
                             .arena_bytes = 32u << 20,
                             .no_hugepages = true,
                             .orphan_grace_ms = 1,
                             .inval_ms = INVAL_MS};
    struct session_who who = {.role = PROTO_ROLE_API, .uid = geteuid()};
    struct dfe_cred cred = {.uid = geteuid(), .gid = getegid()};

    keep_mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(keep_mem != MAP_FAILED);
    CHECK_EQ(keep_format(keep_mem, bytes, KEEP_LOG_BYTES, KEEP_LOG_BYTES), 0);
    CHECK_EQ(keep_open(keep_mem, bytes, &keep), 0);
    opts.keep = keep;
    snprintf(path, sizeof(path), "%s/pool", test_dir());
    CHECK_EQ(api_create(path, POOL_BYTES), 0);
    CHECK_EQ(host_open(&opts, &host), 0);
    CHECK_EQ(dfe_cont_create(host_pool(host), "c", 1, &cred, 0777), 0);
    CHECK_EQ(dfe_cont_create(host_pool(host), "o", 0, NULL, 0), 0);
    CHECK_EQ(session_new(host, &who, 98, &keeper), 0);
    open_file_system(keeper, reply_mem, false);
}

/* Whole, but for objects that a session has put beside the file system's own: it may. */
static void check_container(const char *label)
{
    char report[65536];
    struct dfe_cont *cont;
    ssize_t faults, strangers = 0;

    CHECK_EQ(dfe_cont_open(host_pool(host), label, NULL, &cont), 0);
    faults = dfe_cont_check(cont, 1, report, sizeof(report), NULL, NULL);
    for (const char *at = report; faults > 0 && (at = strstr(at, "is of no known kind")); at++)
        strangers++;
    if (faults != strangers)
        fprintf(stderr, "container %s: %zd\n%s\n", label, faults, report);
    CHECK_EQ(faults, strangers);
    CHECK_EQ(dfe_cont_close(cont), 0);
}

static void host_end(void)
{
    session_end(keeper);
    check_container("c");
    CHECK_EQ(host_close(host), 0);
    keep_close(keep);
    CHECK_EQ(munmap(keep_mem, keep_bytes(KEEP_LOG_BYTES, KEEP_LOG_BYTES)), 0);
    CHECK_EQ(dfe_pool_destroy(path, 1), 0);
}

/* -- what clients say ------------------------------------------------------------------------- */

static const char *const labels[] = {"c", "o", "x", "y", "", "no/label"};
static const char *const file_names[] = {"a", "b", "d", "e", "..", ".", "", "with space",
                                         "a/b", "longer-than-an-inline-name-would-be"};
static const char *const xattrs[] = {"user.a", "user.b", "security.capability", "trusted.t",
                                     "system.posix_acl_access", "system.posix_acl_default", ""};

#define PICK(in, list) ((list)[byte(in) % DFE_ARRAY_LEN(list)])

struct writing {
    uint8_t *to;
    size_t len;
};

static void put(struct writing *w, const void *from, size_t len)
{
    if (w->len + len > PUSH_BYTES)
        len = PUSH_BYTES - w->len;
    memcpy(w->to + w->len, from, len);
    w->len += len;
}

static void put_text(struct writing *w, const char *text)
{
    put(w, text, strlen(text));
}

static void put_cred(struct writing *w, struct input *in)
{
    struct dfe_cred cred = {.uid = byte(in) % 4 ? geteuid() : 4242, .umask = byte(in)};

    put(w, &cred, sizeof(cred));
}

static void put_data(struct writing *w, struct input *in)
{
    static const uint32_t lens[] = {0, 1, 7, 512, 4096, 4097, 65536, 100000};
    size_t len = PICK(in, lens);
    uint8_t value = byte(in);

    if (len > PUSH_BYTES - w->len)
        len = PUSH_BYTES - w->len;
    memset(w->to + w->len, value, len);
    w->len += len;
}

static struct dfe_oid put_oid(struct writing *w, struct input *in)
{
    struct dfe_oid oid = {.hi = 0x1000u + byte(in) % 2, .lo = byte(in) % 4};

    put(w, &oid, sizeof(oid));
    return oid;
}

static void put_tx(struct writing *w, struct input *in)
{
    static const uint8_t zeros[8];
    unsigned n = byte(in) % 6;

    put_oid(w, in);
    while (n--) {
        struct proto_tx head = {.type = byte(in) % 12,
                                .dkey_len = byte(in) % 5,
                                .akey_len = byte(in) % 3,
                                .oid_hi = 0x1000u + byte(in) % 2,
                                .oid_lo = byte(in) % 4};
        size_t len, start;

        head.arg = byte(in) % 8 ? (uint64_t)byte(in) * 4096 : number(in, 8);
        head.data_len = head.type == PROTO_TX_WRITE ? 4096u * (byte(in) % 3) : byte(in) % 64;
        if (head.type != PROTO_TX_WRITE && head.type != PROTO_TX_PUT &&
            head.type != PROTO_TX_GUARD_EQUAL && byte(in) % 8)
            head.data_len = 0;
        if (byte(in) % 32 == 0)
            head.data_len = (uint32_t)number(in, 4);
        start = w->len;
        put(w, &head, sizeof(head));
        len = (size_t)head.dkey_len + head.akey_len + head.data_len % PUSH_BYTES;
        for (size_t i = 0; i < len; i++)
            put(w, &(uint8_t){(uint8_t)(i < 8 ? byte(in) % 3 : i)}, 1);
        put(w, zeros, (8 - (w->len - start) % 8) % 8);
    }
}

static uint64_t some_ino(struct actor *a)
{
    unsigned which = byte(&a->in);

    if (which < 64)
        return 1;
    return which < 240 ? a->inos[which % KNOWN] : number(&a->in, which % 8 + 1);
}

static uint64_t some_offset(struct actor *a)
{
    static const uint64_t offsets[] = {0, 1, 4095, 4096, 65536, 1u << 20, (16ull << 40) - 2,
                                       16ull << 40, UINT64_MAX, UINT64_MAX - 4096};
    unsigned which = byte(&a->in);

    if (which < 160)
        return PICK(&a->in, offsets);
    return which < 224 ? byte(&a->in) : number(&a->in, 8);
}

static void natural_names(struct actor *a, struct proto_sqe *e, struct writing *w)
{
    struct input *in = &a->in;
    const char *name = PICK(in, file_names);

    switch (e->op) {
    case PROTO_MKNOD:
    case PROTO_MKDIR:
        put_cred(w, in);
        put_text(w, name);
        e->arg = e->op == PROTO_MKDIR ? 0777 : (byte(in) % 8 ? S_IFREG : S_IFIFO) | 0666;
        e->off = 0;
        e->flags |= byte(in) % 2 ? DFE_REF : 0;
        break;
    case PROTO_SYMLINK:
        put_cred(w, in);
        put_text(w, name);
        put_data(w, in);
        e->arg = (uint32_t)strlen(name);
        break;
    case PROTO_RENAME:
        put_text(w, name);
        put_text(w, PICK(in, file_names));
        e->arg = (uint32_t)strlen(name);
        e->off = some_ino(a);
        e->flags |= (byte(in) % 4) * DFE_NOREPLACE;
        break;
    case PROTO_LINK:
        e->off = some_ino(a);
        put_text(w, name);
        break;
    default:
        put_text(w, name);
        e->flags |= e->op == PROTO_LOOKUP && byte(in) % 2 ? DFE_REF : 0;
    }
}

static void natural_attrs(struct actor *a, struct proto_sqe *e, struct writing *w)
{
    struct input *in = &a->in;
    const char *name = PICK(in, xattrs);
    struct dfe_attr attr = {.mode = (uint32_t)number(in, 2) & 07777,
                            .size = byte(in) % 4 ? byte(in) * 1000u : some_offset(a),
                            .uid = byte(in) % 2 ? 4242 : geteuid(),
                            .mtime_ns = (int64_t)number(in, 8)};

    if (e->op == PROTO_SETATTR) {
        put(w, &attr, sizeof(attr));
        e->arg = byte(in) % 2 ? DFE_SET_SIZE : byte(in) & 127;
        return;
    }
    put_text(w, name);
    e->arg = (uint32_t)strlen(name);
    if (e->op == PROTO_SETXATTR) {
        put_data(w, in);
        e->flags |= (byte(in) % 4) * DFE_XATTR_CREATE;
    }
}

static void natural_object(struct actor *a, struct proto_sqe *e, struct writing *w)
{
    struct input *in = &a->in;
    uint16_t lens[4] = {byte(in) % 5, byte(in) % 3, 0, 0};
    uint64_t punched = some_offset(a);

    if (e->op == PROTO_TX_COMMIT) {
        put_tx(w, in);
        return;
    }
    put_oid(w, in);
    if (e->op == PROTO_KV_GET || e->op == PROTO_KV_SCAN) {
        put(w, lens, sizeof(lens));
        for (unsigned i = 0; i < lens[0] + lens[1]; i++)
            put(w, &(uint8_t){byte(in) % 3}, 1);
    } else if (e->op == PROTO_ARRAY_WRITE) {
        put_data(w, in);
    } else if (e->op == PROTO_ARRAY_PUNCH) {
        put(w, &punched, 8);
    }
}

static void natural_pool(struct actor *a, struct proto_sqe *e, struct writing *w)
{
    struct input *in = &a->in;
    uint32_t how[2] = {byte(in) % 2, 0777};
    const char *label = PICK(in, labels);

    switch (e->op) {
    case PROTO_CONT_CREATE:
        put_cred(w, in);
        put(w, how, sizeof(how));
        put_text(w, byte(in) % 2 ? "x" : "y");
        break;
    case PROTO_CONT_DESTROY:
        put_text(w, byte(in) % 2 ? "x" : "y"); /* the others stay for the checks */
        break;
    case PROTO_CONT_OPEN:
        put_text(w, label);
        put_text(w, byte(in) % 8 ? "" : "s");
        e->arg = (uint32_t)strlen(label);
        break;
    case PROTO_FS_OPEN:
        e->arg = byte(in) % 4;
        put_text(w, byte(in) % 4 ? label : "");
        break;
    case PROTO_PROP_SET:
        put_text(w, "fuzzvalue");
        e->arg = 4;
        break;
    default:
        put_text(w, "s");
    }
}

static void natural_push(struct actor *a, struct proto_sqe *e, struct writing *w)
{
    uint64_t len = some_offset(a);

    switch (e->op) {
    case PROTO_LOOKUP: case PROTO_MKNOD: case PROTO_MKDIR: case PROTO_SYMLINK: case PROTO_LINK:
    case PROTO_UNLINK: case PROTO_RMDIR: case PROTO_RENAME:
        natural_names(a, e, w);
        break;
    case PROTO_SETATTR: case PROTO_GETXATTR: case PROTO_SETXATTR: case PROTO_REMOVEXATTR:
        natural_attrs(a, e, w);
        break;
    case PROTO_KV_GET: case PROTO_KV_SCAN: case PROTO_ARRAY_READ: case PROTO_ARRAY_WRITE:
    case PROTO_ARRAY_PUNCH: case PROTO_ARRAY_NEXT: case PROTO_TX_COMMIT:
        natural_object(a, e, w);
        break;
    case PROTO_CONT_CREATE: case PROTO_CONT_DESTROY: case PROTO_CONT_OPEN: case PROTO_FS_OPEN:
    case PROTO_PROP_GET: case PROTO_PROP_SET: case PROTO_SNAP_CREATE: case PROTO_SNAP_DESTROY:
        natural_pool(a, e, w);
        break;
    case PROTO_WRITE:
        put_data(w, &a->in);
        e->flags |= byte(&a->in) % 4 ? 0 : DFE_APPEND;
        break;
    case PROTO_PUNCH:
        put(w, &len, 8);
        break;
    case PROTO_READDIR:
        e->flags |= (byte(&a->in) % 2 ? DFE_PLUS : 0) | (byte(&a->in) % 2 ? DFE_REF : 0);
        break;
    case PROTO_DROP: case PROTO_INVAL_NEXT:
        e->off = byte(&a->in) % 4 ? a->last : number(&a->in, 8);
        break;
    default:
        break;
    }
}

/* Something is wrong with it: one field, or several. */
static void twist(struct actor *a, struct proto_sqe *e)
{
    unsigned how = byte(&a->in);

    if (how < 192)
        return;
    switch (how % 8) {
    case 0:
        e->flags = (uint32_t)number(&a->in, 4);
        break;
    case 1:
        e->flags ^= 1u << byte(&a->in) % 12;
        break;
    case 2:
        e->push_len = (uint32_t)number(&a->in, 3) % (PUSH_BYTES + 1);
        break;
    case 3:
        e->reply_cap = byte(&a->in) % 2 ? byte(&a->in) : 0;
        break;
    case 4:
        e->arg = (uint32_t)number(&a->in, 4);
        break;
    case 5:
        e->ctl = byte(&a->in) % 4 ? PROTO_CTL_RETRY : (uint32_t)number(&a->in, 4);
        break;
    case 6:
        e->op = (uint32_t)number(&a->in, byte(&a->in) % 2 ? 1 : 4);
        break;
    default:
        e->len = (uint32_t)number(&a->in, 4);
        e->ino = number(&a->in, 8);
    }
}

/* Operations by weight: what everybody may do and what needs the most care comes more often. */
static const uint8_t op_list[] = {
    PROTO_NOP, PROTO_POOL_QUERY, PROTO_CONT_LIST, PROTO_CONT_CREATE, PROTO_CONT_DESTROY,
    PROTO_CONT_OPEN, PROTO_CONT_OPEN, PROTO_CLOSE, PROTO_CLOSE, PROTO_CONT_QUERY, PROTO_PROP_GET,
    PROTO_PROP_SET, PROTO_SNAP_CREATE, PROTO_SNAP_DESTROY, PROTO_SNAP_LIST, PROTO_CHECK,
    PROTO_POOL_DROP_CACHES, PROTO_KV_GET, PROTO_KV_SCAN, PROTO_ARRAY_READ, PROTO_ARRAY_WRITE,
    PROTO_ARRAY_PUNCH, PROTO_ARRAY_NEXT, PROTO_TX_COMMIT, PROTO_TX_COMMIT, PROTO_FS_OPEN,
    PROTO_FS_OPEN, PROTO_FS_OPEN, PROTO_FS_MOUNT, PROTO_FS_MOUNT, PROTO_INVAL_NEXT,
    PROTO_INVAL_NEXT, PROTO_INVAL_STOP, PROTO_FS_QUERY, PROTO_STATFS, PROTO_REF, PROTO_UNREF,
    PROTO_LOOKUP, PROTO_LOOKUP, PROTO_LOOKUP, PROTO_GETATTR, PROTO_GETATTR, PROTO_SETATTR,
    PROTO_SETATTR, PROTO_SETATTR, PROTO_MKNOD, PROTO_MKNOD, PROTO_MKNOD, PROTO_MKDIR,
    PROTO_SYMLINK, PROTO_READLINK, PROTO_LINK, PROTO_UNLINK, PROTO_UNLINK, PROTO_RMDIR,
    PROTO_RENAME, PROTO_RENAME, PROTO_READDIR, PROTO_READDIR, PROTO_PARENT, PROTO_READ, PROTO_READ,
    PROTO_READ, PROTO_WRITE, PROTO_WRITE, PROTO_WRITE, PROTO_PUNCH, PROTO_NEXT, PROTO_FSYNC,
    PROTO_GETXATTR, PROTO_SETXATTR, PROTO_LISTXATTR, PROTO_REMOVEXATTR, PROTO_LEASE, PROTO_LEASE,
    PROTO_LOAN, PROTO_LOAN, PROTO_DROP, PROTO_SERVICE_QUERY};
/* Those that cost a flush of the device come rarely. */
static const uint8_t slow_list[] = {PROTO_POOL_SYNC, PROTO_POOL_CHECKPOINT, PROTO_FS_SYNC,
                                    PROTO_FSYNC};

static void decode(struct actor *a, struct proto_sqe *e)
{
    struct writing w = {.to = a->push};
    unsigned rare = byte(&a->in);

    memset(e, 0, sizeof(*e));
    e->op = rare == 255 ? PICK(&a->in, slow_list) : PICK(&a->in, op_list);
    e->handle = byte(&a->in) % 32 ? byte(&a->in) % 4 : (uint32_t)number(&a->in, 4);
    e->ino = some_ino(a);
    e->off = some_offset(a);
    e->len = byte(&a->in) % 8 ? byte(&a->in) * 64u : REPLY_BYTES;
    e->arg = byte(&a->in) % 4;
    e->reply_cap = REPLY_BYTES;
    natural_push(a, e, &w);
    e->push_len = (uint32_t)w.len;
    twist(a, e);
}

/* -- running ---------------------------------------------------------------------------------- */

struct held_request {
    struct request req;
    struct actor *actor;
};

static void answered(struct request *req, const struct proto_cqe *out)
{
    struct held_request *h = (struct held_request *)req;
    struct actor *a = h->actor;

    CHECK(out->reply_len <= req->e.reply_cap);
    free(req->reply);
    free(h);
    atomic_fetch_sub(&a->later, 1);
}

/* A request that may be answered later has memory of its own. */
static int ask_for_news(struct actor *a, const struct proto_sqe *e, struct proto_cqe *cqe)
{
    struct held_request *h = calloc(1, sizeof(*h));
    int ret;

    CHECK(h != NULL);
    h->actor = a;
    h->req = (struct request){.e = *e, .push = a->push, .later = answered};
    h->req.e.reply_cap = e->reply_cap < 512 ? e->reply_cap : 512;
    h->req.reply = malloc(h->req.e.reply_cap + 1);
    CHECK(h->req.reply != NULL);
    atomic_fetch_add(&a->later, 1);
    ret = dispatch(a->s, &h->req, false, cqe);
    if (ret == DISPATCH_LATER)
        return ret;
    if (ret == 0 && cqe->result == 0 && cqe->reply_len >= 8)
        memcpy(&a->last, h->req.reply, 8);
    cqe->reply_len = 0; /* gone with h */
    free(h->req.reply);
    free(h);
    atomic_fetch_sub(&a->later, 1);
    return ret;
}

static void learn(struct actor *a, const struct proto_sqe *e, const struct proto_cqe *cqe)
{
    uint64_t ino;

    if (cqe->value)
        a->last = cqe->value;
    if (cqe->result != 0 || cqe->reply_len != sizeof(struct dfe_attr))
        return;
    memcpy(&ino, a->reply, 8);
    a->inos[ino % KNOWN] = ino;
}

static void execute(struct actor *a)
{
    struct request req = {.push = a->push, .reply = a->reply};
    struct proto_cqe cqe = {0};
    int ret;

    decode(a, &req.e);
    req.e.seq = number(&a->in, 1) + 1;
    if (req.e.op == PROTO_INVAL_NEXT) {
        ret = ask_for_news(a, &req.e, &cqe);
    } else {
        ret = dispatch(a->s, &req, false, &cqe);
        if (ret == -EINPROGRESS)
            ret = dispatch(a->s, &req, true, &cqe);
    }
    if (ret == DISPATCH_LATER)
        return;
    if (ret == -EINPROGRESS && req.e.op == PROTO_INVAL_NEXT)
        return;
    CHECK_EQ(ret, 0);
    CHECK(cqe.reply_len <= req.e.reply_cap);
    learn(a, &req.e, &cqe);
    dispatch_posted(a->s, req.e.seq);
}

static void odd_messages(struct actor *a)
{
    int fd;

    if (byte(&a->in) % 8)
        return;
    fd = session_extent(a->s, byte(&a->in) % 8, byte(&a->in) % 2 ? a->last : number(&a->in, 8));
    if (fd >= 0) {
        CHECK(casts[a->index].role != PROTO_ROLE_IL || casts[a->index].uid == 0);
        close(fd);
    }
    fd = open(byte(&a->in) % 2 ? "/proc/self/maps" : path, O_RDONLY | O_CLOEXEC);
    CHECK(session_prove(a->s, byte(&a->in) % 4, some_ino(a), byte(&a->in) % 8 ? fd : -1) < 0);
    if (fd >= 0)
        close(fd);
}

static void *act(void *arg)
{
    struct actor *a = arg;

    if (byte(&a->in) % 8)
        open_file_system(a->s, a->reply,
                         casts[a->index].role == PROTO_ROLE_MOUNT && byte(&a->in) % 2);
    while (a->in.left) {
        execute(a);
        odd_messages(a);
    }
    return NULL;
}

/* Push areas are the clients' own: they change while they are read. */
static void *chaos(void *arg)
{
    uint64_t rng = 88172645463325252ull;

    while (!atomic_load(&chaos_stop)) {
        for (unsigned i = 0; i < 64; i++) {
            uint64_t r = test_rand(&rng);
            volatile uint8_t *at = push_mem + (r >> 8) % (ACTORS * PUSH_BYTES);

            /* Mostly near the beginnings, where the heads are. */
            if (r % 2)
                at = push_mem + (r >> 16) % ACTORS * PUSH_BYTES + (r >> 32) % 128;
            *at = (uint8_t)r;
        }
        usleep(20);
    }
    return NULL;
}

static void check_nothing_left(void)
{
    struct session_who who = {.role = PROTO_ROLE_API, .uid = geteuid()};
    struct request req = {.e = {.op = PROTO_SERVICE_QUERY, .reply_cap = REPLY_BYTES},
                          .reply = reply_mem};
    struct dfe_service_info info;
    struct proto_cqe cqe;
    struct session *s;

    CHECK_EQ(session_new(host, &who, 99, &s), 0);
    CHECK_EQ(dispatch(s, &req, true, &cqe), 0);
    CHECK_EQ(cqe.result, 0);
    memcpy(&info, reply_mem, sizeof(info));
    CHECK_EQ(info.sessions, 2);
    CHECK_EQ(info.mounts, 0);
    CHECK_EQ(info.loans, 0);
    CHECK_EQ(info.loan_bytes, 0);
    session_end(s);
}

static void no_log(int level, const char *text, void *arg)
{
}

static void begin(void)
{
    static bool quiet;

    if (!quiet)
        dfe_log_set(no_log, NULL);
    quiet = true;
    push_mem = aligned_alloc(4096, ACTORS * PUSH_BYTES);
    reply_mem = aligned_alloc(4096, ACTORS * REPLY_BYTES);
    CHECK(push_mem && reply_mem);
    memset(push_mem, 0, ACTORS * PUSH_BYTES);
    host_begin();
}

void fuzz_end(void)
{
    if (!host)
        return;
    host_end();
    host = NULL;
    free(push_mem);
    free(reply_mem);
}

void fuzz_one(const uint8_t *data, size_t len, bool hostile)
{
    static unsigned life;
    struct actor actors[ACTORS] = {0};
    pthread_t threads[ACTORS], chaos_thread;

    if (host && ++life % HOST_LIFE == 0)
        fuzz_end();
    if (!host)
        begin();
    for (unsigned i = 0; i < ACTORS; i++) {
        struct actor *a = &actors[i];
        struct session_who who = {.role = casts[i].role, .uid = casts[i].uid, .gid = 1};
        size_t from = len / ACTORS * i;

        if (who.role != PROTO_ROLE_IL)
            who.uid = geteuid();
        a->index = i;
        a->in = (struct input){data + from, i + 1 == ACTORS ? len - from : len / ACTORS};
        a->push = push_mem + i * PUSH_BYTES;
        a->reply = reply_mem + i * REPLY_BYTES;
        for (unsigned k = 0; k < KNOWN; k++)
            a->inos[k] = 2 + k;
        if (casts[i].session == i)
            CHECK_EQ(session_new(host, &who, i + 1, &a->s), 0);
        else
            a->s = actors[casts[i].session].s;
    }
    atomic_store(&chaos_stop, false);
    if (hostile)
        CHECK_EQ(pthread_create(&chaos_thread, NULL, chaos, NULL), 0);
    for (unsigned i = 0; i < ACTORS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, act, &actors[i]), 0);
    for (unsigned i = 0; i < ACTORS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&chaos_stop, true);
    if (hostile)
        pthread_join(chaos_thread, NULL);
    for (unsigned i = 0; i < ACTORS; i++) {
        if (casts[i].session == i)
            session_end(actors[i].s);
    }
    for (unsigned i = 0; i < ACTORS; i++)
        CHECK_EQ(atomic_load(&actors[i].later), 0);
    check_nothing_left();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    fuzz_one(data, len, true);
    return 0;
}
