"""What can go wrong while records are processed, beside what the handlers raise themselves."""

from __future__ import annotations

from tidelog.client.errors import ClientError, RetriableError


class ClaimBusyError(RetriableError):
    """Another process works on the same key; it was not waited for, or not long enough."""


class ClaimLostError(ClientError):
    """The lease ran out during the work and another process took the key: the effect may have happened twice."""


class ClaimStoreError(RetriableError):
    """The database of a deduplicator could not be asked; the cause is its driver's error."""


class ProcessingFailedError(ClientError):
    """A record could not be processed, and the worker pool stopped at it; the cause is what the handler raised."""
