from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog import Admin, Producer
from tidelog.cli.produce import Sending
from tidelog.client.types import TopicPartition

if TYPE_CHECKING:
    from tests.scenario.cli.conftest import Command

READ_ALL = ("--from-beginning", "--exit-at-end")
DEADLINE_S = 60


def fill(tidelog: Command, topic: str, count: int) -> None:
    """Records n with timestamp 1000 * n, all in partition 0."""
    with Producer(bootstrap_servers=tidelog.bootstrap) as producer:
        sent = [producer.send(topic, b"%d" % number, partition=0, timestamp=1000 * number) for number in range(count)]
        producer.flush()
    assert all(future.result().offset == number for number, future in enumerate(sent))


def test_round_trip_with_keys_headers_and_null(tidelog: Command, topic: str) -> None:
    produced = tidelog(
        *("produce", topic, "--key-separator", ":", "--null-marker", "NULL", "--header", "a=1", "--header", "b=x=y"),
        stdin=b"k1:v1\nk2:\nk3:NULL\nNULL:v4:more\n",
    ).ok()
    assert produced.text.startswith(f"produced 4 records (15 B) to {topic} in ")
    assert produced.text.rstrip().endswith("records/s")
    lines = tidelog("consume", topic, *READ_ALL, "--format", "%k|%v|%h", "--null-marker", "-").ok().text.splitlines()
    assert sorted(lines) == ["-|v4:more|a=1,b=x=y", "k1|v1|a=1,b=x=y", "k2||a=1,b=x=y", "k3|-|a=1,b=x=y"]


def test_options_of_kcat(tidelog: Command, topic: str) -> None:
    tidelog("produce", "-b", tidelog.bootstrap, "-t", topic, "-K", ":", "-z", "lz4", "-H", "a=1", stdin=b"k:v\n").ok()
    assert tidelog("consume", "-t", topic, "-o", "earliest", "-e", "-f", "%k=%v %h").ok().text == "k=v a=1\n"
    [line] = tidelog("consume", "-t", topic, "-o", "earliest", "-e", "-J").ok().text.splitlines()
    assert json.loads(line)["value"] == "v"


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
        (["--offset", "earliest", "--exit-at-end"], ["0", "1", "2", "3", "4"]),
        (["-o", "end", "-e"], []),
        (["-o", "-2", "-e", "-p", "0", "-f", "%o"], ["3", "4"]),
        (["-o", "beginning", "-c", "1"], ["0"]),
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


def test_ctrl_c_ends_it_where_the_shell_has_it_ignored(tidelog: Command, topic: str) -> None:
    """As a script does for its commands in the background."""
    fill(tidelog, topic, 1)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = tidelog.start("consume", topic, "--from-beginning")
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdout is not None
    assert process.stdout.readline() == b"0\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 130


def test_a_reader_that_has_enough_is_no_drama(tidelog: Command, topic: str) -> None:
    fill(tidelog, topic, 50_000)
    process = tidelog.start("consume", topic, "--from-beginning")
    assert process.stdout is not None
    assert process.stdout.readline() == b"0\n"
    process.stdout.close()
    assert process.wait(DEADLINE_S) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""


