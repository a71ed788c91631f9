"""Events of a topic, replayed into another: once, in order, with their origin, whatever interrupts it."""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidelog import Admin, Consumer, ConsumerRecord, NewTopic, Producer, TopicPartition
from tidelog.pipeline.errors import DeclarationError, PipelineError
from tidelog.pipeline.event_replay.hours import QuietHours
from tidelog.pipeline.event_replay.replay import EventReplay, ReplayOptions, ReplayProgress, ReplayStoppedError
from tidelog.pipeline.event_replay.state import ReplaySpec, ReplayState, ReplayStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.bench.brokers import BrokerProcess

PARTITIONS = 3
DEADLINE_S = 120
FIRST_MS = (int(time.time()) - 7200) * 1000  # young enough that retention lets them be

FUNCTIONS = """
from pyspark.sql import functions as f

def loud(df):
    return df.withColumn("value", f.upper(f.col("value").cast("string")).cast("binary"))

def narrow(df):
    return df.select("key", "value")

def odd(df):
    return df.withColumn("error", f.when(f.col("offset") % 2 == 0, f.lit("even offsets are not wanted")))

def picky(event):
    if event.offset == 7:
        raise ValueError("no sevens")
    if event.offset == 8:
        return None
    if event.offset == 9:
        return [event, event.replace(key=b"second")]
    return event.replace(value=event.value + b"!", headers=(*event.headers, ("mapped", b"yes")))
"""


@pytest.fixture
def make_topic(cluster: BrokerProcess, fresh_name: Callable[[str], str]) -> Callable[..., str]:
    def make(word: str, partitions: int = PARTITIONS) -> str:
        name = fresh_name(word)
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(name, partitions)]).raise_for_errors()
            admin.wait_for_topics(name)
        return name

    return make


@pytest.fixture
def fill(cluster: BrokerProcess) -> Callable[..., None]:
    def fill(topic: str, count: int, partitions: int = PARTITIONS) -> None:
        """Event N is a second younger than the one before, and goes to the next partition; each has 7 of 10 keys."""
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for number in range(count):
                producer.send(
                    topic,
                    b"value %d" % number,
                    key=b"key %d" % (number % 10) if number % 10 < 7 else None,
                    headers=[("number", b"%d" % number), ("empty", None)],
                    partition=number % partitions,
                    timestamp=FIRST_MS + 1000 * number,
                )

    return fill


@pytest.fixture
def read(cluster: BrokerProcess) -> Callable[[str], list[ConsumerRecord]]:
    def read(topic: str) -> list[ConsumerRecord]:
        """All committed records, those of a partition in their order."""
        with Consumer(
            bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            partitions = [TopicPartition(topic, each.partition) for each in consumer.partitions_for(topic)]
            consumer.assign(partitions)
            ends = consumer.end_offsets(partitions)
            records: list[ConsumerRecord] = []
            deadline_s = time.monotonic() + DEADLINE_S
            while any(consumer.position(each) < ends[each] for each in partitions):
                assert time.monotonic() < deadline_s
                records += consumer.poll(1.0)
            return records

    return read


Replay = Callable[..., ReplayState]


@pytest.fixture
def replay(spark: SparkSession, cluster: BrokerProcess, tmp_path: Path) -> Replay:
    def run(
        topic: str,
        into: str,
        first: str = "earliest",
        last: str = "latest",
        *,
        watch: Callable[[ReplayProgress], None] = lambda progress: None,
        is_stopping: Callable[[], bool] = lambda: False,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
        spec: dict[str, Any] | None = None,
        **options: Any,
    ) -> ReplayState:
        with EventReplay(
            ReplaySpec(topic, into, first, last, **(spec or {})),
            ReplayOptions(cluster.bootstrap, tmp_path, "local[2]", **options),
            spark=spark,
            is_stopping=is_stopping,
            now=now,
        ) as work:
            work.prepare()
            return work.run(watch)

    return run


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS, encoding="utf-8")
    return path


def header(record: ConsumerRecord, name: str) -> bytes | None:
    return dict(record.headers)[name]


def origins(records: list[ConsumerRecord]) -> list[tuple[bytes | None, ...]]:
    return [
        tuple(header(each, f"tidelog.replay.{part}") for part in ("topic", "partition", "offset")) for each in records
    ]


