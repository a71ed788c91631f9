from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog.client.cluster import Cluster
from tidelog.client.produce import Producer

if TYPE_CHECKING:
    from tests.scenario.cli.conftest import Command

READ_ALL = ("--from-beginning", "--exit-at-end")
DEADLINE_S = 60


def fill(tidelog: Command, topic: str, count: int) -> None:
    """Records n with timestamp 1000 * n, all in partition 0."""
    with Cluster(tidelog.bootstrap) as cluster, Producer(cluster) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=0, timestamp_ms=1000 * number)


def test_round_trip_with_keys_headers_and_null(tidelog: Command, topic: str) -> None:
    produced = tidelog(
        *("produce", topic, "--key-separator", ":", "--null-marker", "NULL", "--header", "a=1", "--header", "b=x=y"),
        stdin=b"k1:v1\nk2:\nk3:NULL\nNULL:v4:more\n",
    ).ok()
    assert produced.text.startswith(f"produced 4 records (15 B) to {topic} in ")
    assert produced.text.rstrip().endswith("records/s")
    lines = tidelog("consume", topic, *READ_ALL, "--format", "%k|%v|%h", "--null-marker", "-").ok().text.splitlines()
    assert sorted(lines) == ["-|v4:more|a=1,b=x=y", "k1|v1|a=1,b=x=y", "k2||a=1,b=x=y", "k3|-|a=1,b=x=y"]


def test_bytes_survive(tidelog: Command, topic: str) -> None:
    source = random.Random(5)
    lines = [source.randbytes(source.randrange(0, 300)).replace(b"\n", b"") for _ in range(200)]
    tidelog("produce", topic, "--partition", "2", stdin=b"\n".join(lines)).ok()
    assert tidelog("consume", topic, *READ_ALL).ok().out == b"".join(line + b"\n" for line in lines)


@pytest.mark.parametrize(
    ("compression", "acks"), [("none", "all"), ("gzip", "1"), ("snappy", "0"), ("lz4", "all"), ("zstd", "1")]
)
def test_every_compression_and_acks(tidelog: Command, topic: str, compression: str, acks: str) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(1000))
    options = ("--compression", compression, "--acks", acks, "--partition", "0")
    summary = tidelog("produce", topic, *options, "--json", stdin=lines).ok().json()
    assert summary["delivered_records"] == 1000
    assert summary["failed_records"] == 0
    # With acks=0 the command may end before the broker has stored the last records.
    consumed = tidelog("consume", topic, "--from-beginning", "--max-messages", "1000").ok()
    assert consumed.out == lines


def test_many_lines_stay_in_order_by_key(tidelog: Command, topic: str) -> None:
    lines = "".join(f"{number % 5}:{number}\n" for number in range(30_000))
    tidelog("produce", topic, "--key-separator", ":", "--compression", "lz4", stdin=lines.encode()).ok()
    seen: dict[str, list[int]] = {}
    for line in tidelog("consume", topic, *READ_ALL, "--format", r"%k\t%v").ok().text.splitlines():
        key, value = line.split("\t")
        seen.setdefault(key, []).append(int(value))
    assert seen == {str(key): list(range(key, 30_000, 5)) for key in range(5)}


