# SPDX-License-Identifier: Apache-2.0
"""A process of the replay: does one call at a time on files and descriptors, as it is told.

Started as `actor.py CHANNEL`, where CHANNEL is a socket of packets. A packet is a pickled call, an
answer a pickled result: a plain value, or the name of an error. Descriptors lie in numbered
slots. A fork makes another actor, whose channel comes with the call.
"""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import socket
import stat
import sys
import zlib
from collections.abc import Callable

PACKET = 1 << 16
HOOKED = bool(os.environ.get("LD_PRELOAD")) and os.environ.get("DFUSEPY_IL") != "off"
WARM_CALLS = 40  # so many make a process worth a session


def pattern(tag: int, size: int) -> bytes:
    """Bytes that tell which write they are of, and where in it they were."""
    unit = b"".join(b"%03d.%04x|" % (tag % 1000, n) for n in range(64))
    return (unit * (size // len(unit) + 1))[:size]


def digest(data: bytes) -> tuple[int, int, bytes]:
    return len(data), zlib.crc32(data), data[:24]


class Slots:
    """The calls. Every descriptor lies in a slot; an empty one is EBADF."""

    def __init__(self, fds: dict[int, int]) -> None:
        self.fds = fds
        self.has_holes = True  # whether lseek is to tell of them

    def fd(self, slot: int) -> int:
        if slot not in self.fds:
            raise OSError(errno.EBADF, "")
        return self.fds[slot]

    def sink(self, slot: int) -> int:
        """A descriptor to write to. Without interception the kernel appends at the end that it
        knows, and what another process has bypassed it to add it learns from the next stat: the
        bytes go to the right place, the offset would not."""
        fd = self.fd(slot)
        if not HOOKED:
            os.fstat(fd)
        return fd

    def put(self, slot: int, fd: int) -> None:
        if slot in self.fds:
            os.close(self.fds[slot])
        self.fds[slot] = fd

    def open(self, slot: int, name: str, flags: int) -> object:
        self.put(slot, os.open(name, flags, 0o644))
        return "open"

    def close(self, slot: int) -> None:
        fd = self.fd(slot)
        del self.fds[slot]
        os.close(fd)

    def dup(self, slot: int, other: int) -> object:
        fd = os.dup(self.fd(slot))
        self.put(other, fd)
        return "dup"

    def dup2(self, slot: int, other: int) -> object:
        """Over the number that the other slot has."""
        if slot != other:
            os.dup2(self.fd(slot), self.fd(other), inheritable=False)
        return "dup2"

    def read(self, slot: int, size: int) -> object:
        return digest(os.read(self.fd(slot), size))

    def pread(self, slot: int, size: int, offset: int) -> object:
        return digest(os.pread(self.fd(slot), size, offset))

    def readv(self, slot: int, sizes: list[int], offset: int | None) -> object:
        buffers = [bytearray(size) for size in sizes]
        fd = self.fd(slot)
        got = os.readv(fd, buffers) if offset is None else os.preadv(fd, buffers, offset)
        return got, digest(b"".join(buffers))

    def write(self, slot: int, tag: int, size: int) -> object:
        return os.write(self.sink(slot), pattern(tag, size))

    def pwrite(self, slot: int, tag: int, size: int, offset: int) -> object:
        return os.pwrite(self.sink(slot), pattern(tag, size), offset)

    def writev(self, slot: int, tag: int, sizes: list[int], offset: int | None) -> object:
        buffers = [pattern(tag + n, size) for n, size in enumerate(sizes)]
        fd = self.sink(slot)
        return os.writev(fd, buffers) if offset is None else os.pwritev(fd, buffers, offset)

    def lseek(self, slot: int, offset: int, whence: int) -> object:
        """Where holes are not to be told of, a file is all data, with a hole at its end."""
        if whence in (os.SEEK_DATA, os.SEEK_HOLE) and not self.has_holes:
            fd = self.fd(slot)
            if stat.S_ISREG(os.fstat(fd).st_mode):
                size = os.fstat(fd).st_size
                known = 0 <= offset < size
                offset = offset if whence == os.SEEK_DATA else size
                return os.lseek(fd, offset, os.SEEK_SET) if known else os.lseek(fd, size, whence)
        return os.lseek(self.fd(slot), offset, whence)

    def ftruncate(self, slot: int, size: int) -> None:
        os.ftruncate(self.fd(slot), size)

    def fsync(self, slot: int) -> None:
        os.fsync(self.fd(slot))

    def fdatasync(self, slot: int) -> None:
        os.fdatasync(self.fd(slot))

    def fstat(self, slot: int) -> object:
        return self._attributes(os.fstat(self.fd(slot)))

    def copy(self, slot: int, other: int, size: int, offset: int | None) -> object:
        return os.copy_file_range(self.fd(slot), self.fd(other), size, offset)

    def sendfile(self, slot: int, other: int, size: int) -> object:
        return os.sendfile(self.fd(other), self.fd(slot), None, size)

    def mapped(self, slot: int, offset: int, size: int) -> object:
        """Bytes through a map, as far as the file goes."""
        fd = self.fd(slot)
        end = min(offset + size, os.fstat(fd).st_size)
        if offset >= end:
            return b""
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        with mmap.mmap(fd, end - start, mmap.MAP_SHARED, mmap.PROT_READ, offset=start) as view:
            return digest(view[offset - start :])

    def store(self, slot: int, tag: int, offset: int, size: int) -> object:
        """Through a writable map, written back at once."""
        fd = self.fd(slot)
        end = min(offset + size, os.fstat(fd).st_size)
        if offset >= end:
            return None
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        with mmap.mmap(fd, end - start, mmap.MAP_SHARED, offset=start) as view:
            view[offset - start :] = pattern(tag, end - offset)
            view.flush()
        return end - offset

    def stat(self, name: str) -> object:
        return self._attributes(os.lstat(name))

    def unlink(self, name: str) -> None:
        os.unlink(name)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def link(self, old: str, new: str) -> None:
        os.link(old, new)

    def truncate(self, name: str, size: int) -> None:
        os.truncate(name, size)

    def offsets(self) -> object:
        """Where each slot is; what is no file has no offset."""
        return {slot: os.lseek(fd, 0, os.SEEK_CUR) for slot, fd in sorted(self.fds.items())}

    @staticmethod
    def _attributes(status: os.stat_result) -> tuple[int, ...]:
        return stat.S_IFMT(status.st_mode), status.st_size, status.st_nlink


class Actor:
    """Receives calls until it is told to end, or nobody is there any more."""

    def __init__(self, channel: socket.socket, slots: Slots) -> None:
        self.channel = channel
        self.slots = slots

    def answer(self, value: object, *fds: int) -> None:
        """A message that could carry descriptors makes all of them shared to the library."""
        if fds:
            socket.send_fds(self.channel, [pickle.dumps(value)], fds)
        else:
            self.channel.send(pickle.dumps(value))

    def serve(self) -> None:
        while True:
            packet, fds, _, _ = socket.recv_fds(self.channel, PACKET, 1)
            if not packet:
                return
            name, *words = pickle.loads(packet)
            try:
                if handler := getattr(self, f"do_{name}", None):
                    handler(*words, *fds)
                else:
                    call: Callable[..., object] = getattr(self.slots, name)
                    self.answer(call(*words))
            except OSError as exc:
                self.answer(errno.errorcode[exc.errno or 0])

    def do_enter(self, folder: str, has_holes: bool) -> None:
        os.chdir(folder)
        self.slots.has_holes = has_holes
        self.answer(os.getpid())

    def do_warm(self, path: str) -> None:
        """Reads so often from a file on the mount that a session is worth while."""
        fd = os.open(path, os.O_RDONLY)
        for _ in range(WARM_CALLS):
            os.pread(fd, 100, 0)
        os.close(fd)
        self.answer(None)

    def do_fork(self, channel: int) -> None:
        """The child answers on its own channel, the parent when it is there."""
        pid = os.fork()
        if pid == 0:
            self.channel.close()
            self.channel = socket.socket(fileno=channel)
            self.answer("child")
            return
        os.close(channel)
        self.answer(pid)

    def do_exec(self, preload: str) -> None:
        """Becomes another program, which keeps the descriptors and is hooked or not."""
        for fd in (self.channel.fileno(), *self.slots.fds.values()):
            os.set_inheritable(fd, True)
        words = [str(int(self.slots.has_holes))]
        words += [f"{slot}:{fd}" for slot, fd in self.slots.fds.items()]
        program = [sys.executable, "-S", "-E", __file__, str(self.channel.fileno()), *words]
        env = {**os.environ, "LD_PRELOAD": preload, "DFUSEPY_IL": "on" if preload else "off"}
        os.execve(sys.executable, program, env)

    def do_send(self, slot: int) -> None:
        """Hands out a descriptor, and keeps it."""
        self.answer("sent", self.slots.fd(slot))

    def do_receive(self, slot: int, fd: int) -> None:
        self.slots.put(slot, fd)
        self.answer("received")

    def do_end(self) -> None:
        """Without what Python does at its end: a fork shares that with its parent."""
        self.answer("end")
        os._exit(0)

    def do_reap(self, pid: int) -> None:
        self.answer(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    actor = Actor(channel, Slots({}))
    if len(sys.argv) > 2:  # after an exec
        actor.slots.has_holes = sys.argv[2] == "1"
        for word in sys.argv[3:]:
            slot, fd = map(int, word.split(":"))
            actor.slots.fds[slot] = fd
        actor.answer("again")
    actor.serve()


if __name__ == "__main__":
    main()
