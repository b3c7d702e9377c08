/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker in a process of its own, with a stand-in for the dispatcher, for tests of the channel.
 *
 * A keeper process, forked while the test has one thread, starts the worker and replaces it when it
 * is killed, as the supervisor does. What the stand-in does, by operation:
 *   NOP        nothing
 *   READ       len bytes of a pattern that depends on off and ino
 *   WRITE      value: sum of the bytes; with ino a token (rig_token) done once, and counted in
 *              rig_state()->writes
 *   PUNCH      waits, as a change for mounts, until rig_state()->free, at most 20 s
 *   FSYNC      waits `off` microseconds, at most a second, on a thread that may
 *   INVAL_NEXT waits until INVAL_STOP: -ESHUTDOWN
 *   CHECK      five reports of progress
 *   SERVICE_QUERY  dfe_service_info
 *   others     -EOPNOTSUPP
 */
#ifndef DFE_CHANNEL_RIG_H
#define DFE_CHANNEL_RIG_H

#include <dfe.h>
#include <stdatomic.h>

#include "client/client.h"

#define RIG_TOKENS (1u << 20)
#define RIG_LINES 64u
#define RIG_RECORDS 64u
#define RIG_EXTENT_BYTES (1u << 20)

struct rig_state { /* shared by all processes of a test */
    atomic_int worker; /* its process */
    atomic_int exit_code;
    atomic_uint started;
    atomic_ulong writes;
    atomic_ulong proofs;
    atomic_uint waiting; /* PUNCHes */
    atomic_bool free;
    atomic_long sessions;
    atomic_ulong kill_at; /* the worker kills itself at this many writes, before the answer */
    atomic_ulong tokens;
    atomic_uchar done[RIG_TOKENS];
};

struct rig_state *rig_state(void);
const char *rig_path(void);
uint64_t rig_token(void); /* each once, never 0 */
void rig_start(uint32_t idle_ms);
void rig_kill_worker(void);  /* SIGKILL; returns when there is another */
int rig_stop(void);          /* SIGTERM; the worker's exit code */
int rig_wait(void);          /* until it ends by itself */
struct client *rig_client(uint32_t role);
int64_t rig_nop(struct client *c);
void rig_info(struct client *c, struct dfe_service_info *out);
/* What the worker has: descriptors, and mappings of clients' memory. */
unsigned rig_fds(void);
unsigned rig_maps(void);
uint8_t rig_byte(uint64_t ino, uint64_t off);

#endif
