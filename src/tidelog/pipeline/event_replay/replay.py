"""Event replay: writes a fixed range of a topic's records to another topic, optionally changed, exactly once and in
order.

A replay proceeds in chunks: it records the chunk on disk, Spark reads exactly its offsets and writes the rows under the
replay's id and the chunk's number, and the replay records the chunk as done. The sink writes each id and number only
once, so a replay that is interrupted at any point, even by kill -9, resumes with the chunk it recorded last.

What always holds: the range is fixed when the replay starts; only one process at a time works on a replay; between
chunks, it observes the rate, the quiet hours and requests to stop.
"""

from __future__ import annotations

import contextlib
import datetime
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog.client.admin.admin import Admin
from tidelog.client.admin.types import NewTopic, OffsetSpec
from tidelog.client.types import TopicPartition
from tidelog.common.file_lock import locked
from tidelog.pipeline.errors import PipelineError, QueryFailedError
from tidelog.pipeline.event_replay.functions import Functions
from tidelog.pipeline.event_replay.hours import QuietHours
from tidelog.pipeline.event_replay.pace import Pace, Speed
from tidelog.pipeline.event_replay.range import OffsetRange, next_chunk, parse_bound, resolve, total
from tidelog.pipeline.event_replay.rows import RowPlan
from tidelog.pipeline.event_replay.state import Counts, ReplaySpec, ReplayState, ReplayStore
from tidelog.pipeline.failures import reason_of
from tidelog.pipeline.spark_jvm import end_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_S = 0.2  # how soon a waiting replay notices that it may continue, or must stop
CHUNK_ATTEMPTS = 3
RETRY_AFTER_S = 2.0
DEAD_LETTER_PARTITIONS = 1
LOG_FILE = "spark.log"


class ReplayStoppedError(Exception):
    """The replay was asked to stop; the same command resumes it later."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a replay runs; none of this changes what is written."""

    bootstrap: str
    state_dir: Path
    master: str
    name: str | None = None
    rate: float | None = None
    hours: QuietHours | None = None
    not_before: datetime.datetime | None = None
    same_topic: bool = False
    create: bool = False
    again: bool = False
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """How far a replay is."""

    offsets_done: int
    offsets_total: int
    counts: Counts
    offsets_per_second: float | None = None
    left_s: float | None = None
    waiting_until: datetime.datetime | None = None


Watch = Callable[[ReplayProgress], None]


