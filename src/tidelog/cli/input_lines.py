"""Lines from standard input as bytes, with a word when the input falls silent.

What always holds: bytes come out as they went in, without the line's end; a last line without an end counts; `None`
says that no more input is there at the moment, so that what was read can be sent instead of waiting for more.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

READ_BYTES = 1024 * 1024
LINGER_S = 0.005  # as long as Kafka's producers wait for more records to go with one


def read_lines(fd: int) -> Iterator[bytes | None]:
    rest = b""
    while True:
        if not select.select([fd], [], [], LINGER_S)[0]:
            yield None
        chunk = os.read(fd, READ_BYTES)
        if not chunk:
            break
        lines = (rest + chunk).split(b"\n") if rest else chunk.split(b"\n")
        rest = lines.pop()
        yield from lines
    if rest:
        yield rest
