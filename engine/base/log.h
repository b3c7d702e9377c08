/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines go to one callback. Errors are also kept per thread, so that a face can show the reason
 * behind a negative errno (base_last_error). Any thread; no locks are taken. */
#ifndef DFE_BASE_LOG_H
#define DFE_BASE_LOG_H

enum base_log_level { BASE_LOG_DEBUG, BASE_LOG_INFO, BASE_LOG_WARN, BASE_LOG_ERROR };

typedef void (*base_log_fn)(int level, const char *text, void *arg);

/* Sets the sink; NULL restores the default (stderr, WARN and above). Before threads start. */
void base_log_set(base_log_fn fn, void *arg);

void base_log(enum base_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Logs at ERROR, remembers the text for this thread, returns `err` (a negative errno). */
int base_fail(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Remembers the text for this thread without logging it (errors that the caller's user caused). */
int base_refuse(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The text of this thread's last base_fail or base_refuse, or "". */
const char *base_last_error(void);
void base_clear_error(void);

#endif
