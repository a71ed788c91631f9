"""Errors of record processing, apart from those that handlers raise themselves."""

from __future__ import annotations

from tidelog.client.errors import ClientError, RetriableError


class ClaimBusyError(RetriableError):
    """Another process is working on the same key, and waiting was not allowed or took too long."""


class ClaimLostError(ClientError):
    """The lease ran out during the work and another process took the key: the effect may have happened twice."""


class ClaimStoreError(RetriableError):
    """The deduplicator's database could not be reached; the cause is its driver's error."""


class ProcessingFailedError(ClientError):
    """A record could not be processed, and the worker pool stopped; the cause is the handler's exception."""
