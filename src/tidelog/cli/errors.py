"""From what went wrong to one line on standard error and an exit code.

What always holds: 1 means refused or failed, 2 means that the command or a setting was written wrongly, 130 that the
user pressed Ctrl-C, 141 that whoever read the output has gone. The line says what to do where that is known. A
traceback is never shown: a bug leaves it in a file whose name is given.
"""

from __future__ import annotations

import os
import sys

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # as a shell counts SIGINT
EXIT_BROKEN_PIPE = 141  # as a shell counts SIGPIPE


class CommandError(Exception):
    """A command can't go on; the text is one line for the user."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def report(message: str) -> None:
    """One line on standard error; text from elsewhere can't break it into several."""
    print(f"tidelog: {' '.join(message.split())}", file=sys.stderr, flush=True)


def report_warnings() -> None:
    """What clients warn of while they work, as a broker that is away, becomes such lines too."""
    import logging

    class Reporter(logging.Handler):
        last = ""

        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            if message != self.last:  # what is tried again and again is told once
                self.last = message
                report(message)

    logger = logging.getLogger("tidelog")
    if not logger.handlers:
        logger.addHandler(Reporter(logging.WARNING))


def error_name(error: Exception) -> str:
    """What a JSON document calls an error: Kafka's name for what a broker answered."""
    code = getattr(error, "code", None)
    return str(code.name) if code is not None else type(error).__name__


def exit_code_for(error: BaseException) -> int:
    """Tell the user and give the exit code. Everything a command can raise ends here."""
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
    report(f"this is a bug in tidelog: {type(error).__name__}: {error}; the traceback is in {_keep_traceback(error)}")
    return EXIT_FAILED


def _discard_output() -> None:
    """Python flushes standard output once more when it ends, which would complain again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _keep_traceback(error: BaseException) -> str:
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile(
        "w", prefix="tidelog-error-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        traceback.print_exception(error, file=file)
    return file.name
