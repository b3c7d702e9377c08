/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The session protocol's bytes (PROTOCOL.md): handshake messages, ring entries, shared tables.
 *
 * One machine, one byte order, one architecture: words are the host's. Fixed widths, explicit
 * padding; no pointer, bool, enum or size_t crosses. Everything that a client writes is copied once
 * and then validated; everything that the engine writes is sealed against the client.
 */
#ifndef DFE_CLIENT_PROTO_H
#define DFE_CLIENT_PROTO_H

#include <stdint.h>

#include "base/window.h"

#define PROTO_VERSION 1u
#define PROTO_MAGIC 0x314E535345464444ull /* "DDFESSN1", little-endian */

/* -- handshake, over the unix socket (SOCK_SEQPACKET): one message each way, then descriptors -- */

enum {
    PROTO_ROLE_API = 0,   /* dfe.h: everything, for the pool's owner and root */
    PROTO_ROLE_MOUNT = 1, /* the same, and answers invalidations */
    PROTO_ROLE_IL = 2     /* data calls by inode, for anybody, checked against the inode's rights */
};

struct proto_hello { /* client to engine */
    uint64_t magic;
    uint32_t version;
    uint32_t role;
    uint64_t session;      /* 0, or the one to take up again after the engine's restart */
    uint64_t secret;       /* of that session */
    uint8_t reserved[32];
};
_Static_assert(sizeof(struct proto_hello) == 64, "PROTOCOL.md");

struct proto_welcome { /* engine to client; two descriptors: the generation table, the record table
                        */
    uint64_t magic;
    uint32_t version;
    int32_t error;         /* 0, or a negative errno; then nothing else counts */
    uint64_t session, secret;
    uint64_t epoch;        /* of this worker: another one after a restart */
    uint32_t lines;        /* in the generation table */
    uint32_t records;      /* in the record table */
    uint32_t resumed;      /* 1: the session given in hello goes on */
    uint8_t reserved[12];
};
_Static_assert(sizeof(struct proto_welcome) == 64, "PROTOCOL.md");

/* Later messages on the socket. A channel belongs to one thread of the client. */
enum {
    PROTO_MSG_CHANNEL = 1,       /* descriptor: the client's memory */
    PROTO_MSG_CHANNEL_CLOSE = 2,
    PROTO_MSG_EXTENT = 3,        /* asks for the extent (id, stamp) of the arena */
    PROTO_MSG_PROVE = 4          /* descriptor: shows that the process holds this file (id: ino) */
};

struct proto_msg { /* client to engine */
    uint32_t type;
    uint32_t id;       /* channel number, chosen by the client; extent */
    uint64_t stamp;    /* extent's; PROVE: handle of the file system << 32 | open flags */
    uint64_t ino;      /* PROVE */
    uint8_t reserved[8];
};
_Static_assert(sizeof(struct proto_msg) == 32, "PROTOCOL.md");

struct proto_answer { /* engine to client, to each message but CHANNEL_CLOSE, in order */
    uint32_t type;
    int32_t error;
    uint32_t id;
    uint32_t reserved;
    uint64_t bytes;    /* length of the memory that comes as descriptor: CHANNEL (then the engine's
                        * eventfd, and the client's end of the wake socket), EXTENT */
    uint8_t reserved2[8];
};
_Static_assert(sizeof(struct proto_answer) == 32, "PROTOCOL.md");

/* -- a channel's memory ------------------------------------------------------------------------ */

#define PROTO_RING 64u             /* entries: a power of two */
#define PROTO_PUSH_BYTES (2u << 20)  /* default length of the client's data area */
#define PROTO_REPLY_BYTES (2u << 20) /* length of the engine's data area */
#define PROTO_AREA_MAX_BYTES (64u << 20)

/* Client's memory, made, sealed (SHRINK, GROW, FUTURE_WRITE, SEAL) and sent by the client; the
 * engine maps it for reading. */
struct proto_sq {
    uint32_t tail;       /* entries submitted so far; the client stores it with release */
    uint32_t cq_head;    /* completions taken so far */
    uint32_t sleeping;   /* the client is about to sleep on its wake socket: a byte wakes it */
    uint32_t push_bytes; /* read once, when the channel is made */
    uint32_t place;      /* a hint: processor that the client ran on, plus 1; 0: not known */
    uint8_t reserved[44];
    struct proto_sqe {
        uint32_t op;
        uint32_t flags;      /* DFE_* of dfe_types.h */
        uint64_t seq;        /* of the session, never twice; a resubmission has the same */
        uint32_t handle;     /* what the op works on; PROTO_NO_HANDLE */
        uint32_t ctl;        /* PROTO_CTL_* */
        uint64_t ino;        /* or another 64-bit argument, by op */
        uint64_t off;
        uint32_t len;        /* bytes of data in the data area, or asked for */
        uint32_t push_off;   /* where this request's bytes begin in the data area */
        uint32_t push_len;   /* how many there are */
        uint32_t reply_off;  /* where its answer may go in the engine's data area */
        uint32_t reply_cap;
        uint32_t arg;        /* by op */
    } e[PROTO_RING];
    uint8_t pad[4096 - 64 - sizeof(struct proto_sqe) * PROTO_RING % 4096];
    /* then the data area: push_bytes */
};
_Static_assert(sizeof(struct proto_sqe) == 64, "one cache line");
_Static_assert(sizeof(struct proto_sq) % 4096 == 0, "the data area begins on a page");

