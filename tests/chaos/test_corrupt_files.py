"""Files of a stopped or killed broker are damaged: it repairs them, refuses to serve them, or does not start.

What must never happen is that a client is given a record that nobody sent, or another one's place, without a way to
notice. So each damage has one outcome that is defined for it, and all that is read is held against what was sent.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.common.ids import random_uuid, uuid_to_text
from tidelog.log.repair import examine, execute
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
from tidelog.protocol.messages.k01_fetch import FETCH, FetchResponse
from tidelog.records import CorruptBatchError, decode_records, iter_headers
from tidelog.testing import Broker
from tidelog.testing.raw_client import RawClient, fetch_request, produce_request

if TYPE_CHECKING:
    from tests.chaos.conftest import StartServed

TOPIC = "data"
DAMAGED, UNTOUCHED = 0, 1
RECORDS = 40
CONFIGS: dict[str, str | None] = {"segment.bytes": "3000", "index.interval.bytes": "300"}
ENDINGS = ("stopped", "killed")


def value_of(partition: int, number: int) -> bytes:
    return b"%d/%d/" % (partition, number) + random.Random(f"{partition}-{number}").randbytes(200)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Data directories of brokers that ended in both ways, with the same records over several segments."""
    directories = {}
    for ending in ENDINGS:
        directory = directories[ending] = tmp_path_factory.mktemp(ending)
        broker = Broker(data_dir=directory).start()
        broker.create_topic(TOPIC, 2, CONFIGS)
        with RawClient(broker.port) as client:
            for number in range(RECORDS):
                for partition in (DAMAGED, UNTOUCHED):
                    assert write(client, partition, value_of(partition, number)) == (0, number)
        if ending == "stopped":
            broker.stop()
        else:
            broker.crash()
    return directories


def write(client: RawClient, partition: int, value: bytes) -> tuple[int, int]:
    """Error code and offset."""
    produced = client.ask(PRODUCE, produce_request(TOPIC, value, partition=partition), ProduceResponse, 9)
    (answer,) = produced.responses[0].partition_responses
    return answer.error_code, answer.base_offset


@dataclass
class Outcome:
    """What a reader met who started at the first offset."""

    values: list[bytes]
    # Why it ended before the high watermark: what the broker said, or what the reader found in the bytes.
    error_code: int = 0
    is_damage_seen: bool = False


def read_all(client: RawClient, partition: int) -> Outcome:
    outcome = Outcome([])
    while True:
        offset = len(outcome.values)
        request = fetch_request(TOPIC, offset, partition=partition, max_wait_ms=0)
        (answer,) = client.ask(FETCH, request, FetchResponse, 11).responses[0].partitions
        outcome.error_code = answer.error_code
        if answer.error_code or offset >= answer.high_watermark:
            return outcome
        assert isinstance(answer.records, memoryview)
        try:
            for position, header in iter_headers(answer.records, allow_partial=True):
                for record in decode_records(answer.records, position):
                    if record.offset >= offset:
                        assert record.offset == len(outcome.values)
                        outcome.values.append(record.value or b"")
                assert header.base_offset <= len(outcome.values)
        except CorruptBatchError:
            outcome.is_damage_seen = True
            return outcome
        assert len(outcome.values) > offset, "the broker has records and gives none"


# Places and damages


