"""Which Python runs Spark's workers: this one, with the pyspark that is installed in it.

Spark puts its own copy of pyspark before everything else that a worker finds. That copy is a zip without compiled
modules: each of the seven kinds of Python processes that a query starts compiles pyspark anew, 0.7 s of work where the
installed one takes 0.2. On one machine both are the same files, so the zip is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import sys
import tempfile
from pathlib import Path

from tidelog.common.user_cache import cache_directory

VARIABLE = "PYSPARK_PYTHON"

_SCRIPT = """\
#!/bin/sh
# Runs Spark's Python workers with the installed pyspark instead of the copy that Spark ships to them, which is a zip
# without compiled modules. Written by tidelog; it is made again when it is missing.
kept=
IFS=:
for place in $PYTHONPATH; do
    case "$place" in
        {home}/python/lib/*.zip) ;;
        *) kept="$kept${{kept:+:}}$place" ;;
    esac
done
PYTHONPATH="$kept" exec {python} "$@"
"""


def use_this_python() -> None:
    """Let Spark's workers on this machine run in this environment, where tidelog is; before the session is made.

    An interpreter that `PYSPARK_PYTHON` names already is kept.
    """
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = worker_python()


def worker_python() -> str:
    """What `PYSPARK_PYTHON` is set to: a script that starts this interpreter, or the interpreter itself."""
    return str(_script() or sys.executable)


def _script() -> Path | None:
    """The script in the user's cache, written if need be; None where it can't be written, or pyspark has no zip."""
    import pyspark

    home = Path(pyspark.__file__).parent
    if not (home / "python" / "lib" / "pyspark.zip").exists():
        return None
    text = _SCRIPT.format(home=shlex.quote(str(home)), python=shlex.quote(sys.executable))
    name = f"spark-python-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    with contextlib.suppress(OSError, RuntimeError):  # the latter from a user without a home
        file = cache_directory() / name
        if not file.exists():
            _write(file, text)
        return file
    return None


def _write(file: Path, text: str) -> None:
    """In one step: other processes may start with it at any time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.name)
    try:
        with open(descriptor, "w", encoding="utf-8") as output:
            output.write(text)
        os.chmod(temporary, 0o755)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