def test_a_whole_topic_comes_out_once_and_in_order(
    replay: Replay,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    read: Callable[[str], list[ConsumerRecord]],
) -> None:
    topic, into = make_topic("from"), make_topic("into")
    fill(topic, 1000)
    state = replay(topic, into, name="whole")
    assert (state.counts.read, state.counts.written, state.counts.refused) == (1000, 1000, 0)
    before, after = read(topic), read(into)
    for partition in range(PARTITIONS):
        pairs = zip(
            [each for each in before if each.partition == partition],
            [each for each in after if each.partition == partition],
            strict=True,
        )
        for old, new in pairs:
            assert (new.key, new.value) == (old.key, old.value)
            assert new.headers == (
                *old.headers,
                ("tidelog.replay.name", b"whole"),
                ("tidelog.replay.topic", topic.encode()),
                ("tidelog.replay.partition", b"%d" % partition),
                ("tidelog.replay.offset", b"%d" % old.offset),
                ("tidelog.replay.timestamp", b"%d" % old.timestamp),
            )
            assert new.timestamp > old.timestamp, "it is a new event"


def test_parts_by_offset_and_time(
    replay: Replay,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    read: Callable[[str], list[ConsumerRecord]],
) -> None:
    topic = make_topic("from")
    fill(topic, 300)

    def replayed(first: str, last: str) -> set[int]:
        into = make_topic("into")
        replay(topic, into, first, last)
        return {int(header(each, "number") or b"") for each in read(into)}

    def time_text(number: int) -> str:
        return datetime.datetime.fromtimestamp(FIRST_MS / 1000 + number, datetime.UTC).isoformat()

    assert replayed("10", "20") == set(range(30, 60))
    assert replayed("0:90,2:5", "0:95,2:latest") == {*range(270, 285, 3), *range(17, 300, 3)}
    assert replayed(time_text(100), time_text(151)) == set(range(100, 151))
    assert replayed(time_text(290), "latest") == set(range(290, 300))
    with pytest.raises(DeclarationError, match="no partition 3"):
        replayed("3:1", "latest")


def test_what_is_written_later_is_not_part_of_it(
    replay: Replay,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    read: Callable[[str], list[ConsumerRecord]],
) -> None:
    topic, into = make_topic("from"), make_topic("into")
    fill(topic, 90)
    with pytest.raises(ReplayStoppedError):
        replay(topic, into, is_stopping=lambda: True)
    fill(topic, 90)
    assert replay(topic, into).counts.read == 90
    assert len(read(into)) == 90
    assert replay(topic, into).counts.read == 90, "it is finished, and stays so"
    assert len(read(into)) == 90
    assert replay(topic, into, again=True).counts.read == 180, "with --again the range is fixed anew"
    assert len(read(into)) == 270


def test_filter_transform_and_refused_rows(
    replay: Replay,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    read: Callable[[str], list[ConsumerRecord]],
    functions: Path,
) -> None:
    topic, into = make_topic("from"), make_topic("into")
    fill(topic, 60)
    spec = {"filter": "partition = 1 AND key IS NOT NULL", "transform": f"{functions}:loud"}
    state = replay(topic, into, spec=spec)
    expected = [number for number in range(1, 60, 3) if number % 10 < 7]
    assert [each.value for each in read(into)] == [b"VALUE %d" % number for number in expected]
    assert (state.counts.written, state.counts.refused) == (len(expected), 0)

    into = make_topic("into")
    state = replay(topic, into, spec={"transform": f"{functions}:odd"})
    assert (state.counts.read, state.counts.written, state.counts.refused) == (60, 30, 30)
    assert len(read(into)) == 30
    letters = read(f"{into}.dead-letters")
    assert {header(each, "tidelog.error.message") for each in letters} == {b"even offsets are not wanted"}
    assert sorted(origins(letters)) == sorted(
        (topic.encode(), b"%d" % partition, b"%d" % offset) for partition in range(3) for offset in range(0, 20, 2)
    )
    with pytest.raises(PipelineError, match="dropped the column topic"):
        replay(topic, into, spec={"transform": f"{functions}:narrow"})


def test_a_function_of_events(
    replay: Replay,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    read: Callable[[str], list[ConsumerRecord]],
    functions: Path,
) -> None:
    topic, into, letters = make_topic("from", 1), make_topic("into", 1), make_topic("letters", 1)
    fill(topic, 20, partitions=1)
    state = replay(topic, into, spec={"map": f"{functions}:picky", "dead_letters": letters})
    assert (state.counts.read, state.counts.written, state.counts.refused) == (20, 19, 1)
    records = read(into)
    numbers = [0, 1, 2, 3, 4, 5, 6, 9, 9, *range(10, 20)]
    assert [int(header(each, "number") or b"") for each in records] == numbers
    assert [each.value for each in records] == [
        b"value %d" % number + (b"" if number == 9 else b"!") for number in numbers
    ]
    assert [each.key for each in records if header(each, "number") == b"9"] == [None, b"second"]
    assert header(records[0], "mapped") == b"yes"
    (letter,) = read(letters)
    assert (letter.value, header(letter, "tidelog.error.message")) == (b"value 7", b"ValueError: no sevens")
    assert origins([letter]) == [(topic.encode(), b"0", b"7")]


