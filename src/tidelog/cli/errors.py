"""Errors become one line on standard error and an exit code.

What always holds: 1 means refused or failed, 2 that the command or a setting was written wrongly, 130 that the user
pressed Ctrl-C, 141 that the reader of the output has gone. The line says what to do where that is known. A traceback
is never shown: a bug leaves it in a file, and the line names the file.
"""

from __future__ import annotations

import os
import sys

from tidelog.common.extras import install_command

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # as a shell counts SIGINT
EXIT_BROKEN_PIPE = 141  # as a shell counts SIGPIPE

# Packages that commands import when they need them, and the extra that brings each.
EXTRAS = {
    "aiokafka": "bench",
    "confluent_kafka": "bench",
    "deltalake": "delta",
    "fastavro": "avro",
    "jsonschema": "json-schema",
    "kafka": "bench",
    "matplotlib": "charts",
    "msgpack": "msgpack",
    "pandas": "spark",
    "psycopg": "postgres",
    "pyarrow": "arrow",
    "pyspark": "spark",
    "redis": "redis",
}


class CommandError(Exception):
    """The command can't continue; the text is one line for the user."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def report(message: str) -> None:
    """One line on standard error, whatever line breaks the message has."""
    prefix = "\x1b[1;31mtidelog:\x1b[0m" if has_colour() else "tidelog:"
    print(f"{prefix} {' '.join(message.split())}", file=sys.stderr, flush=True)


def has_colour() -> bool:
    """Whether standard error shows colours: a terminal that can, and a user who wants them (no-color.org)."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def report_warnings() -> None:
    """Show the warnings of clients, such as a broker that can't be reached, as such lines too."""
    import logging

    class Reporter(logging.Handler):
        last = ""

        def emit(self, record: logging.LogRecord) -> None:
            if record.name.endswith(".failure_log"):
                return  # the command itself says what was not delivered
            message = record.getMessage()
            if message != self.last:  # a retry that fails the same way is reported once
                self.last = message
                report(message)

    logger = logging.getLogger("tidelog")
    if not logger.handlers:
        logger.addHandler(Reporter(logging.WARNING))


def error_name(error: Exception) -> str:
    """The name of an error in JSON: Kafka's own, if a broker answered with it."""
    code = getattr(error, "code", None)
    return str(code.name) if code is not None else type(error).__name__


def exit_code_for(error: BaseException) -> int:
    """Report the error and return the exit code. Everything that a command can raise ends up here."""
    # Imported here: `tidelog serve` must not pay for the client.
    from tidelog.client.errors import ClientError
    from tidelog.common.settings import SettingError

    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, BrokenPipeError):
        _discard_output()
        return EXIT_BROKEN_PIPE
    if isinstance(error, CommandError):
        report(str(error))
        return error.exit_code
    if isinstance(error, SettingError):
        report(str(error))
        return EXIT_USAGE
    if isinstance(error, ClientError):
        report(str(error))
        return EXIT_FAILED
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        report(f"{where}{error.strerror or error}")
        return EXIT_FAILED
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in EXTRAS:
        report(missing_extra_text((error.name or "").partition(".")[0]))
        return EXIT_FAILED
    report(f"this is a bug in tidelog: {type(error).__name__}: {error}; {_keep_traceback(error)}")
    return EXIT_FAILED


def missing_extra_text(package: str) -> str:
    return f"this command needs {package}, which is not installed: {install_command(EXTRAS[package])}"


def _discard_output() -> None:
    """Python flushes standard output once more when it exits, which would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _keep_traceback(error: BaseException) -> str:
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="tidelog-error-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            traceback.print_exception(error, file=file)
    except OSError as problem:
        return f"its traceback could not be saved ({problem})"
    return f"its traceback is in {file.name}"
