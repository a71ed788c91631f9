"""Errors of pipelines, in terms that the author of the pipeline's file understands."""

from __future__ import annotations


class PipelineError(Exception):
    """A pipeline can't be loaded, started or kept running; the message is one line and says what to do."""


class DeclarationError(PipelineError, ValueError):
    """There is a mistake in a pipeline's file; the message says how to fix it."""


class AlreadyRunningError(PipelineError):
    """Another process runs this version of the pipeline; two would write everything twice."""


class QueryFailedError(PipelineError):
    """The query has stopped with an error. `details` is the full message from Spark."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details
