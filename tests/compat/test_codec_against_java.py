"""Kafka's own classes read every message of its APIs, in every version, and write the very same bytes again."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tidelog.protocol import ErrorCode, all_apis, encode, request_class, response_class
from tidelog.protocol.declare import Message
from tidelog.protocol.schema import Field, fields_of

pytestmark = pytest.mark.compat

# Reads lines "key request|response version hex" and prints what Kafka's classes make of each, then its error codes.
_JAVA = """
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.*;

public class Again {
    public static void main(String[] arguments) throws Exception {
        var input = new java.io.BufferedReader(new java.io.InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ", -1);
            ApiMessageType type = ApiMessageType.fromApiKey(Short.parseShort(words[0]));
            ApiMessage message = words[1].equals("request") ? type.newRequest() : type.newResponse();
            short version = Short.parseShort(words[2]);
            ByteBuffer data = ByteBuffer.wrap(HexFormat.of().parseHex(words[3]));
            message.read(new ByteBufferAccessor(data), version);
            ByteBuffer again = MessageUtil.toByteBufferAccessor(message, version).buffer();
            byte[] bytes = new byte[again.remaining()];
            again.get(bytes);
            System.out.println(data.remaining() + " " + HexFormat.of().formatHex(bytes));
        }
        for (Errors error : Errors.values()) {
            System.out.println(error.code() + " " + error.name() + " "
                + (error.exception() instanceof RetriableException));
        }
    }
}
"""


def _value(field: Field, version: int, seed: int) -> object:
    if field.struct is not None:
        return _message(field.struct, version, seed)
    assert field.wire is not None
    values: dict[str, object] = {
        "bool": True,
        "float64": seed + 0.5,
        "uuid": UUID(int=seed + (7 << 100)),
        "string": f"text-{seed}-" + "ß" * (seed % 200),
        "bytes": bytes([seed % 256, 255, 0]),
        "records": bytes([seed % 256]) * 5,
    }
    return values.get(field.wire.name, seed % 100 + 1)


def _message(cls: type[Message], version: int, seed: int) -> Message:
    """A message in which each field that the version has is set; seed 0 leaves what may be null as null."""
    values: dict[str, Any] = {}
    for number, field in enumerate(fields_of(cls)):
        own_seed = seed * 3 + number
        if not field.versions.holds(version):
            continue
        if seed == 0 and field.is_nullable(version):
            values[field.name] = None
        elif field.is_array:
            values[field.name] = [_value(field, version, own_seed + index) for index in range(2)]
        else:
            values[field.name] = _value(field, version, own_seed)
    return cls(**values)


def _lines() -> Iterator[str]:
    for api in all_apis():
        if api.is_own:
            continue
        for version in range(api.versions.first, api.versions.last + 1):
            for kind, cls in (("request", request_class(api)), ("response", response_class(api))):
                for message in (cls(), _message(cls, version, 0), _message(cls, version, 40)):
                    yield f"{api.key} {kind} {version} {encode(message, version).hex()}"


def test_java_reads_and_writes_the_same(tmp_path: Path) -> None:
    jar = os.environ.get("COMPAT_KAFKA_CLIENTS_JAR")
    if not jar:
        pytest.fail("COMPAT_KAFKA_CLIENTS_JAR is not set: run these tests with `make compat`, which sets it")
    if shutil.which("java") is None:
        pytest.fail("java is not installed: apt-get install openjdk-17-jdk-headless")
    program = tmp_path / "Again.java"
    program.write_text(_JAVA)
    lines = list(_lines())
    ran = subprocess.run(
        ["java", "-cp", f"{Path(jar).parent}/*", str(program)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    answers = ran.stdout.splitlines()
    assert ran.returncode == 0, f"after {lines[len(answers)] if len(answers) < len(lines) else 'all'}: {ran.stderr}"
    for line, answer in zip(lines, answers[: len(lines)], strict=True):
        assert answer == f"0 {line.rpartition(' ')[2]}", line
    codes = [f"{int(code)} {code.name} {str(code.retriable).lower()}" for code in ErrorCode]
    assert answers[len(lines) :] == codes
