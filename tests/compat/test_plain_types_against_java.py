"""Plain types beside Apache Kafka's own serializers: the same bytes for random values, and read back the same."""

from __future__ import annotations

import random
import struct
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from tidelog.serialization import (
    BooleanDeserializer,
    BooleanSerializer,
    DoubleDeserializer,
    DoubleSerializer,
    FloatDeserializer,
    FloatSerializer,
    IntegerDeserializer,
    IntegerSerializer,
    LongDeserializer,
    LongSerializer,
    ShortDeserializer,
    ShortSerializer,
    StringDeserializer,
    StringSerializer,
    UUIDDeserializer,
    UUIDSerializer,
)

PROGRAM = Path(__file__).parent / "java" / "PlainTypes.java"
COUNT = 2000  # of each type
SEED = 20261116

SERIALIZERS: dict[str, tuple[Any, Any]] = {
    "short": (ShortSerializer(), ShortDeserializer()),
    "int": (IntegerSerializer(), IntegerDeserializer()),
    "long": (LongSerializer(), LongDeserializer()),
    "float": (FloatSerializer(), FloatDeserializer()),
    "double": (DoubleSerializer(), DoubleDeserializer()),
    "boolean": (BooleanSerializer(), BooleanDeserializer()),
    "uuid": (UUIDSerializer(), UUIDDeserializer()),
    "string": (StringSerializer(), StringDeserializer()),
}


def random_value(kind: str, numbers: random.Random) -> Any:
    match kind:
        case "short" | "int" | "long":
            bits = {"short": 16, "int": 32, "long": 64}[kind]
            # Small ones and those at the ends too, not only ones of full length.
            some = numbers.choice((-1, 1)) * numbers.getrandbits(numbers.randint(1, bits - 1))
            return numbers.choice((some, some, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
        case "float":
            return struct.unpack(">f", struct.pack(">f", numbers.gauss(0, 10.0 ** numbers.randint(-30, 30))))[0]
        case "double":
            return numbers.gauss(0, 10.0 ** numbers.randint(-300, 300))
        case "boolean":
            return numbers.random() < 0.5
        case "uuid":
            return uuid.UUID(int=numbers.getrandbits(128))
    alphabet = "az0 \n\0\t\"'\u00e9\u20ac\u4e2d\U0001f600"
    return "".join(numbers.choices(alphabet, k=numbers.randint(0, 20)))


def text_for_java(kind: str, value: Any) -> str:
    if kind == "string":
        return str(value).encode().hex()
    return str(value).lower() if kind == "boolean" else str(value)


@pytest.mark.compat
def test_bytes_are_those_of_javas_serializers(java_jars: Path) -> None:
    numbers = random.Random(SEED)
    values = [(kind, random_value(kind, numbers)) for kind in SERIALIZERS for _ in range(COUNT)]
    lines = "".join(f"{kind} {text_for_java(kind, value)}\n" for kind, value in values)
    command = ["java", "-Xmx256m", "-cp", f"{java_jars}/lib-4.3.1/*", str(PROGRAM)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120, check=True)
    answers = done.stdout.splitlines()
    assert len(answers) == len(values)
    for (kind, value), answer in zip(values, answers, strict=True):
        serializer, deserializer = SERIALIZERS[kind]
        data, _, shown = answer.partition(" ")
        assert serializer("topic", value).hex() == data, (kind, value)
        assert deserializer("topic", bytes.fromhex(data)) == value
        back = bytes.fromhex(shown).decode()
        if kind in ("float", "double"):
            assert float(back) == pytest.approx(value)
        else:
            assert back == (str(value).lower() if kind == "boolean" else str(value))