class Files:
    """The files of the partition that is to be damaged, and those around it."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.log_dir = data_dir / "broker-1"
        self.partition = self.log_dir / f"{TOPIC}-{DAMAGED}"

    def all(self, suffix: str) -> list[Path]:
        return sorted(self.partition.glob(f"*{suffix}"))

    def batches(self, path: Path) -> list[int]:
        """Where the batches of a log file start."""
        return [position for position, _ in iter_headers(path.read_bytes())]


Damage = Callable[[Files], object]


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip(path: Path, position: int) -> None:
    overwrite(path, position, bytes([path.read_bytes()[position] ^ 0x10]))


def flip_fourth_byte(path: Path) -> None:
    if path.stat().st_size > 3:
        flip(path, 3)


def cut(path: Path, size_bytes: int) -> None:
    os.truncate(path, size_bytes)


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(path.name).randbytes(max(100, path.stat().st_size)))


def each(suffix: str, damage: Callable[[Path], object]) -> Damage:
    return lambda files: [damage(path) for path in files.all(suffix)]


def file_of(name: str, damage: Callable[[Path], object]) -> Damage:
    """A file of the data directory or, where it is not there, of the partition."""

    def apply(files: Files) -> None:
        for directory in (files.log_dir, files.partition):
            if (directory / name).exists():
                damage(directory / name)
                return

    return apply


TEXT_FILES = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-end-checkpoint",
    "leader-epoch-checkpoint",
    ".kafka_cleanshutdown",
)

# Damages that may cost no record: each kind of file but the logs can be made anew from those.
REPAIRED: dict[str, Damage] = {}
for _suffix in (".index", ".timeindex"):
    REPAIRED |= {
        f"{_suffix} deleted": each(_suffix, Path.unlink),
        f"{_suffix} empty": each(_suffix, lambda path: cut(path, 0)),
        f"{_suffix} of odd size": each(_suffix, lambda path: path.write_bytes(path.read_bytes()[:-3] + b"x")),
        f"{_suffix} of garbage": each(_suffix, garbage),
        f"{_suffix} of zeros": each(_suffix, lambda path: path.write_bytes(bytes(96))),
        f"{_suffix} with a flipped bit": each(_suffix, flip_fourth_byte),
        f"{_suffix} of another segment": lambda files, suffix=_suffix: shutil.copy(  # type: ignore[misc]
            files.all(suffix)[1], files.all(suffix)[0]
        ),
    }
for _name in TEXT_FILES:
    REPAIRED |= {
        f"{_name} deleted": file_of(_name, Path.unlink),
        f"{_name} empty": file_of(_name, lambda path: cut(path, 0)),
        f"{_name} of garbage": file_of(_name, garbage),
        f"{_name} cut in half": file_of(_name, lambda path: cut(path, path.stat().st_size // 2)),
        f"{_name} with odd digits": file_of(_name, lambda path: path.write_text("0\n²\n")),
        f"{_name} with a count that lies": file_of(_name, lambda path: path.write_text("0\n999999999999\n")),
        f"{_name} with an odd row": file_of(_name, lambda path: path.write_text(f"0\n1\n{TOPIC} 0 -5 -5 -5 -5\n")),
    }
for _name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
    for _offset in (-7, 10**12):
        REPAIRED[f"{_name} says {_offset}"] = file_of(
            _name,
            lambda path, offset=_offset: path.write_text(f"0\n1\n{TOPIC} {DAMAGED} {offset}\n"),  # type: ignore[misc]
        )
REPAIRED |= {
    "partition.metadata deleted": file_of("partition.metadata", Path.unlink),
    "partition.metadata empty": file_of("partition.metadata", lambda path: cut(path, 0)),
    "meta.properties deleted": file_of("meta.properties", Path.unlink),
    "zeros behind the log": lambda files: append(files, bytes(5000)),
    "garbage behind the log": lambda files: append(files, random.Random(1).randbytes(700)),
    "half a batch behind the log": lambda files: append(files, half_a_batch(files)),
}


def append(files: Files, data: bytes) -> None:
    with files.all(".log")[-1].open("ab") as file:
        file.write(data)


def half_a_batch(files: Files) -> bytes:
    path = files.all(".log")[-1]
    return path.read_bytes()[files.batches(path)[-1] :][:150]


def odd_names(files: Files) -> None:
    """Names that no broker gives, beside those that it does."""
    for name in (
        "no number",
        f"{TOPIC}-²",
        f"{TOPIC}-",
        "-5",
        f"{TOPIC}--1",
        "x-99999999999999999999",
        f"{TOPIC}-0.tmp",
    ):
        (files.log_dir / name).mkdir()
    (files.log_dir / f"{TOPIC}-7").write_text("a file where a directory would be")
    for name in ("²²².log", "1.log", "x.log", "00000000000000000000.log.bak", "x.snapshot", "notes.txt", "-1.index"):
        (files.partition / name).write_bytes(b"not of a broker")
    (files.partition / "lost+found").mkdir()


REPAIRED["odd names"] = odd_names

REPAIRED |= {
    ".snapshot deleted": each(".snapshot", Path.unlink),
    ".snapshot empty": each(".snapshot", lambda path: cut(path, 0)),
    ".snapshot of garbage": each(".snapshot", garbage),
}


@pytest.fixture
def start_damaged(originals: dict[str, Path], tmp_path: Path) -> Iterator[Callable[[str, Damage], Broker]]:
    """Copies a data directory, damages it and starts a broker on it."""
    brokers: list[Broker] = []

    def start(ending: str, damage: Damage) -> Broker:
        data_dir = tmp_path / ending
        shutil.copytree(originals[ending], data_dir)
        damage(Files(data_dir))
        broker = Broker(data_dir=data_dir).start()
        brokers.append(broker)
        return broker

    yield start
    for broker in brokers:
        broker.close()


def check_untouched(client: RawClient) -> None:
    outcome = read_all(client, UNTOUCHED)
    assert outcome == Outcome([value_of(UNTOUCHED, number) for number in range(RECORDS)])
    assert write(client, UNTOUCHED, b"more") == (0, RECORDS)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("damage", REPAIRED.values(), ids=REPAIRED)
def test_what_can_be_made_anew_costs_no_record(
    start_damaged: Callable[[str, Damage], Broker], ending: str, damage: Damage
) -> None:
    broker = start_damaged(ending, damage)
    with RawClient(broker.port) as client:
        assert read_all(client, DAMAGED) == Outcome([value_of(DAMAGED, number) for number in range(RECORDS)])
        for more in range(20):
            assert write(client, DAMAGED, b"more") == (0, RECORDS + more)
        check_untouched(client)
    broker.stop()
    broker.start()
    with RawClient(broker.port) as client:
        assert len(read_all(client, DAMAGED).values) == RECORDS + 20


# Damage in the logs themselves


def flip_in_batch(files: Files, position: int) -> None:
    """Flip a bit of the fourth batch of the first log file."""
    path = files.all(".log")[0]
    flip(path, files.batches(path)[3] + position)


def delete_segment(number: int) -> Damage:
    def apply(files: Files) -> None:
        stem = files.all(".log")[number].stem
        for path in files.partition.glob(f"{stem}.*"):
            path.unlink()

    return apply


# Damage that the broker itself finds when it starts, whatever the ending was: the partition is not served.
OFFLINE: dict[str, Damage] = {
    "the first .log deleted": lambda files: files.all(".log")[0].unlink(),
    "a .log in the middle deleted": lambda files: files.all(".log")[1].unlink(),
    "the last .log deleted": lambda files: files.all(".log")[-1].unlink(),
    "all .log deleted": each(".log", Path.unlink),
    "a segment in the middle deleted": delete_segment(1),
    "a .log in the middle emptied": lambda files: cut(files.all(".log")[1], 0),
    "a .log in the middle cut between batches": lambda files: cut(
        files.all(".log")[1], files.batches(files.all(".log")[1])[-1]
    ),
    "a .log in the middle cut within a batch": lambda files: cut(
        files.all(".log")[1], files.batches(files.all(".log")[1])[-1] + 70
    ),
    "a .log is a directory": lambda files: make_directory(files.all(".log")[1]),
    "an .index is a directory": lambda files: make_directory(files.all(".index")[0]),
    "a .timeindex is a directory": lambda files: make_directory(files.all(".timeindex")[-1]),
    "partition.metadata of garbage": file_of("partition.metadata", garbage),
    "partition.metadata of another topic": file_of(
        "partition.metadata", lambda path: path.write_text(f"version: 0\ntopic_id: {uuid_to_text(random_uuid())}\n")
    ),
    "partition.metadata of a later version": file_of(
        "partition.metadata", lambda path: path.write_text("version: 9\n")
    ),
}


def exchange(one: Path, other: Path) -> None:
    contents = one.read_bytes(), other.read_bytes()
    other.write_bytes(contents[0])
    one.write_bytes(contents[1])


def make_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("damage", OFFLINE.values(), ids=OFFLINE)
def test_what_is_lost_is_not_served(
    start_damaged: Callable[[str, Damage], Broker], ending: str, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start_damaged(ending, damage)
    with RawClient(broker.port) as client:
        assert read_all(client, DAMAGED) == Outcome([], error_code=ErrorCode.KAFKA_STORAGE_ERROR)
        assert write(client, DAMAGED, b"more") == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        check_untouched(client)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"][:1]
    assert f"{TOPIC}-{DAMAGED}" in line
    # Nothing was changed that a restored file could not put right: it is refused again.
    broker.stop()
    broker.start()
    with RawClient(broker.port) as client:
        assert read_all(client, DAMAGED) == Outcome([], error_code=ErrorCode.KAFKA_STORAGE_ERROR)


# Damage that keeps the size of the file: found at the start after a kill, by whoever reads after a clean stop.
FLIPS: dict[str, Damage] = {
    "in a record of the first segment": lambda files: flip_in_batch(files, 100),
    "in a record of the last segment": lambda files: flip(files.all(".log")[-1], 100),
    "in the length of a batch": lambda files: flip_in_batch(files, 10),
    "in the magic of a batch": lambda files: flip_in_batch(files, 16),
    "in the CRC of a batch": lambda files: flip_in_batch(files, 18),
    "in the attributes of a batch": lambda files: flip_in_batch(files, 22),
}


FOUND_AFTER_A_KILL: dict[str, Damage] = FLIPS | {
    "in the offset of a batch": lambda files: flip_in_batch(files, 6),
    "two .log exchanged": lambda files: exchange(*files.all(".log")[:2]),
}


@pytest.mark.parametrize("damage", FOUND_AFTER_A_KILL.values(), ids=FOUND_AFTER_A_KILL)
def test_a_flip_is_found_at_the_start_after_a_kill(
    start_damaged: Callable[[str, Damage], Broker], damage: Damage
) -> None:
    broker = start_damaged("killed", damage)
    with RawClient(broker.port) as client:
        assert read_all(client, DAMAGED) == Outcome([], error_code=ErrorCode.KAFKA_STORAGE_ERROR)
        check_untouched(client)


@pytest.mark.parametrize("damage", FLIPS.values(), ids=FLIPS)
def test_a_flip_after_a_clean_stop_is_found_by_the_reader(
    start_damaged: Callable[[str, Damage], Broker], damage: Damage
) -> None:
    """Old data is not read at every start. A reader's CRC check stops at the damage and gets all that lies before."""
    broker = start_damaged("stopped", damage)
    with RawClient(broker.port) as client:
        outcome = read_all(client, DAMAGED)
        assert outcome.is_damage_seen or outcome.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert outcome.values == [value_of(DAMAGED, number) for number in range(len(outcome.values))]
        assert len(outcome.values) < RECORDS
        check_untouched(client)


