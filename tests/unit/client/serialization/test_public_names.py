"""What `tidelog.serialization` offers, what importing it costs, and what it says when a library is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tidelog.serialization


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", tidelog.serialization.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(tidelog.serialization, name) is not None


def test_names_that_are_none_are_missing_as_usual() -> None:
    assert not hasattr(tidelog.serialization, "YamlSerializer")


def test_nothing_is_imported_before_it_is_needed() -> None:
    heavy = "{'fastavro', 'google.protobuf', 'jsonschema', 'msgpack', 'orjson', 'urllib.request', 'pyarrow'}"
    code = f"import sys; from tidelog.serialization import StringSerializer; print({heavy} & set(sys.modules))"
    assert run(code) == "set()\n"


@pytest.mark.parametrize(
    ("name", "library", "extra"),
    [
        ("AvroSerializer", "fastavro", "avro"),
        ("JsonSchemaSerializer", "jsonschema", "json-schema"),
        ("ProtobufSerializer", "google.protobuf", "protobuf"),
        ("MsgpackSerializer", "msgpack", "msgpack"),
    ],
)
def test_a_missing_library_is_told_with_the_command_to_install_it(name: str, library: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{library!r}] = None
try:
    from tidelog.serialization import {name}
except ImportError as error:
    print(type(error).__name__, error)
"""
    said = run(code)
    assert said.startswith("MissingExtraError")
    assert f"pip install 'tidelog[{extra}]'" in said
