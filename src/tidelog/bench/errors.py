"""Errors that end a benchmark without figures; the command prints the text as one line."""

from __future__ import annotations


class MeasurementError(Exception):
    """A measurement can't continue; the text says why."""


class PlanError(MeasurementError, ValueError):
    """The plan makes no sense."""


class PeerUnavailableError(MeasurementError):
    """The peer, or a client that both sides need, is not installed; the text says what to install."""
