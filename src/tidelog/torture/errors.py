"""The error that ends a torture run without a verdict; the command prints its text as one line."""

from __future__ import annotations


class TortureError(Exception):
    """The run can't be made, or can't go on; the text says why and what to do."""