# What a person or a power cut changes about it

# Of another topic's id only the cluster's metadata can tell, and the broker does.
REPAIRABLE: dict[str, Damage] = {
    name: damage for name, damage in (OFFLINE | FOUND_AFTER_A_KILL).items() if "of another topic" not in name
}


@pytest.mark.parametrize("damage", REPAIRABLE.values(), ids=REPAIRABLE)
def test_a_repaired_partition_is_served(
    originals: dict[str, Path], start_damaged: Callable[[str, Damage], Broker], damage: Damage
) -> None:
    """What is left lies at its offsets, what is lost was named, and writing goes on behind all of it."""
    lost: set[int] = set()

    def damage_and_repair(files: Files) -> None:
        damage(files)
        plan = examine(files.partition)
        execute(plan)
        for action in plan.actions:
            if action.first_lost_offset >= 0:
                last = action.last_lost_offset if action.last_lost_offset >= 0 else RECORDS - 1
                lost.update(range(action.first_lost_offset, last + 1))

    broker = start_damaged("killed", damage_and_repair)
    with RawClient(broker.port) as client:
        found = dict(read_present(client))
        assert found == {number: value_of(DAMAGED, number) for number in range(RECORDS) if number not in lost}
        error_code, offset = write(client, DAMAGED, b"more")
        assert (error_code, offset >= max(found, default=0)) == (0, True)
        check_untouched(client)


