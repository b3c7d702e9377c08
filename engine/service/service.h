/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Supervisor and worker.
 *
 * The supervisor holds the listening socket and the kept memory (base/keep.h), forks the worker and
 * waits for it; one that dies by a signal is replaced, and clients take their sessions up again.
 * The worker opens the pool and serves: one thread looks at the rings (adaptive: it spins a little,
 * then sleeps in epoll), a pool of threads takes the requests that wait, one thread the sockets.
 */
#ifndef DFE_SERVICE_SERVICE_H
#define DFE_SERVICE_SERVICE_H

#include <stddef.h>
#include <stdint.h>

#include "base/keep.h"

struct dfe_service_opts;

/* The worker's whole life: 0 when it ended idle or was told to by SIGTERM, which is blocked when
 * this is called; or a negative errno. ready_fd: "ok", or why not. */
int worker_run(const struct dfe_service_opts *opts, int listen_fd, struct keep *keep,
               unsigned restarts);

/* The key of sessions' secrets. A supervisor sets a random one before it forks, so that a session
 * can be taken up again with the next worker; without it each worker has its own. */
void worker_set_key(const uint8_t key[16]);

#endif