@pytest.mark.parametrize("stream", ["<&-", ">&-", "2>&-"])
@pytest.mark.parametrize("arguments", ["topics list", "produce {topic}", "consume {topic} -o earliest -e"])
def test_closed_standard_streams(tidelog: Command, topic: str, arguments: str, stream: str) -> None:
    line = f"{sys.executable} -m tidelog {arguments.format(topic=topic)} {stream}"
    done = subprocess.run(
        ["bash", "-c", line],
        env=tidelog.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("arguments", [("topics", "list"), ("produce", "x"), ("consume", "x"), ("groups", "list")])
def test_nobody_listens(make_command: Callable[[str], Command], arguments: tuple[str, ...]) -> None:
    result = make_command("127.0.0.1:1")(*arguments)
    assert result.refused() == (
        "tidelog: cannot reach broker at 127.0.0.1:1: connection refused - is it running? "
        "start one with 'tidelog serve'\n"
    )


def test_bootstrap_option_outranks_the_environment(make_command: Callable[[str], Command], tidelog: Command) -> None:
    make_command("127.0.0.1:1")("topics", "list", "--bootstrap", f"127.0.0.1:2,{tidelog.bootstrap}").ok()


def committed(tidelog: Command, group: str, topic: str) -> int:
    with Admin(bootstrap_servers=tidelog.bootstrap) as admin:
        return admin.list_consumer_group_offsets(group)[group][TopicPartition(topic, 0)].offset


def test_a_group_goes_on_where_it_stopped(tidelog: Command, topic: str) -> None:
    fill(tidelog, topic, 7)
    group = f"{topic}-readers"
    first = tidelog("consume", topic, "--group", group, "--from-beginning", "--max-messages", "3").ok()
    assert first.text.split() == ["0", "1", "2"]
    assert committed(tidelog, group, topic) == 3
    rest = tidelog("consume", topic, "--group", group, "--from-beginning", "--exit-at-end").ok()
    assert rest.text.split() == ["3", "4", "5", "6"]
    assert committed(tidelog, group, topic) == 7
    assert tidelog("consume", topic, "--group", group, "--from-beginning", "--exit-at-end").ok().out == b""


def test_a_new_group_begins_with_what_comes(tidelog: Command, topic: str) -> None:
    fill(tidelog, topic, 3)
    assert tidelog("consume", topic, "--group", f"{topic}-late", "--exit-at-end").ok().out == b""


def test_members_of_a_group_share_the_partitions(tidelog: Command, topic: str) -> None:
    group = f"{topic}-shared"
    arguments = ("consume", topic, "--group", group, "--from-beginning")
    one, two = tidelog.start(*arguments), tidelog.start(*arguments)
    try:
        wait_for_members(tidelog, group, 2)
        for partition in range(3):
            tidelog("produce", topic, "--partition", str(partition), stdin=b"for %d\n" % partition).ok()
    finally:
        # Long enough for what was produced to arrive, which nobody can see from outside but on their output.
        wait_for_lag(tidelog, group, topic, 3)
        for process in (one, two):
            process.send_signal(signal.SIGINT)
    lines = [line for process in (one, two) for line in process.communicate(timeout=DEADLINE_S)[0].split(b"\n") if line]
    assert sorted(lines) == [b"for 0", b"for 1", b"for 2"]
    assert (one.returncode, two.returncode) == (130, 130)


def wait_for_members(tidelog: Command, group: str, count: int) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    with Admin(bootstrap_servers=tidelog.bootstrap) as admin:
        while True:
            results = admin.describe_consumer_groups(group)
            described = None if results.errors else results[group]
            if described and described.state == "Stable" and len(described.members) == count:
                return
            assert time.monotonic() < deadline_s, described
            threading.Event().wait(0.05)


def wait_for_lag(tidelog: Command, group: str, topic: str, partitions: int) -> None:
    """Until one record of each partition is committed."""
    deadline_s = time.monotonic() + DEADLINE_S
    with Admin(bootstrap_servers=tidelog.bootstrap) as admin:
        while True:
            offsets = admin.list_consumer_group_offsets(group)[group]
            if sum(row.offset for row in offsets.values()) == partitions:
                return
            assert time.monotonic() < deadline_s, offsets
            threading.Event().wait(0.05)


def test_a_group_excludes_what_it_decides_itself(tidelog: Command, topic: str) -> None:
    refused = tidelog("consume", topic, "--group", "g", "--partition", "0").refused(2)
    assert "--group excludes --partition, --timestamp and numbers as --offset" in refused


def test_records_of_open_and_aborted_transactions(tidelog: Command, topic: str) -> None:
    with Producer(bootstrap_servers=tidelog.bootstrap, transactional_id=f"{topic}-tx") as producer:
        producer.init_transactions()
        for value, commits in ((b"good", True), (b"bad", False)):
            producer.begin_transaction()
            producer.send(topic, value, partition=0).result(DEADLINE_S)
            if commits:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        assert tidelog("consume", topic, *READ_ALL).ok().text.split() == ["good"]
        everything = tidelog("consume", topic, *READ_ALL, "--isolation-level", "read_uncommitted").ok()
        assert everything.text.split() == ["good", "bad"]
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0).result(DEADLINE_S)
        assert tidelog("consume", topic, *READ_ALL).ok().text.split() == ["good"]
        producer.abort_transaction()


def test_who_watches_sees_how_far_it_is(tidelog: Command, topic: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"".join(b"line %d\n" % number for number in range(5000)))
    with lines.open("rb") as file:
        code, shown, _ = on_a_terminal(tidelog, "produce", topic, "--partition", "0", stdin=file.fileno())
    assert code == 0
    assert f"records to {topic}" in shown
    code, shown, out = on_a_terminal(tidelog, "consume", topic, "--from-beginning", "--max-messages", "5000")
    assert (code, out) == (0, lines.read_bytes())
    assert f"records of {topic}" in shown


def on_a_terminal(tidelog: Command, *arguments: str, stdin: int = subprocess.DEVNULL) -> tuple[int, str, bytes]:
    """Exit code, what the terminal shows of standard error, and standard output."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "tidelog", *arguments],
        env=tidelog.environment() | {"TERM": "xterm"},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown: list[bytes] = []

        def watch() -> None:
            with contextlib.suppress(OSError):  # how a terminal says that nobody is left
                while chunk := os.read(ours, 4096):
                    shown.append(chunk)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            out = process.communicate(timeout=DEADLINE_S)[0]
        finally:
            process.kill()
        watcher.join(DEADLINE_S)
        os.close(ours)
    return process.returncode, b"".join(shown).decode(), out


def test_records_are_counted_once_though_the_topic_was_unknown_at_first(tidelog: Command, topic: str) -> None:
    with Producer(bootstrap_servers=tidelog.bootstrap, linger_ms=50) as producer:
        sending = Sending(producer, topic, None, 0)
        sending.send([b"first", b"second"])  # they wait for news of the topic
        producer.partitions_for(topic)
        for _ in range(100):
            sending.send([b"more"] * 100)
        producer.flush()
        sending.settle()
    assert (sending.delivered_records, sending.delivered_bytes) == (10_002, 11 + 4 * 10_000)
    assert sending.failed_records == 0
