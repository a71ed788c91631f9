"""A million records of mixed sizes through kcat into the broker and back: byte for byte what went in, in order."""

from __future__ import annotations

import hashlib
import random
import subprocess
from pathlib import Path

import pytest

from tidelog.testing import Broker

pytestmark = pytest.mark.xdist_group("million")  # they share a large file

RECORDS = 1_000_000
WAIT_S = 240
# The number at the start of a line, with which the order within a partition can be told.
NUMBER_DIGITS = 7


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of numbered lines, mostly small, up to 2 kB. kcat takes an empty line for no record, so there is none."""
    source = random.Random(1_000_000)
    noise = source.randbytes(1 << 20).translate(bytes.maketrans(b"\n\0", b"  "))
    path = tmp_path_factory.mktemp("million") / "lines"
    with path.open("wb") as file:
        for number in range(RECORDS):
            kind = source.random()
            size_bytes = int(kind * 130) if kind < 0.9 else int(source.random() * (400 if kind < 0.99 else 2_000))
            start = int(source.random() * (len(noise) - size_bytes))
            file.write(b"%07d%s\n" % (number, noise[start : start + size_bytes]))
    assert path.stat().st_size < 200_000_000
    return path


def kcat(broker: Broker, arguments: list[str], *, content: Path | None = None, output: Path | None = None) -> None:
    """Run kcat with a file as its standard input or output."""
    with (content or Path("/dev/null")).open("rb") as given, (output or Path("/dev/null")).open("wb") as taken:
        done = subprocess.run(
            ["kcat", "-b", broker.bootstrap, *arguments],
            stdin=given,
            stdout=taken,
            stderr=subprocess.PIPE,
            timeout=WAIT_S,
        )
    assert done.returncode == 0, done.stderr.decode(errors="replace")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_million_records_through_one_partition(broker: Broker, lines: Path, tmp_path: Path, codec: str) -> None:
    broker.create_topic("million")
    kcat(broker, ["-P", "-t", "million", "-p", "0", "-z", codec], content=lines)
    back = tmp_path / "back"
    kcat(broker, ["-C", "-t", "million", "-p", "0", "-o", "beginning", "-e", "-q"], output=back)
    assert sha256(back) == sha256(lines)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_million_records_through_three_partitions(broker: Broker, lines: Path, tmp_path: Path, codec: str) -> None:
    broker.create_topic("million", 3)
    kcat(broker, ["-P", "-t", "million", "-z", codec], content=lines)
    found: list[bytes] = []
    for partition in range(3):
        back = tmp_path / f"back-{partition}"
        kcat(broker, ["-C", "-t", "million", "-p", str(partition), "-o", "beginning", "-e", "-q"], output=back)
        records = back.read_bytes().removesuffix(b"\n").split(b"\n")
        assert records == sorted(records, key=lambda line: line[:NUMBER_DIGITS]), (
            f"partition {partition} is out of order"
        )
        assert records
        found += records
    found.sort(key=lambda line: line[:NUMBER_DIGITS])
    assert hashlib.sha256(b"\n".join([*found, b""])).hexdigest() == sha256(lines)