/* Engine's memory, mapped by the client for reading. */
struct proto_cq {
    uint32_t tail;        /* completions posted so far; the engine stores it with release */
    uint32_t sq_head;     /* entries taken so far: their places may be used again */
    uint32_t sleeping;    /* the engine sleeps on the session's eventfd: wake it */
    uint32_t reply_bytes;
    uint32_t place;      /* a hint: processor that the engine's thread ran on, plus 1 */
    uint8_t reserved[44];
    struct proto_cqe {
        uint64_t seq;
        int64_t result;      /* count, 0 or a negative errno */
        uint64_t value;      /* by op: where an append went, an epoch, the next cookie ... */
        uint64_t value2;
        uint32_t reply_off;  /* as asked */
        uint32_t reply_len;  /* bytes there; with a negative result: the reason in words */
        uint64_t queued_ns;  /* spent in the ring, and in the engine */
        uint64_t engine_ns;
        uint32_t flags;      /* PROTO_CQE_* */
        uint32_t reserved;
    } e[PROTO_RING];
    uint8_t pad[4096 - 64 - sizeof(struct proto_cqe) * PROTO_RING % 4096];
    /* then the data area: reply_bytes */
};
_Static_assert(sizeof(struct proto_cqe) == 64, "one cache line");
_Static_assert(sizeof(struct proto_cq) % 4096 == 0, "the data area begins on a page");

enum {
    PROTO_CQE_MORE = 1 /* news of a request that goes on: another completion comes */
};

#define PROTO_NO_HANDLE 0xffffffffu
enum {
    PROTO_CTL_RETRY = 1,  /* a resubmission: answer what was done, if it was */
    PROTO_CTL_FENCE = 2   /* reserved */
};

/* -- operations ----------------------------------------------------------------------------------
 *
 * Arguments beside the names of the entry's fields; "push" is the request's bytes, "reply" the
 * answer's. Handles are numbers that the client chooses below PROTO_HANDLES, so that they are the
 * same after a restart. Structs are those of dfe.h and dfe_types.h. Names in push are bytes
 * without NUL; where there are two, arg is the first one's length. Roles: A api and mount, I also
 * interception.
 */
#define PROTO_HANDLES 4096u