def test_json_lines(tidelog: Command, topic: str) -> None:
    tidelog("produce", topic, "--key-separator", ":", "--partition", "1", stdin=b"k:\xff\nk:text\n").ok()
    documents = [json.loads(line) for line in tidelog("consume", topic, *READ_ALL, "--json").ok().out.splitlines()]
    assert [document["offset"] for document in documents] == [0, 1]
    assert documents[0]["value_base64"] == "/w=="
    assert documents[1]["value"] == "text"
    assert documents[1]["key"] == "k"
    assert documents[1]["partition"] == 1
    assert documents[1]["topic"] == topic


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--from-beginning", "--max-messages", "2"], ["0", "1"]),
        (["--offset", "3", "--exit-at-end", "--partition", "0"], ["3", "4"]),
        (["--offset", "-1", "--exit-at-end", "--partition", "0"], ["4"]),
        (["--timestamp", "2500", "--exit-at-end"], ["3", "4"]),
        (["--timestamp", "1970-01-01T00:00:04Z", "--exit-at-end"], ["4"]),
        (["--timestamp", "9999999", "--exit-at-end"], []),
        (["--exit-at-end"], []),
        (["--from-beginning", "--exit-at-end", "--partition", "1", "--partition", "2"], []),
    ],
)
def test_where_to_start_and_stop(tidelog: Command, topic: str, options: list[str], expected: list[str]) -> None:
    fill(tidelog, topic, 5)
    assert tidelog("consume", topic, *options).ok().text.split() == expected


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (["produce", "not-there"], b"x\n", "create it with 'tidelog topics create not-there'"),
        (["consume", "not-there", "--exit-at-end"], b"", "create it with 'tidelog topics create not-there'"),
        (["produce", "{topic}", "--partition", "7"], b"x\n", "no partition 7; it has 0 to 2"),
        (["consume", "{topic}", "--partition", "7", "--from-beginning"], b"", "no partition 7; it has 0 to 2"),
        (["consume", "{topic}", "--partition", "0", "--offset", "99"], b"", "no offset 99; it holds 0 up to 0"),
    ],
)
def test_refusals_are_one_line(tidelog: Command, topic: str, arguments: list[str], stdin: bytes, words: str) -> None:
    result = tidelog(*(argument.format(topic=topic) for argument in arguments), stdin=stdin)
    assert words in result.refused()
    assert result.out == b""


def test_a_line_without_its_key_stops_after_those_before_it(tidelog: Command, topic: str) -> None:
    result = tidelog("produce", topic, "--key-separator", "=", stdin=b"a=1\nb=2\nc\nd=4\n")
    assert "line 3 has no key separator '='" in result.refused()
    assert len(tidelog("consume", topic, *READ_ALL).ok().text.split()) == 2


def test_a_record_too_large_fails_alone(tidelog: Command, topic: str) -> None:
    result = tidelog("produce", topic, "--partition", "0", stdin=b"a\n" + b"x" * 1_100_000 + b"\nb\n")
    assert result.code == 1
    assert "produced 2 records" in result.text
    assert "1 failed" in result.text
    complaints = result.err.splitlines()
    assert len(complaints) == 2
    assert "MESSAGE_TOO_LARGE" in complaints[0]
    assert "1 record could not be delivered" in complaints[1]
    assert tidelog("consume", topic, *READ_ALL).ok().text.split() == ["a", "b"]


def test_nothing_to_produce_is_no_error(tidelog: Command, topic: str) -> None:
    assert tidelog("produce", topic, stdin=b"").ok().text.startswith("produced 0 records (0 B)")


def test_lines_are_sent_when_the_input_pauses(tidelog: Command, topic: str) -> None:
    process = tidelog.start("produce", topic)
    assert process.stdin is not None
    process.stdin.write(b"early\n")
    process.stdin.flush()
    # The command still waits for more lines while this one is read.
    assert tidelog("consume", topic, "--from-beginning", "--max-messages", "1").ok().text == "early\n"
    assert process.poll() is None
    process.stdin.write(b"late")
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert out.startswith(b"produced 2 records")


def test_follows_until_ctrl_c(tidelog: Command, topic: str) -> None:
    fill(tidelog, topic, 1)
    process = tidelog.start("consume", topic, "--from-beginning")
    assert process.stdout is not None
    assert process.stdout.readline() == b"0\n"
    tidelog("produce", topic, stdin=b"more\n").ok()
    assert process.stdout.readline() == b"more\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_a_reader_that_has_enough_is_no_drama(tidelog: Command, topic: str) -> None:
    fill(tidelog, topic, 50_000)
    process = tidelog.start("consume", topic, "--from-beginning")
    assert process.stdout is not None
    assert process.stdout.readline() == b"0\n"
    process.stdout.close()
    assert process.wait(DEADLINE_S) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_nobody_listens(make_command: Callable[[str], Command]) -> None:
    result = make_command("127.0.0.1:1")("topics", "list")
    assert result.refused() == (
        "tidelog: cannot reach broker at 127.0.0.1:1: connection refused - is it running? "
        "start one with 'tidelog serve'\n"
    )


def test_bootstrap_option_outranks_the_environment(make_command: Callable[[str], Command], tidelog: Command) -> None:
    make_command("127.0.0.1:1")("topics", "list", "--bootstrap", f"127.0.0.1:2,{tidelog.bootstrap}").ok()
