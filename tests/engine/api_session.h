/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the public API over both transports: in this process, or with DFE_TEST_SESSION in the
 * environment over a session with a service, which is a process of the test's own. */
#ifndef DFE_TEST_API_SESSION_H
#define DFE_TEST_API_SESSION_H

#include <stdbool.h>
#include <sys/types.h>

#include "api_fixture.h"

bool session_wanted(void);

/* A service for the pool, and its socket. One for each path; the process must have one thread. */
const char *session_serve(const char *path);
/* Ends it and waits for that: it must have ended well. */
void session_end_service(const char *path);

/* One more session. */
int session_open(const char *path, bool mount, struct dfe_pool **pool);

/* As api_setup and api_teardown, over the transport that is wanted. */
void session_setup(const char *path, int posix, struct dfe_pool **pool, struct dfe_cont **cont);
void session_teardown(const char *path, struct dfe_pool *pool, struct dfe_cont *cont);

#endif
