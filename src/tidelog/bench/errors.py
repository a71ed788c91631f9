"""What ends a measurement without figures; the command prints the text as one line."""

from __future__ import annotations


class MeasurementError(Exception):
    """A measurement can't go on; the text says why."""


class PlanError(MeasurementError, ValueError):
    """What shall be measured makes no sense."""


class PeerUnavailableError(MeasurementError):
    """The other broker, or the client of both, can't be had here; the text says what to install."""
