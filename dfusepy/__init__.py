# SPDX-License-Identifier: Apache-2.0
"""A POSIX file system over an object store.

    import dfusepy

    with dfusepy.connect("demo") as pool, pool.container("home") as home, home.filesystem() as fs:
        print([entry.name for entry in fs.readdir(dfusepy.engine.ROOT)])

`dfusepy.engine` is the programming interface: what `connect` returns, and pools without a service.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dfusepy import engine

__all__ = ["connect"]


def connect(pool: str | os.PathLike[str]) -> engine.Pool:
    """A session with a pool's service, which is started where it is not running.

    pool: its label, or its directory: a path object, or text that begins with `/`, `./`, `../` or
    `~`.

    What is opened through the session can be handed to forked and spawned processes (the workers of
    a torch DataLoader): each connects for itself at its first call. Any thread may use it. Reads of
    more than 16 KiB are read-only memoryviews of the engine's own memory where they lie in one
    piece, which numpy.frombuffer takes without a copy; a view keeps its bytes as they were until it
    is let go of, whatever becomes of the file or the service.

    Raises LookupError (no such pool), ValueError (no such label can be), OSError: EACCES (it is
    another user's), and what `engine.Pool.open` raises.
    """
    from dfusepy import pools, service

    path = pools.find(pool).path if isinstance(pool, str) else os.path.abspath(pool)
    session = service.open_session(path)
    session._origin = connect, (os.path.abspath(path),)
    return session
