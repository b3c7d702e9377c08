/* SPDX-License-Identifier: Apache-2.0 */
/* Log callback, per-thread last error, panic. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"

static base_log_fn log_fn;
static void *log_arg;
static _Thread_local char last_error[512];

static void log_stderr(int level, const char *text)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};
    if (level >= BASE_LOG_WARN)
        fprintf(stderr, "dfusepy: %s: %s\n", names[level], text);
}

static void log_emit(int level, const char *text)
{
    if (log_fn)
        log_fn(level, text, log_arg);
    else
        log_stderr(level, text);
}

void base_log_set(base_log_fn fn, void *arg)
{
    log_fn = fn;
    log_arg = arg;
}

void base_log(enum base_log_level level, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    log_emit(level, text);
}

int base_fail(int err, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(last_error, sizeof(last_error), fmt, ap);
    va_end(ap);
    log_emit(BASE_LOG_ERROR, last_error);
    return err;
}

int base_refuse(int err, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(last_error, sizeof(last_error), fmt, ap);
    va_end(ap);
    return err;
}

const char *base_last_error(void)
{
    return last_error;
}

void base_clear_error(void)
{
    last_error[0] = '\0';
}

_Noreturn void base_panic(const char *file, int line, const char *what)
{
    fprintf(stderr, "dfusepy: %s:%d: invariant broken: %s\n", file, line, what);
    abort();
}
