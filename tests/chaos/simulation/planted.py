"""What a planted mistake is: a name, the rule it breaks, and how to make the code break it for a while."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

Planting = AbstractContextManager[Any]


@dataclass(frozen=True)
class Mistake:
    """One mistake; entering what `plant` returns makes it, leaving it mends it."""

    name: str
    breaks: str
    plant: Callable[[], Planting]


def planted(plant: Callable[[], Planting]) -> Mistake:
    """A function that plants, as a mistake named and described after it."""
    assert plant.__doc__ is not None
    return Mistake(plant.__name__, plant.__doc__, plant)


def patched(*patches: tuple[object, str, Any]) -> ExitStack:
    """Several attributes replaced at once."""
    stack = ExitStack()
    for target, name, instead in patches:
        stack.enter_context(mock.patch.object(target, name, instead))
    return stack