def read_present(client: RawClient) -> Iterator[tuple[int, bytes]]:
    """Records with their offsets, over gaps."""
    offset = 0
    while True:
        request = fetch_request(TOPIC, offset, partition=DAMAGED, max_wait_ms=0)
        (answer,) = client.ask(FETCH, request, FetchResponse, 11).responses[0].partitions
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and offset < RECORDS:
            # The log starts later, as its first file was lost.
            offset += 1
            continue
        assert answer.error_code == 0
        if offset >= answer.high_watermark:
            return
        assert isinstance(answer.records, memoryview)
        for position, header in iter_headers(answer.records, allow_partial=True):
            for record in decode_records(answer.records, position):
                yield record.offset, record.value or b""
            offset = header.next_offset


@pytest.mark.parametrize("damage", FLIPS.values(), ids=FLIPS)
def test_after_a_power_cut_the_log_ends_before_the_damage(
    start_damaged: Callable[[str, Damage], Broker], damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of these logs was flushed, so blocks may be missing anywhere; what lies behind is kept aside."""

    def damage_and_reboot(files: Files) -> None:
        damage(files)
        (files.log_dir / ".boot_id").write_text("another boot\n")

    broker = start_damaged("killed", damage_and_reboot)
    with RawClient(broker.port) as client:
        outcome = read_all(client, DAMAGED)
        assert outcome == Outcome([value_of(DAMAGED, number) for number in range(len(outcome.values))])
        assert len(outcome.values) < RECORDS
        assert write(client, DAMAGED, b"more") == (0, len(outcome.values))
        check_untouched(client)
    (kept,) = (broker.data_dir / "broker-1").glob(f"{TOPIC}-{DAMAGED}.*-cut")
    assert any(kept.iterdir())
    assert f"kept in {kept}" in caplog.text


TAILS: dict[str, Damage] = {
    "cut within the last batch": lambda files: cut(files.all(".log")[-1], files.all(".log")[-1].stat().st_size - 20),
    "last batch cut off": lambda files: cut(files.all(".log")[-1], files.batches(files.all(".log")[-1])[-1]),
    "flip in the last batch": lambda files: flip(files.all(".log")[-1], files.all(".log")[-1].stat().st_size - 20),
    "zeros over the last batch": lambda files: overwrite(
        files.all(".log")[-1], files.batches(files.all(".log")[-1])[-1], bytes(300)
    ),
}


@pytest.mark.parametrize("damage", TAILS.values(), ids=TAILS)
def test_a_torn_tail_is_cut_off_after_a_kill(start_damaged: Callable[[str, Damage], Broker], damage: Damage) -> None:
    """What was not flushed may be gone after a power cut; here it is one batch, and its offset is given out again."""
    broker = start_damaged("killed", damage)
    with RawClient(broker.port) as client:
        assert read_all(client, DAMAGED) == Outcome([value_of(DAMAGED, number) for number in range(RECORDS - 1)])
        assert write(client, DAMAGED, b"more") == (0, RECORDS - 1)
        check_untouched(client)


@pytest.mark.parametrize("damage", TAILS.values(), ids=TAILS)
def test_a_tail_that_is_lost_after_a_clean_stop_is_told(
    start_damaged: Callable[[str, Damage], Broker], damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker knows that it was flushed: what is left is served, and the operator told. A flip keeps the size."""
    broker = start_damaged("stopped", damage)
    with RawClient(broker.port) as client:
        outcome = read_all(client, DAMAGED)
        assert outcome.values == [value_of(DAMAGED, number) for number in range(RECORDS - 1)]
        assert outcome.is_damage_seen or "had been flushed but are missing" in caplog.text
        check_untouched(client)


# What keeps a broker from starting


def replace_cluster_id(files: Files) -> None:
    path = files.log_dir / "meta.properties"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("cluster.id")]
    path.write_text("\n".join([*lines, "cluster.id=AAAAAAAAAAAAAAAAAAAAAA", ""]))


