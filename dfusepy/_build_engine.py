# SPDX-License-Identifier: Apache-2.0
"""Build step: writes the C source of the cffi module `dfusepy._engine` from the engine's headers.

Usage: _build_engine.py OUTPUT HEADER...   (HEADERs in the order in which they include each other)
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cffi import FFI

# Engine threads log while Python may be shutting down or forking, so no callback enters Python:
# records go to a pipe, one line each, and a reader thread hands them to `logging`. A full pipe
# drops records rather than make the engine wait; the reader tells how many.
LOG_SINK = r"""
#include <dfe.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static _Atomic int log_fd = -1;
static _Atomic uint64_t log_dropped;

static void log_to_pipe(int level, const char *text, void *arg)
{
    char line[1024];
    int fd = atomic_load(&log_fd);
    int len = snprintf(line, sizeof(line) - 1, "%d %s", level, text);

    if (fd < 0)
        return;
    if (len > (int)sizeof(line) - 2)
        len = sizeof(line) - 2;
    for (int i = 0; i < len; i++)
        if (line[i] == '\n')
            line[i] = ' ';
    line[len++] = '\n';
    if (write(fd, line, (size_t)len) != len)
        atomic_fetch_add(&log_dropped, 1);
}

/* Lines go to fd, which must be a non-blocking pipe: at most 1024 bytes are written at once. */
static void dfusepy_log_to_fd(int fd)
{
    atomic_store(&log_fd, fd);
    dfe_log_set(log_to_pipe, NULL);
}

static uint64_t dfusepy_log_dropped(void)
{
    return atomic_exchange(&log_dropped, 0);
}
"""

EXTRA = """
void dfusepy_log_to_fd(int fd);
uint64_t dfusepy_log_dropped(void);
extern "Python" void dfusepy_progress(uint64_t done, uint64_t total, void *arg);
"""


def declarations(header: Path) -> str:
    """The header without its preprocessor lines, as `FFI.cdef` reads it."""
    return re.sub(r"^\s*#.*$", "", header.read_text(encoding="utf-8"), flags=re.MULTILINE)


def main(output: str, *headers: str) -> None:
    ffi = FFI()
    for header in headers:
        ffi.cdef(declarations(Path(header)))
    ffi.cdef(EXTRA)
    ffi.set_source("dfusepy._engine", LOG_SINK)
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
