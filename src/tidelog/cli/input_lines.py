"""Standard input in lines, as many at a time as one read brings.

What always holds: bytes come out as they went in, without the line ends; a last line without an end counts; an empty
list means that no more input is there at the moment, so that progress can be shown instead of waiting in silence.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

READ_BYTES = 1024 * 1024
LINGER_S = 0.005  # as long as Kafka's producers wait for more records


def read_lines(fd: int) -> Iterator[list[bytes]]:
    unfinished: list[bytes] = []  # the pieces of a line that has no end yet: joined once, however many they are
    while True:
        if not select.select([fd], [], [], LINGER_S)[0]:
            yield []
        chunk = os.read(fd, READ_BYTES)
        if not chunk:
            break
        lines = chunk.split(b"\n")
        if len(lines) > 1 and unfinished:
            lines[0] = b"".join([*unfinished, lines[0]])
            unfinished.clear()
        last = lines.pop()
        if last:
            unfinished.append(last)
        if lines:
            yield lines
    if unfinished:
        yield [b"".join(unfinished)]
