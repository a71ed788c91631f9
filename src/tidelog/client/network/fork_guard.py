"""Detects clients inherited through a fork: in the child, their threads are gone and their sockets are the parent's.

What always holds: after a fork every guard in the child reports it, at the cost of one attribute access per check; the
parent's guards report nothing. A forked client raises ForkedError and touches neither socket nor thread.
"""

from __future__ import annotations

import os
import weakref

from tidelog.client.errors import ForkedError

_guards: weakref.WeakSet[ForkGuard] = weakref.WeakSet()


class ForkGuard:
    """Whether this process is a child of the one that created the client."""

    __slots__ = ("__weakref__", "forked", "owner")

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.forked = False
        _guards.add(self)

    def check(self) -> None:
        if self.forked:
            raise ForkedError(
                f"this {self.owner} was created before the process forked and can't be used in the child; "
                f"create a new {self.owner} here"
            )


def _mark_all() -> None:
    for guard in _guards:
        guard.forked = True


os.register_at_fork(after_in_child=_mark_all)