class EventReplay:
    """One replay. Use it in a `with` statement, which releases the replay's lock.

    `prepare` only talks to brokers; `run` starts Spark, unless it was given a session, which it leaves running.
    """

    def __init__(
        self,
        spec: ReplaySpec,
        options: ReplayOptions,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
        spark: SparkSession | None = None,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:
        self.spec = spec
        self.options = options
        self.name = options.name or spec.default_name()
        self.notes: list[str] = []
        self._is_stopping = is_stopping
        self._spark = spark
        self._now = now
        # Report mistakes that can be found without a broker right away.
        for bound in (spec.first, spec.last):
            parse_bound(bound, _now_ms())
        self._functions = Functions.load(spec.transform, spec.map)
        self._store = ReplayStore(options.state_dir, self.name)
        self._cleanup = contextlib.ExitStack()
        self._state: ReplayState | None = None
        self._plan: RowPlan | None = None

    def __enter__(self) -> EventReplay:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    # Before

    def prepare(self, *, keep: bool = True) -> ReplayState:
        """The state of the replay, or of a new one; a new one is saved on disk unless `keep` is false."""
        with Admin(bootstrap_servers=self.options.bootstrap) as admin:
            partitions = self._partitions(admin)
            cluster_id = admin.describe_cluster().cluster_id
            if keep:
                busy = PipelineError(f"another process is working on replay {self.name}")
                self._cleanup.enter_context(locked(self._store.directory / "lock", busy))
            state = self._known(cluster_id, may_start_over=keep)
            is_new = state is None
            if state is None:
                state = self._resolve(admin, cluster_id)
            if keep and state.finished_ms is None:
                self._make_topics(admin)
        if keep and is_new:
            self._store.save(state)
        self._state = state
        self._plan = RowPlan(
            name=self.name,
            topic=self.spec.topic,
            into=self.spec.into,
            keep_partitions=not self.spec.by_key and partitions[self.spec.topic] == partitions[self.spec.into],
            dead_letters=self.dead_letters,
            filter=self.spec.filter,
            transform=self._functions.transform,
            map=self._functions.map,
            client={"kafka.bootstrap.servers": self.options.bootstrap},
        )
        return state

    @property
    def dead_letters(self) -> str:
        return self.spec.dead_letters or f"{self.spec.into}.dead-letters"

    @property
    def keeps_partitions(self) -> bool:
        assert self._plan is not None  # prepare comes first
        return self._plan.keep_partitions

    def _known(self, cluster_id: str | None, *, may_start_over: bool) -> ReplayState | None:
        state = self._store.load()
        if state is None:
            return None
        if self.options.again:
            if state.finished_ms is None:
                raise PipelineError(f"replay {self.name} is not finished; run it without --again to resume it")
            if may_start_over:
                self._store.set_aside(state)
            return None
        difference = state.difference_from(self.spec, cluster_id, self._functions.digest)
        if difference is not None:
            raise PipelineError(f"replay {self.name} can't be resumed: {difference}; choose another --name")
        return state

    def _partitions(self, admin: Admin) -> dict[str, int]:
        """The number of partitions of both topics; a missing one is an error, unless it may be created."""
        topic, into = self.spec.topic, self.spec.into
        if topic == into and not self.options.same_topic:
            raise PipelineError(
                f"{topic} would be replayed into itself, and its readers would get each event again; "
                "if you want that, add --same-topic (the range is fixed, so the replay will end)"
            )
        described = {each.name: len(each.partitions) for each in admin.list_topics(include_internal=True)}
        if topic not in described:
            raise PipelineError(f"there is no topic {topic} to replay; 'tidelog topics list' shows all topics")
        if into not in described:
            if not self.options.create:
                raise PipelineError(
                    f"there is no topic {into}; add --create, or run: tidelog topics create {into} "
                    f"--partitions {described[topic]}"
                )
            described[into] = described[topic]
        return described

    def _make_topics(self, admin: Admin) -> None:
        known = {each.name: len(each.partitions) for each in admin.list_topics(include_internal=True)}
        wanted = {self.spec.into: known[self.spec.topic]}
        if self._functions.may_refuse:
            wanted[self.dead_letters] = DEAD_LETTER_PARTITIONS
        missing = [NewTopic(name, partitions) for name, partitions in wanted.items() if name not in known]
        if missing:
            admin.create_topics(missing).raise_for_errors()
            admin.wait_for_topics([topic.name for topic in missing])

    def _resolve(self, admin: Admin, cluster_id: str | None) -> ReplayState:
        now_ms = _now_ms()
        first, last = parse_bound(self.spec.first, now_ms), parse_bound(self.spec.last, now_ms)
        (described,) = admin.describe_topics(self.spec.topic).values()
        keys = [TopicPartition(self.spec.topic, each.partition) for each in described.partitions]

        def ask(wanted: Mapping[TopicPartition, Any]) -> dict[int, int]:
            # Use the end of the committed records, so that we don't wait for open transactions.
            found = admin.list_offsets(wanted, isolation_level="read_committed")
            return {key.partition: listed.offset for key, listed in found.items()}

        starts, ends = ask(dict.fromkeys(keys, OffsetSpec.EARLIEST)), ask(dict.fromkeys(keys, OffsetSpec.LATEST))

        def find_times(times: Mapping[int, int]) -> dict[int, int | None]:
            found = ask({TopicPartition(self.spec.topic, each): time_ms for each, time_ms in times.items()})
            return {partition: None if offset < 0 else offset for partition, offset in found.items()}

        available = {each: OffsetRange(starts[each], max(starts[each], ends[each])) for each in starts}
        resolved = resolve(first, last, available, find_times)
        self.notes += resolved.notes
        return ReplayState(self.name, self.spec, cluster_id, self._functions.digest, resolved.ranges, now_ms)

    # The work

    def run(self, watch: Watch) -> ReplayState:
        """Replay to the end; raises ReplayStoppedError if it is asked to stop before that."""
        assert self._state is not None  # prepare comes first
        state = self._state
        if state.finished_ms is None:
            while state.chunk is not None or state.offsets_done < state.offsets_total:
                self._wait_for_its_time(watch)
                with self._session() as spark:
                    self._work(spark, watch)
            state.finished_ms = _now_ms()
            self._store.save(state)
        watch(self._progress(None))
        return state

    def _work(self, spark: SparkSession, watch: Watch) -> None:
        """Replay until the end, or until the quiet hours are over."""
        assert self._state is not None
        state, pace, speed = self._state, Pace(self.options.rate), Speed()
        while True:
            speed.note(time.monotonic(), state.offsets_done)
            watch(self._progress(speed))
            chunk = state.chunk or next_chunk(state.done, state.ranges, pace.chunk_offsets)
            if not chunk or not self._is_its_time():
                return
            self._wait(pace.wait_s(time.monotonic()))
            pace.begin(total(chunk), time.monotonic())
            if state.chunk is None:
                state.begin_chunk(chunk)
                self._store.save(state)
            state.end_chunk(self._write(spark, state))
            self._store.save(state)

    def _write(self, spark: SparkSession, state: ReplayState) -> Counts:
        """Write the current chunk; if a broker restarts in the meantime, wait for it to come back."""
        from py4j.protocol import Py4JError
        from pyspark.errors import AnalysisException, PySparkException

        for attempt in range(1, CHUNK_ATTEMPTS + 1):
            try:
                return self._write_once(spark, state)
            except AnalysisException as error:
                raise QueryFailedError(f"Spark rejected the query: {reason_of(str(error))}", str(error)) from None
            except (PySparkException, Py4JError) as error:
                if attempt == CHUNK_ATTEMPTS:
                    message = (
                        f"the replay has stopped because a chunk failed: {reason_of(str(error))}; run the same command "
                        f"to resume there (full log: {self._store.directory / LOG_FILE})"
                    )
                    raise QueryFailedError(message, str(error)) from None
                self._wait(RETRY_AFTER_S * attempt)
        raise AssertionError("the last attempt returns or raises")

    def _write_once(self, spark: SparkSession, state: ReplayState) -> Counts:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        assert self._plan is not None
        assert state.chunk is not None
        read, changed = Observation(), Observation()
        rows = self._plan.read(spark, state.chunk).observe(read, f.count(f.lit(1)).alias("rows"))
        rows = self._plan.changed(rows).observe(
            changed, f.count(f.lit(1)).alias("rows"), f.count(f.col("error")).alias("refused")
        )
        (
            self._plan.to_write(rows)
            .write.format("tidelog")
            .options(**self._plan.client)
            .option("delivery", "exactly-once")
            .option("txnAppId", f"replay-{state.id}")
            .option("txnVersion", str(state.chunk_number))
            .mode("append")
            .save()
        )
        refused = changed.get["refused"]
        return Counts(read.get["rows"], changed.get["rows"] - refused, refused)

    def sample(self, rows_max: int) -> list[dict[str, Any]]:
        """The first few rows as they would be written, without writing anything."""
        assert self._state is not None
        assert self._plan is not None
        chunk = next_chunk(self._state.done, self._state.ranges, max(rows_max * 100, 1000))
        if not chunk:
            return []
        with self._session() as spark:
            rows = self._plan.to_write(self._plan.changed(self._plan.read(spark, chunk))).limit(rows_max).collect()
        return [row.asDict(recursive=True) for row in rows]

    @contextlib.contextmanager
    def _session(self) -> Iterator[SparkSession]:
        if self._spark is not None:
            yield self._spark
            return
        from tidelog.pipeline.session import is_local, prepare_session, settings_for, start_session
        from tidelog.pipeline.shipping import shipping_settings

        # Spark installs its own handler for Ctrl-C; we restore that of the caller.
        on_interrupt = signal.getsignal(signal.SIGINT)
        file, master = self._functions.file, self.options.master
        if is_local(master):
            found = {} if file is None else {"spark.executorEnv.PYTHONPATH": str(file.parent)}
        else:
            found = shipping_settings(file, self._store.directory)
        conf = settings_for(master, {"spark.ui.enabled": "false"}, found, self.options.conf)
        log_file = self._store.directory / LOG_FILE
        spark = start_session(f"tidelog replay {self.name}", master, conf, log_file)
        try:
            signal.signal(signal.SIGINT, on_interrupt)
            prepare_session(spark)
            yield spark
        finally:
            spark.stop()
            end_java()

    # Waiting

    def _is_its_time(self) -> bool:
        now = self._now()
        if self.options.not_before is not None and now < self.options.not_before:
            return False
        return self.options.hours is None or self.options.hours.contain(now)

    def _wait_for_its_time(self, watch: Watch) -> None:
        while not self._is_its_time():
            now = self._now()
            until = self.options.not_before
            if until is None or until <= now:
                assert self.options.hours is not None  # or it would be time
                until = self.options.hours.next_start(now)
            watch(self._progress(None, until))
            self._wait(1.0)

    def _wait(self, seconds: float) -> None:
        deadline_s = time.monotonic() + seconds
        while True:
            if self._is_stopping():
                raise ReplayStoppedError
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(WAIT_S, left_s))

    def _progress(self, speed: Speed | None, until: datetime.datetime | None = None) -> ReplayProgress:
        assert self._state is not None
        done, whole = self._state.offsets_done, self._state.offsets_total
        rate = speed.offsets_per_second if speed is not None else None
        left_s = speed.left_s(whole - done) if speed is not None else None
        if left_s is None and self.options.rate is not None:
            left_s = (whole - done) / self.options.rate
        return ReplayProgress(done, whole, self._state.counts, rate, left_s, until)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