REFUSED: dict[str, tuple[Damage, str]] = {
    "meta.properties of garbage": (file_of("meta.properties", garbage), "meta.properties"),
    "meta.properties of another cluster": (replace_cluster_id, "cluster.id"),
    "metadata.sqlite of garbage": (lambda files: garbage(files.data_dir / "metadata.sqlite"), "metadata.sqlite"),
    "metadata.sqlite cut in half": (
        lambda files: cut(files.data_dir / "metadata.sqlite", (files.data_dir / "metadata.sqlite").stat().st_size // 2),
        "metadata.sqlite",
    ),
    # An empty file is a new database to SQLite, and a new cluster to the broker: not the one of the logs.
    "metadata.sqlite emptied": (lambda files: cut(files.data_dir / "metadata.sqlite", 0), "cluster.id"),
    "metadata.sqlite deleted": (lambda files: (files.data_dir / "metadata.sqlite").unlink(), "cluster.id"),
    "metadata.sqlite is a directory": (
        lambda files: make_directory(files.data_dir / "metadata.sqlite"),
        "metadata.sqlite",
    ),
    "meta.properties is a directory": (
        lambda files: make_directory(files.log_dir / "meta.properties"),
        "meta.properties",
    ),
    "a checkpoint is a directory": (
        lambda files: make_directory(files.log_dir / "recovery-point-offset-checkpoint"),
        "recovery-point-offset-checkpoint",
    ),
    "the clean-shutdown marker is a directory": (
        lambda files: make_directory(files.log_dir / ".kafka_cleanshutdown"),
        ".kafka_cleanshutdown",
    ),
}


@pytest.mark.parametrize(("damage", "named"), REFUSED.values(), ids=REFUSED)
def test_a_broker_that_can_not_start_says_why_and_changes_nothing(
    serve: StartServed, originals: dict[str, Path], tmp_path: Path, damage: Damage, named: str
) -> None:
    shutil.copytree(originals["stopped"], tmp_path / "broker" / "data")
    files = Files(tmp_path / "broker" / "data")
    damage(files)
    logs = [path.read_bytes() for path in files.all(".log")]
    code, lines = serve(directory=tmp_path / "broker", start=False).fail_to_start()
    assert code == 2
    assert len(lines) == 1, lines
    assert named in lines[0]
    assert [path.read_bytes() for path in files.all(".log")] == logs


def test_a_name_that_is_no_text(serve: StartServed, originals: dict[str, Path], tmp_path: Path) -> None:
    """In a process of its own: test runners stumble over such a name in the log."""
    shutil.copytree(originals["stopped"], tmp_path / "broker" / "data")
    os.mkdir(os.fsencode(Files(tmp_path / "broker" / "data").log_dir) + b"/\xff\xfe-3")
    broker = serve(directory=tmp_path / "broker")
    with RawClient(broker.port) as client:
        check_untouched(client)
    assert "is not a partition's directory and is left alone" in broker.output()