enum proto_op {
    PROTO_NOP = 0, /* AI */
    /* pool */
    PROTO_POOL_QUERY = 1, /* A reply: dfe_pool_info */
    PROTO_POOL_SYNC = 2,  /* A */
    PROTO_POOL_CHECKPOINT = 3,
    PROTO_POOL_DROP_CACHES = 4,
    PROTO_CONT_CREATE = 5,  /* push: dfe_cred, u32 posix, u32 root mode, label */
    PROTO_CONT_DESTROY = 6, /* push: label */
    PROTO_CONT_LIST = 7,    /* reply: dfe_cont_info[], result: how many there are */
    PROTO_CONT_OPEN = 8,    /* handle; push: label, snapshot (arg: length of label; "" newest) */
    PROTO_CLOSE = 9,        /* AI handle: container, file system or transaction */
    PROTO_CONT_QUERY = 10,  /* reply: dfe_cont_info */
    PROTO_PROP_GET = 11,    /* push: name; reply: value with NUL */
    PROTO_PROP_SET = 12,    /* push: name, value (arg) */
    PROTO_SNAP_CREATE = 13, /* push: name; value: epoch */
    PROTO_SNAP_DESTROY = 14,
    PROTO_SNAP_LIST = 15, /* reply: dfe_snap_info[] */
    PROTO_CHECK = 16,     /* arg: data; reply: report; value, value2: done, total. Completions
                           * marked PROTO_CQE_MORE come before the last one */
    /* objects; push begins with dfe_oid, then u16 dkey_len, u16 akey_len, u32 0, dkey, akey */
    PROTO_KV_GET = 20,      /* reply: value; result: its length */
    PROTO_KV_SCAN = 21,     /* len: 0 from the first key; reply: page */
    PROTO_ARRAY_READ = 22,  /* push: oid; off, len; reply: bytes */
    PROTO_ARRAY_WRITE = 23, /* push: oid, bytes; off; arg: sync */
    PROTO_ARRAY_PUNCH = 24, /* push: oid, u64 len; off */
    PROTO_ARRAY_NEXT = 25,  /* push: oid; off; arg: what; value */
    PROTO_TX_COMMIT = 26,   /* handle: container; push: oid of home, then records (PROTO_TX_*);
                             * arg: sync; value: epoch */
    /* file system; handle from FS_OPEN */
    PROTO_FS_OPEN = 30,  /* AI handle: new; arg: handle of the container; I: push: label */
    PROTO_FS_MOUNT = 31, /* this session's kernel caches it; arg: 1 read-only; value: generation */
    PROTO_INVAL_NEXT = 32, /* off: id of the one just done, 0; waits; reply: dfe_inval */
    PROTO_FS_QUERY = 33,   /* reply: dfe_fs_info */
    PROTO_FS_SYNC = 34,
    PROTO_STATFS = 35,
    PROTO_INVAL_STOP = 36,
    PROTO_REF = 40, /* ino; off: how many */
    PROTO_UNREF = 41,
    PROTO_LOOKUP = 42,   /* ino: directory; push: name; reply: dfe_attr, as below */
    PROTO_GETATTR = 43,  /* AI */
    PROTO_SETATTR = 44,  /* AI (size alone) arg: which; push: dfe_attr */
    PROTO_MKNOD = 45,    /* push: dfe_cred, name; arg: mode; off: rdev */
    PROTO_MKDIR = 46,    /* push: dfe_cred, name; arg: mode */
    PROTO_SYMLINK = 47,  /* push: dfe_cred, name, target; arg: length of name */
    PROTO_READLINK = 48, /* reply: target */
    PROTO_LINK = 49,     /* ino; off: directory; push: name */
    PROTO_UNLINK = 50,
    PROTO_RMDIR = 51,
    PROTO_RENAME = 52,   /* ino, off: directories; push: names; arg: length of the first */
    PROTO_READDIR = 53,  /* off: cookie; reply: page */
    PROTO_PARENT = 54,   /* value */
    PROTO_READ = 55,     /* AI off, len; reply: bytes */
    PROTO_WRITE = 56,    /* AI off; push: bytes; value: where they went */
    PROTO_PUNCH = 57,    /* AI off; push: u64 len */
    PROTO_NEXT = 58,     /* AI off; arg: what; value */
    PROTO_FSYNC = 59,    /* AI */
    PROTO_GETXATTR = 60, /* push: name; reply: value */
    PROTO_SETXATTR = 61, /* push: name, value; arg: length of name */
    PROTO_LISTXATTR = 62,
    PROTO_REMOVEXATTR = 63,
    PROTO_LEASE = 70,        /* AI off; reply: proto_lease */
    PROTO_LOAN = 71,         /* A off, len; reply: proto_lease; value: the loan's number */
    PROTO_DROP = 72,         /* A off: the loan's number */
    PROTO_SERVICE_QUERY = 80 /* A reply: dfe_service_info */
};

/* Records of TX_COMMIT: this head, then dkey, akey, data, padded together to 8 bytes. */
enum {
    PROTO_TX_GUARD_ABSENT = 1, PROTO_TX_GUARD_EQUAL = 2, PROTO_TX_GUARD_EXISTS = 3,
    PROTO_TX_PUT = 4, PROTO_TX_DEL = 5, PROTO_TX_PUNCH_DKEY = 6, PROTO_TX_PUNCH_OBJECT = 7,
    PROTO_TX_ADD = 8, PROTO_TX_MAX = 9, PROTO_TX_WRITE = 10
};
struct proto_tx {
    uint32_t type;
    uint32_t data_len;
    uint16_t dkey_len, akey_len;
    uint32_t reserved;
    uint64_t oid_hi, oid_lo;
    uint64_t arg;            /* ADD, MAX: the number; WRITE: offset */
};
_Static_assert(sizeof(struct proto_tx) == 40, "PROTOCOL.md");

/* Where bytes of a file are in the arena. A lease is right as long as the line's generation is
 * `gen`; a loan until it is dropped. */
struct proto_lease {
    uint64_t gen;
    uint64_t stamp;       /* of the extent: a later one with the same number has another */
    uint64_t file_off;    /* first byte of the file that is there */
    uint32_t extent;
    uint32_t extent_off;  /* where it is, bytes from the extent's beginning */
    uint32_t len;         /* bytes there, not beyond a hole; may reach past the end of the file */
    uint32_t line;        /* in the generation table */
    uint32_t record;      /* in the record table */
    uint32_t reserved;
    uint64_t record_gen;  /* as the record is now */
    uint64_t ino;
};
_Static_assert(sizeof(struct proto_lease) == 64, "PROTOCOL.md");

/* -- shared tables, written by the engine ---------------------------------------------------------
 *
 * Generations come from one counter, so that no value is ever seen twice in a line; they are odd
 * while what they guard changes. Reader: load acquire, copy, acquire fence, load again. Writer:
 * store odd, release fence, change, store even with release. See engine/client/lease.c; struct
 * proto_line and struct proto_record are in base/window.h.
 */

#endif
