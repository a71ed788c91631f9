"""Runs a pipeline: one process with one Spark query, until it is stopped or has read everything.

What always holds: a version has at most one run at a time (it holds a lock); each version has its own checkpoint, in
`<state>/<name>/v<version>/checkpoint/main`, and however a run ended, the next one resumes exactly after the last
finished batch; progress is written to the registry after each batch. A stop takes effect between two batches: the
source offers nothing more, and the query is stopped once it is idle.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from tidelog.client.admin.admin import Admin
from tidelog.client.errors import ClientError
from tidelog.common.durable_files import replace_file
from tidelog.pipeline.dead_letters import DeadLetters
from tidelog.pipeline.declaration import SESSION_PARAMETER, Pipeline
from tidelog.pipeline.errors import DeclarationError, PipelineError
from tidelog.pipeline.executor_check import check_executors
from tidelog.pipeline.failures import query_failure, transform_failure
from tidelog.pipeline.inputs import SourceSettings, stream_of
from tidelog.pipeline.outputs import Output, TableOutput
from tidelog.pipeline.progress import ProgressReader, refused_counts
from tidelog.pipeline.query_log import QueryLog
from tidelog.pipeline.session import DEFAULT_MASTER, is_local, prepare_session, settings_for, start_session
from tidelog.pipeline.shipping import shipping_settings
from tidelog.pipeline.table_views import TableViews
from tidelog.pipeline.topics import end_offsets, prepare_topics, resolve_start
from tidelog.pipeline.versions.registry import Registry
from tidelog.pipeline.versions.registry_rows import Offsets, Progress, Role, has_reached, offsets_from_json
from tidelog.pipeline.versions.run_lock import RunLock
from tidelog.pipeline.writing import start_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

QUERY = "main"
POLL_S = 0.25
ENDS_INTERVAL_S = 2.0
TELL_INTERVAL_S = 5.0
_PYTHON_PATH = "spark.executorEnv.PYTHONPATH"
DEFAULT_STATE_DIR = "tidelog-pipelines"


class PipelineRun:
    """One run of a pipeline.

        PipelineRun(pipeline, bootstrap="127.0.0.1:9092", state_dir="state", once=True).run()

    `run` blocks until the end and raises an exception if the run failed; use `start`, `wait` and `stop` to do other
    things in the meantime. With `spark`, the pipeline runs in an existing session.

    role: "live" writes to the declared outputs, "shadow" to the version's own locations (`Output.shadow`).
    once: end when everything that was there at the start has been processed.
    stop_at: end after the first batch that has reached these offsets.
    limit_file: a file with the maximum number of rows of the next micro-batch; see the source's option.
    file: the file that declares the pipeline, for the registry and for error messages.
    on_progress: called after each batch, in the run's own thread.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        bootstrap: str = "127.0.0.1:9092",
        master: str = DEFAULT_MASTER,
        state_dir: str | os.PathLike[str] = DEFAULT_STATE_DIR,
        role: Role = "live",
        once: bool = False,
        stop_at: Offsets | None = None,
        limit_file: str | os.PathLike[str] | None = None,
        conf: Mapping[str, str] | None = None,
        file: str | os.PathLike[str] | None = None,
        spark: SparkSession | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.bootstrap = bootstrap
        self.master = master
        self.state_dir = Path(state_dir).absolute()
        self.role: Role = role
        self.once = once
        self.stop_at = stop_at
        self.conf = dict(conf or {})
        self.file = Path(file).resolve() if file is not None else None
        self.on_progress = on_progress
        self.tell = tell or (lambda text: None)
        self.home = self.state_dir / pipeline.name / f"v{pipeline.version}"
        self.log_file = self.home / "logs" / "spark.log"
        self._given_limit_file = Path(limit_file).absolute() if limit_file is not None else None
        self.limit_file = self._given_limit_file or self.home / "limit"
        self.progress = Progress()
        self.run_id: int | None = None
        self.spark_url: str | None = None
        self.query_id: str | None = None
        self._given_session = spark
        self._stop_asked = threading.Event()
        self._stop_now = threading.Event()
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None

    # For users

    def run(self, *, handle_signals: bool = False) -> None:
        """Run to the end. With `handle_signals`, the first SIGINT or SIGTERM requests a stop, and a second SIGINT
        interrupts the current batch."""
        self._begin()
        with self._signals() if handle_signals else contextlib.nullcontext():
            while not self.wait(timeout=0.5):
                pass

    def start(self) -> None:
        """Start the run, and return once the query is running; raises an exception if it can't run."""
        self._begin()
        while not self._ready.wait(0.1):
            if self._thread is None or not self._thread.is_alive():
                break
        if self._error is not None:
            self.wait()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the run to end, and return whether it has; raises an exception if it failed."""
        if self._thread is None:
            raise PipelineError("this run has not been started")
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def request_stop(self) -> None:
        """Request a stop after the current batch; returns immediately."""
        self._stop_asked.set()

    def stop(self, timeout: float | None = None) -> bool:
        """Stop after the current batch; returns whether the run has ended in time."""
        self.request_stop()
        return self.wait(timeout)

    @property
    def dead_letters(self) -> str:
        """The topic for rejected records; a shadow has its own, because the live version rejects records as well."""
        topic = self.pipeline.dead_letters
        return topic if self.role == "live" else f"{topic}.v{self.pipeline.version}"

    @property
    def is_running(self) -> bool:
        return self._ready.is_set() and self._thread is not None and self._thread.is_alive()

    # The run

    def _begin(self) -> None:
        if self._thread is not None:
            raise PipelineError("this run has already been started; create a new PipelineRun")
        self._thread = threading.Thread(target=self._guarded, name=f"pipeline {self.pipeline.name}", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def handle(number: int, frame: FrameType | None) -> None:
            if self._stop_asked.is_set() and number == signal.SIGINT:
                self._stop_now.set()
            self._stop_asked.set()

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - raised again by wait(), in the caller's thread
            self._error = error

    def _run(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        with RunLock(self.state_dir, self.pipeline.name, self.pipeline.version), Registry(self.state_dir) as registry:
            source = self.file.read_text(encoding="utf-8") if self.file is not None else ""
            registry.note_version(self.pipeline.name, self.pipeline.version, file=str(self.file or ""), source=source)
            self.run_id = registry.start_run(self.pipeline.name, self.pipeline.version, self.role)
            try:
                with Admin(
                    bootstrap_servers=self.bootstrap, client_id=f"tidelog-pipeline-{self.pipeline.name}"
                ) as admin:
                    self._run_noted(registry, admin)
            except BaseException as error:
                registry.end_run(self.run_id, "failed", str(error) or type(error).__name__)
                raise
            registry.end_run(self.run_id, "stopped")

    def _run_noted(self, registry: Registry, admin: Admin) -> None:
        outputs = [self._placed(output) for output in self.pipeline.outputs]
        prepare_topics(admin, self.pipeline, outputs, self.tell, dead_letters=self.dead_letters)
        if self._given_limit_file is None:
            self.limit_file.unlink(missing_ok=True)
        session, is_own = self._session()
        try:
            prepare_session(session)
            self.spark_url = session.sparkContext.uiWebUrl
            if self.spark_url is not None:
                assert self.run_id is not None
                registry.note_spark_url(self.run_id, self.spark_url)
            with TableViews(session, admin, self.bootstrap) as views:
                self._run_query(registry, admin, session, outputs, views)
        finally:
            if is_own:
                session.stop()

    def _placed(self, output: Output) -> Output:
        version = self.pipeline.version
        return output.live(version) if self.role == "live" else output.shadow(version)

    def _session(self) -> tuple[SparkSession, bool]:
        if self._given_session is not None:
            session = self._given_session.newSession()
            if session.sparkContext.getConf().get(_PYTHON_PATH) is None:
                self._send_functions()
            for name, value in settings_for(self.master, self.pipeline.options, self.conf).items():
                if name.startswith("spark.sql.") and session.conf.isModifiable(name):
                    session.conf.set(name, value)
            return session, False
        return self.open_session(), True

    def open_session(self) -> SparkSession:
        """A session with this run's settings, which several runs can use one after another."""
        conf = settings_for(self.master, self._path_settings(), self.pipeline.options, self.conf)
        name = f"{self.pipeline.name} v{self.pipeline.version}"
        session = start_session(name, self.master, conf, self.log_file)
        if not is_local(self.master):
            check_executors(session)
        return session

    def _send_functions(self) -> None:
        """Send functions by value, because the executors of an existing session can't find the pipeline's modules."""
        from pyspark import cloudpickle

        maps = [declared.map for declared in self.pipeline.topic_inputs.values()]
        functions = [self.pipeline.transform, *(getattr(each, "function", each) for each in maps)]
        names = {getattr(function, "__module__", None) for function in functions}
        for name in names - {None, "__main__"}:
            if name in sys.modules:
                cloudpickle.register_pickle_by_value(sys.modules[name])  # type: ignore[no-untyped-call]

    def _path_settings(self) -> dict[str, str]:
        """Where executors find the modules next to the pipeline's file: in its directory, or in the shipped archive."""
        if not is_local(self.master):
            return shipping_settings(self.file, self.home)
        return {} if self.file is None else {_PYTHON_PATH: str(self.file.parent)}

    def _run_query(
        self, registry: Registry, admin: Admin, session: SparkSession, outputs: list[Output], views: TableViews
    ) -> None:
        location = self.home / "checkpoint" / QUERY
        log = QueryLog(session, str(location))
        is_new = not log.planned()
        starts = self._starts(admin, is_new=is_new)
        group = self.pipeline.group if self.role == "live" else f"{self.pipeline.group}.v{self.pipeline.version}"
        source = SourceSettings(self.bootstrap, group, str(self.limit_file))
        frames = {
            # A query with a checkpoint resumes from there, and partitions added since then start at the earliest.
            name: stream_of(session, name, declared, source, starts[name] if is_new else "earliest")
            for name, declared in self.pipeline.topic_inputs.items()
        }
        frames |= {name: views.table_of(name, declared) for name, declared in self.pipeline.table_inputs.items()}
        rows = self._transformed(session, frames)
        finished = log.finished()
        processed = log.ends(finished[-1]) if finished else {}
        query = self._started(rows, outputs, str(location))
        try:
            self.query_id = str(query.id)
            letters = DeadLetters(
                session,
                self.pipeline,
                SourceSettings(self.bootstrap),
                log,
                query_id=str(query.id),
                topic=self.dead_letters,
                starts=starts,
                progress_file=self.home / "dead-letters.json",
                delivery_options={"kafka.bootstrap.servers": self.bootstrap},
            )
            self._ready.set()
            if self.role == "live":
                self._point(outputs)
            self._watch(registry, admin, query, letters, processed, views)
        finally:
            query.stop()

    def _started(self, rows: DataFrame, outputs: list[Output], location: str) -> StreamingQuery:
        trigger: dict[str, Any] = {"availableNow": True} if self.once else {"processingTime": self.pipeline.trigger}
        try:
            return start_query(rows, self.pipeline, outputs, location, self.bootstrap, trigger)
        except PipelineError:
            raise
        except Exception as error:
            raise transform_failure(error, self.pipeline, self.file) from error

    def _starts(self, admin: Admin, *, is_new: bool) -> dict[str, Offsets]:
        """Where the inputs start, determined once per version; partitions added later start at the earliest."""
        file = self.home / "starting-offsets.json"
        known: dict[str, Offsets] = {}
        if file.exists():
            known |= {name: offsets_from_json(rows) for name, rows in json.loads(file.read_text("utf-8")).items()}
        wanted = {name: each for name, each in self.pipeline.topic_inputs.items() if is_new or name not in known}
        if wanted:
            known |= {name: resolve_start(admin, each, known.get(name, {})) for name, each in wanted.items()}
            replace_file(file, json.dumps(known))
        return known

    def _transformed(self, session: SparkSession, frames: dict[str, DataFrame]) -> DataFrame:
        from pyspark.sql import DataFrame

        given: dict[str, Any] = dict(frames)
        if SESSION_PARAMETER in self.pipeline.parameters:
            given[SESSION_PARAMETER] = session
        try:
            rows = self.pipeline.transform(**given)
        except DeclarationError:
            raise
        except Exception as error:
            raise transform_failure(error, self.pipeline, self.file) from error
        if not isinstance(rows, DataFrame):
            raise DeclarationError(
                f"pipeline {self.pipeline.name!r}: transform must return a DataFrame, not {type(rows).__name__}"
            )
        if not rows.isStreaming:
            raise DeclarationError(
                f"pipeline {self.pipeline.name!r}: the DataFrame that transform returns is not based on a TopicInput"
            )
        return rows

    def _watch(
        self,
        registry: Registry,
        admin: Admin,
        query: StreamingQuery,
        letters: DeadLetters,
        processed: Offsets,
        views: TableViews,
    ) -> None:
        assert self.run_id is not None
        reader = ProgressReader(query, processed)
        ends = _Ends(admin, self.pipeline, reader)
        self.progress = Progress(processed=reader.processed)
        told_s = 0.0
        while True:
            is_active = query.isActive
            for document in reader.news():
                letters.note_counts(document["batchId"], refused_counts(document))
                self._deliver(letters)
                self.progress = reader.progress(document, ends.now(), letters.written)
                registry.note_progress(self.run_id, self.progress)
                told_s = time.monotonic()
                if self.on_progress is not None:
                    self.on_progress(self.progress)
            if not is_active:
                break
            if time.monotonic() - told_s > TELL_INTERVAL_S:
                # Also report during a long batch, while the lag grows.
                self.progress = dataclasses.replace(self.progress, ends=ends.now())
                registry.note_progress(self.run_id, self.progress)
                told_s = time.monotonic()
            views.refresh()
            if self._is_over(registry):
                self._rest(query)
                self._stop_asked.set()
                query.stop()
                continue
            time.sleep(POLL_S)
        self._deliver(letters)
        if not self._stop_asked.is_set():
            failure = query.exception()
            if failure is not None:
                raise query_failure(failure, self.pipeline, self.file, self.log_file)

    def _deliver(self, letters: DeadLetters) -> None:
        try:
            letters.deliver()
        except Exception as error:
            raise query_failure(error, self.pipeline, self.file, self.log_file) from error

    def _is_over(self, registry: Registry) -> bool:
        assert self.run_id is not None
        if self._stop_asked.is_set() or registry.stop_requested(self.run_id):
            return True
        return self.stop_at is not None and has_reached(self.progress.processed, self.stop_at)

    def _rest(self, query: StreamingQuery) -> None:
        """Make the current batch the last one, and wait for it to end."""
        self.limit_file.write_text("0", encoding="utf-8")
        while query.isActive and not self._stop_now.is_set():
            if not query.status["isTriggerActive"]:
                return
            time.sleep(0.05)

    def _point(self, outputs: list[Output]) -> None:
        """Point readers to the first live version of a table; later versions take over by a switch."""
        for output in outputs:
            if isinstance(output, TableOutput) and output.current_version() is None:
                output.switch_to(self.pipeline.version)


class _Ends:
    """The end offsets of the input topics, refreshed every few seconds."""

    def __init__(self, admin: Admin, pipeline: Pipeline, reader: ProgressReader) -> None:
        self._admin = admin
        self._topics = {topic for declared in pipeline.topic_inputs.values() for topic in declared.topics}
        self._reader = reader
        self._asked_s = 0.0
        self._ends: Offsets = {}

    def now(self) -> Offsets:
        if time.monotonic() - self._asked_s >= ENDS_INTERVAL_S:
            self._asked_s = time.monotonic()
            # On an error, keep the last offsets: an unreachable broker must not end the run.
            with contextlib.suppress(ClientError):
                self._ends = end_offsets(self._admin, self._topics | set(self._reader.processed))
        return self._ends
