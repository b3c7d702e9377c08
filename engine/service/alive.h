/* SPDX-License-Identifier: Apache-2.0 */
/* A word by which readers of shared memory learn that the worker has died. */
#ifndef DFE_SERVICE_ALIVE_H
#define DFE_SERVICE_ALIVE_H

#include "base/keep.h"

struct robust_list_head;

/* On the worker's main thread: from now on the kernel marks line 0 of the tables (WINDOW_DEAD) when
 * that thread dies, however it does. No tables (NULL): nothing. */
void alive_begin(const struct keep_tables *tables);
/* The same thread serves no longer: marks it. */
void alive_end(const struct keep_tables *tables);

#endif
