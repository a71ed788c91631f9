"""The checksum is the right one; neither it nor anything else that a broker imports costs much at the start."""

from __future__ import annotations

import subprocess
import sys

from tidelog.common.checksum import crc32c

# What a broker's process imports before its event loop runs.
BROKER_IMPORTS = """
import dataclasses, sys
declared = []
process_class = dataclasses._process_class
def counted(cls, *args, **options):
    declared.append(cls.__qualname__)
    return process_class(cls, *args, **options)
dataclasses._process_class = counted
import tidelog.cli.main, tidelog.server.serve, tidelog.server.settings_load
from tidelog.broker import handlers
handlers.load_all()
print(*[name for name in ("email", "importlib.metadata", "zipfile", "typer", "rich") if name in sys.modules], *declared)
"""


def test_it_is_crc32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(b"6789"), crc32c(b"12345")) == 0xE3069283


def test_a_broker_imports_nothing_that_is_costly() -> None:
    done = subprocess.run([sys.executable, "-c", BROKER_IMPORTS], capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    # Those of the client that brokers use among themselves.
    assert set(imported) <= {"Backoff"}