def test_another_number_of_partitions_keeps_the_order_of_keys(
    replay: Replay,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    read: Callable[[str], list[ConsumerRecord]],
) -> None:
    topic, into = make_topic("from", 1), make_topic("into", 4)
    fill(topic, 500, partitions=1)
    replay(topic, into)
    records = read(into)
    assert len(records) == 500
    for key in {each.key for each in records} - {None}:
        of_key = [each for each in records if each.key == key]
        assert len({each.partition for each in of_key}) == 1
        numbers = [int(header(each, "number") or b"") for each in of_key]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("moment", ["noted", "written"])
def test_a_crash_around_a_chunk(
    replay: Replay,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    read: Callable[[str], list[ConsumerRecord]],
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """The state on disk is that of a process that died before, or after, Spark wrote the chunk it had noted."""
    topic, into = make_topic("from"), make_topic("into")
    fill(topic, 600)
    save = ReplayStore.save
    saved = 0

    class CrashError(Exception):
        pass

    def save_and_die(store: ReplayStore, state: ReplayState) -> None:
        nonlocal saved
        if moment == "written" and saved == 4:
            raise CrashError  # the second chunk is written, but not noted as done
        save(store, state)
        saved += 1
        if moment == "noted" and saved == 4:
            raise CrashError  # the second chunk is noted, and not written

    with monkeypatch.context() as patched:
        patched.setattr(ReplayStore, "save", save_and_die)
        with pytest.raises(CrashError):
            replay(topic, into, rate=250.0)
    assert len(read(into)) == (250 if moment == "noted" else 500)
    state = replay(topic, into)
    assert state.counts.written == 600
    assert Counter(origins(read(into))).most_common(1)[0][1] == 1
    assert len(read(into)) == 600


def test_the_rate_holds(
    replay: Replay,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    read: Callable[[str], list[ConsumerRecord]],
) -> None:
    topic, into = make_topic("from"), make_topic("into")
    fill(topic, 900)
    seen: list[ReplayProgress] = []
    began_s = time.monotonic()
    replay(topic, into, rate=300.0, watch=seen.append)
    assert time.monotonic() - began_s > 2.0, "three chunks, the second and third a second after the one before"
    assert [each.offsets_done for each in seen] == [0, 300, 600, 900, 900]
    times_ms = sorted(each.timestamp for each in read(into))
    assert times_ms[600] - times_ms[0] > 1000
    assert seen[0].left_s == 3.0
    assert seen[2].left_s is not None
    assert 0.5 < seen[2].left_s < 60


def test_quiet_hours(replay: Replay, make_topic: Callable[..., str], fill: Callable[..., None]) -> None:
    topic, into = make_topic("from"), make_topic("into")
    fill(topic, 90)
    day = datetime.datetime(2026, 3, 1)
    seen: list[tuple[int, datetime.datetime | None]] = []

    def now() -> datetime.datetime:
        """It is noon until somebody waits, then night; after the first chunk it is noon once more, for one look."""
        if not seen or (seen[-1] == (30, None) and seen.count((30, None)) == 1):
            return day.replace(hour=12)
        return day.replace(hour=2)

    replay(
        topic,
        into,
        rate=30.0,
        hours=QuietHours.parse("01:00-05:00"),
        now=now,
        watch=lambda progress: seen.append((progress.offsets_done, progress.waiting_until)),
    )
    night = day.replace(day=2, hour=1)
    assert seen == [(0, night), (0, None), (30, None), (30, night), (30, None), (60, None), (90, None), (90, None)]


def test_it_begins_when_it_is_time(replay: Replay, make_topic: Callable[..., str], fill: Callable[..., None]) -> None:
    topic, into = make_topic("from"), make_topic("into")
    fill(topic, 30)
    begin = datetime.datetime(2026, 3, 1, 2)
    seen: list[datetime.datetime | None] = []
    replay(
        topic,
        into,
        not_before=begin,
        now=lambda: begin if seen else begin - datetime.timedelta(hours=5),
        watch=lambda progress: seen.append(progress.waiting_until),
    )
    assert seen[0] == begin
    assert seen[-1] is None


def test_what_is_refused(
    replay: Replay,
    cluster: BrokerProcess,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    fresh_name: Callable[[str], str],
    functions: Path,
    tmp_path: Path,
) -> None:
    topic, into, missing = make_topic("from"), make_topic("into"), fresh_name("missing")
    fill(topic, 30)
    with pytest.raises(PipelineError, match=f"there is no topic {missing} to replay"):
        replay(missing, into)
    with pytest.raises(PipelineError, match=f"tidelog topics create {missing} --partitions 3"):
        replay(topic, missing)
    with pytest.raises(PipelineError, match="into itself"):
        replay(topic, topic)
    with pytest.raises(PipelineError, match=r"Spark rejected the query: .*colour"):
        replay(topic, into, spec={"filter": "colour = 'red'"})
    with pytest.raises(DeclarationError, match="has no function nothing"):
        replay(topic, into, spec={"map": f"{functions}:nothing"})
    assert replay(topic, topic, same_topic=True).counts.written == 30
    assert replay(topic, missing, create=True, name="made").counts.written == 60
    with pytest.raises(PipelineError, match="was started with --to latest, not --to 5"):
        replay(topic, missing, last="5", name="made")
    with EventReplay(
        ReplaySpec(topic, into, "earliest", "latest"), ReplayOptions(cluster.bootstrap, tmp_path, "local[2]")
    ) as other:
        other.prepare()
        with pytest.raises(PipelineError, match="another process is working on replay"):
            replay(topic, into)
    spec = {"map": f"{functions}:picky"}
    with pytest.raises(ReplayStoppedError):
        replay(topic, into, spec=spec, is_stopping=lambda: True)
    functions.write_text(FUNCTIONS + "\n# changed\n", encoding="utf-8")
    with pytest.raises(PipelineError, match="has changed since it was started"):
        replay(topic, into, spec=spec)


# The command


@pytest.fixture
def start(cluster: BrokerProcess, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidelog", "replay", *arguments, "--master", "local[2]"],
            env={**os.environ, "TIDELOG_BOOTSTRAP": cluster.bootstrap, "TIDELOG_PIPELINES": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.soak  # three JVMs one after another; what a crash leaves is tested above, within one
def test_the_command_is_interrupted_killed_and_goes_on(
    start: Callable[..., subprocess.Popen[str]],
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    read: Callable[[str], list[ConsumerRecord]],
    tmp_path: Path,
) -> None:
    topic, into = make_topic("from"), make_topic("into")
    fill(topic, 3000)
    (tmp_path / "beside.py").write_text("def louder(value):\n    return value + b'!'\n", encoding="utf-8")
    (tmp_path / "loud.py").write_text(
        "from beside import louder\n\ndef loud(event):\n    return event.replace(value=louder(event.value))\n",
        encoding="utf-8",
    )
    map_ = f"{tmp_path}/loud.py:loud"
    command = (topic, "--into", into, "--from", "earliest", "--map", map_, "--name", "often", "--json")
    store = ReplayStore(tmp_path, "often")

    def wait_for(chunks: int, process: subprocess.Popen[str]) -> None:
        """Until so many chunks have begun."""
        deadline_s = time.monotonic() + DEADLINE_S
        while (state := store.load()) is None or state.chunk_number < chunks:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline_s
            time.sleep(0.02)

    killed = start(*command, "--rate", "300")
    wait_for(2, killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()

    state = store.load()
    assert state is not None
    stopped = start(*command, "--rate", "300")
    wait_for(state.chunk_number + 2, stopped)
    os.kill(stopped.pid, signal.SIGINT)
    out, err = stopped.communicate(timeout=DEADLINE_S)
    assert (stopped.returncode, out) == (130, ""), err
    assert "the same command resumes" in err
    assert err.count("\n") == 1, err

    last = start(*command)
    out, err = last.communicate(timeout=DEADLINE_S)
    assert (last.returncode, err) == (0, "")
    document = json.loads(out)
    assert (document["read"], document["written"], document["offsets_done"]) == (3000, 3000, 3000)
    assert 600 <= document["offsets_before"] < 3000

    records = read(into)
    before = Counter((topic.encode(), b"%d" % each.partition, b"%d" % each.offset) for each in read(topic))
    assert Counter(origins(records)) == before
    assert all(each.value.endswith(b"!") for each in records)
    for partition in range(PARTITIONS):
        offsets = [int(header(each, "tidelog.replay.offset") or b"") for each in records if each.partition == partition]
        assert offsets == list(range(1000)), "the order of a partition outlives the interruptions"


def test_a_sample_writes_nothing(
    spark: SparkSession,
    cluster: BrokerProcess,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    read: Callable[[str], list[ConsumerRecord]],
    functions: Path,
    tmp_path: Path,
) -> None:
    topic, into = make_topic("from"), make_topic("into")
    fill(topic, 30)
    spec = ReplaySpec(topic, into, "earliest", "5", map=f"{functions}:picky")
    with EventReplay(spec, ReplayOptions(cluster.bootstrap, tmp_path / "state", "local[2]"), spark=spark) as work:
        state = work.prepare(keep=False)
        sample = work.sample(4)
    assert state.ranges == {0: (0, 5), 1: (0, 5), 2: (0, 5)}
    assert [bytes(row["value"]) for row in sample] == [b"value 0!", b"value 3!", b"value 6!", b"value 9!"]
    assert {row["topic"] for row in sample} == {into}
    assert read(into) == []
    assert not (tmp_path / "state").exists()
