# SPDX-License-Identifier: Apache-2.0
"""Ends of a mount while others change what its kernel has dirty pages of."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading

import pytest
from harness import Mount, wait_for_end
from kill_rounds import session_of

from dfusepy import engine, mounts

BYTES = 1 << 20
END_S = 60.0  # 0.2 s on an idle machine

# Dirties pages of a map for as long as it lives.
MAPPER = """
import mmap, os, sys
pages = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 0)
print("maps", flush=True)
while True:
    for at in range(0, len(pages), 4096):
        pages[at] = (pages[at] + 1) % 256
"""


def test_a_signal_ends_a_mount_in_use(served: Mount) -> None:
    """The kernel, told to forget a file, writes its pages back first: somebody must answer."""
    path = served.path / "file"
    path.write_bytes(bytes(BYTES))
    ino, pid = engine.Inode(path.stat().st_ino), served.pid
    changed, stop = threading.Event(), threading.Event()

    def change() -> None:
        with (
            session_of(served.home) as session,
            session.container("data") as cont,
            cont.filesystem() as fs,
        ):
            while not stop.is_set():
                fs.write(ino, 100, os.urandom(100))
                changed.set()

    words = [sys.executable, "-c", MAPPER, path]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as mapper:
        assert mapper.stdout is not None
        assert mapper.stdout.readline() == b"maps\n"
        changer = threading.Thread(target=change)
        changer.start()
        try:
            assert changed.wait(END_S)
            os.kill(pid, signal.SIGTERM)
            assert wait_for_end(pid, END_S), f"process {pid} does not end"
        finally:
            stop.set()
            mapper.kill()
            changer.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_an_aborted_connection_gives_errors_and_ends_the_mount(served: Mount) -> None:
    """The watchdog's last means, where an invalidation hangs."""
    path, pid = served.path / "file", served.pid
    path.write_bytes(b"kept")
    with path.open("rb", buffering=0):
        mounts.abort(str(served.path))
        with pytest.raises(OSError) as caught:
            os.listdir(served.path)
        assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    assert wait_for_end(pid, END_S)
    served.umount()
    served.mount()
    assert path.read_bytes() == b"kept"
