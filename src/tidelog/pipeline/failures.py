"""Turns Spark's error when a query fails into a message that tells the author what to change, and in which line.

What always holds: the message is one line; Spark's full error is kept in the details, and the message names its log.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.pipeline.errors import QueryFailedError

if TYPE_CHECKING:
    from tidelog.pipeline.declaration import Pipeline

_PYTHON_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
_PYTHON_ERROR = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt|Exit))(?:: (?P<words>.*))?$")
# A lookahead, so that errors nested in the message of another are found as well.
_CONDITION = re.compile(r"(?=\[(?P<name>[A-Z][A-Z0-9_.]+)\] (?P<words>[^\n]+))")
_LENGTH_MAX = 400
# What Spark wraps around the error that matters.
_WRAPPINGS = ("STREAM_FAILED", "PYTHON_EXCEPTION", "PYTHON_DATA_SOURCE_ERROR", "FAILED_EXECUTE_UDF")


def transform_failure(error: BaseException, pipeline: Pipeline, file: Path | None) -> QueryFailedError:
    """The transform raised an exception while the query was being built."""
    where = _line_of(error, pipeline, file)
    details = "".join(traceback.format_exception(error))
    return QueryFailedError(f"{where}: {_headline(error)}", details)


def query_failure(error: BaseException, pipeline: Pipeline, file: Path | None, log_file: Path) -> QueryFailedError:
    """A query of this pipeline has failed."""
    text = str(error)
    user_files = _user_files(pipeline, file)
    found = _python_failure(text, user_files)
    if found is not None:
        hint = "; here one bad row stops the query: with TopicInput(map=...), such rows become dead letters"
        message = found + hint
    else:
        message = f"{_place(pipeline, file)}: {reason_of(text)}"
    return QueryFailedError(f"{message} (full log: {log_file})", text)


def _python_failure(text: str, user_files: set[str]) -> str | None:
    """The line of the user's code in the traceback of a Python worker, with the exception raised there."""
    frames = [match for match in _PYTHON_FRAME.finditer(text) if match["file"] in user_files]
    if not frames:
        return None
    last = frames[-1]
    for line in text[last.end() :].splitlines():
        raised = _PYTHON_ERROR.match(line.strip())
        if raised is not None:
            words = f": {raised['words']}" if raised["words"] else ""
            return f"{last['file']}:{last['line']}: {raised['kind']}{words}"[:_LENGTH_MAX]
    return f"{last['file']}:{last['line']}: the function {last['name']} failed"


def reason_of(text: str) -> str:
    """Spark's innermost named error, or the first line of the text."""
    named = [match for match in _CONDITION.finditer(text) if match["name"].split(".")[0] not in _WRAPPINGS]
    if named:
        return f"{named[0]['words']} [{named[0]['name']}]"[:_LENGTH_MAX]
    for line in reversed(text.split("JVM stacktrace")[0].splitlines()):
        raised = _PYTHON_ERROR.match(line.strip())
        if raised is not None and raised["words"]:
            return f"{raised['kind']}: {raised['words']}"[:_LENGTH_MAX]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:_LENGTH_MAX] if lines else "the query failed without a message"


def _headline(error: BaseException) -> str:
    text = str(error).split("JVM stacktrace")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    words = lines[0] if lines else ""
    kind = type(error).__name__
    return (words if words.startswith("[") else f"{kind}: {words}")[:_LENGTH_MAX]


def _user_files(pipeline: Pipeline, file: Path | None) -> set[str]:
    files = {str(path) for path in file.parent.rglob("*.py")} if file is not None else set()
    code = getattr(pipeline.transform, "__code__", None)
    if code is not None:
        files.add(str(code.co_filename))
    return files


def _line_of(error: BaseException, pipeline: Pipeline, file: Path | None) -> str:
    user_files = _user_files(pipeline, file)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in user_files]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else _place(pipeline, file)


def _place(pipeline: Pipeline, file: Path | None) -> str:
    """Where the transform starts, if no line is known."""
    code = getattr(pipeline.transform, "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    return str(file) if file is not None else f"pipeline {pipeline.name!r}"
