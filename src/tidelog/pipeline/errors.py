"""What goes wrong with pipelines, told in the words of whoever wrote the pipeline's file."""

from __future__ import annotations


class PipelineError(Exception):
    """A pipeline can't be loaded, started or kept running; the text is one line and names what to do."""


class DeclarationError(PipelineError, ValueError):
    """A pipeline's file says something that can't be meant; the text says what would be right."""


class AlreadyRunningError(PipelineError):
    """Another process runs this version of the pipeline; two would write everything twice."""


class QueryFailedError(PipelineError):
    """The query has stopped with an error. `details` is what Spark said, in full."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details
