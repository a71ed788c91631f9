"""Tidelog: an event streaming platform for Python and Spark teams.

Importing this package is cheap on purpose: `tidelog serve` must answer its first client within half a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.client.table import Table

__all__ = ["Table", "__version__"]

__version__ = "0.1.0"

# What people import from here, and where it is; it is imported when it is first asked for.
_HOMES = {"Table": "tidelog.client.table"}


# Type checkers would take every name for granted.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
