"""The settings of a write: the options of the sink, parsed once on the driver and sent to every task.

What always holds: invalid settings are rejected on the driver, before any task starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.client.producer.settings import ProducerSettings
from tidelog.spark.options import OptionError, Options, Use, read_options
from tidelog.spark.sink_identity import WriteIdentity, name_of

EXACTLY_ONCE = "exactly-once"
AT_LEAST_ONCE = "at-least-once"
DEFAULT_CLIENT_ID = "tidelog-spark"
# The longest that brokers usually allow (transaction.max.timeout.ms). A transaction stays open from the first row of
# its task until the driver has decided; if the driver is down, until it is back.
TRANSACTION_TIMEOUT_MS = 900_000
TWO_PHASE = "transaction.two.phase.commit.enable"


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The options of one write; kept small, because it is sent with every task."""

    kafka: Mapping[str, str]
    topic: str | None
    delivery: str | None  # None: exactly once inside a streaming query, otherwise at least once
    id_prefix: str
    topic_timeout_s: float
    write_id: str  # identifies this write of a DataFrame; empty in streams
    txn_app_id: str | None = None
    txn_version: int | None = None

    @property
    def timeout_s(self) -> float:
        """How long the driver tries to reach a broker before a commit fails."""
        return int(self.kafka.get("default.api.timeout.ms", "60000")) / 1000

    @property
    def transaction_timeout_ms(self) -> int:
        return int(self.kafka.get("transaction.timeout.ms", str(TRANSACTION_TIMEOUT_MS)))

    def producer_settings(self, *, transactional: bool) -> dict[str, object]:
        """The settings of a task's producer; a transactional one gets its actual ids later, one per transaction."""
        settings: dict[str, object] = {"client.id": DEFAULT_CLIENT_ID, **self.kafka}
        if transactional:
            settings.setdefault("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
            settings["transactional.id"] = self.id_prefix
        return settings

    def identity(self, properties: Mapping[str, str]) -> WriteIdentity | None:
        """The identity of a write, from the properties of the Spark job; None if there is nothing to decide."""
        query_id, batch_id = properties.get("sql.streaming.queryId"), properties.get("streaming.sql.batchId")
        is_in_query = query_id is not None and batch_id is not None
        if self.delivery == AT_LEAST_ONCE or (self.delivery is None and not is_in_query):
            return None
        driver = [properties.get(name, "") for name in ("spark.app.id", "spark.app.startTime", "spark.jobGroup.id")]
        run = name_of("\n".join(driver if is_in_query else [*driver, self.write_id]))
        app_id = self.txn_app_id or query_id
        if app_id is None or not (is_in_query or self.txn_app_id):
            return WriteIdentity(f"{self.id_prefix}-{self.write_id}", run, None, self.write_id)
        version = self.txn_version if self.txn_version is not None else batch_id
        if version is None:
            raise OptionError("option txnAppId also needs txnVersion, unless the write is inside foreachBatch")
        is_implied = bool(self.write_id) and self.txn_app_id is None
        return WriteIdentity(f"{self.id_prefix}-{app_id}", run, int(version), self.write_id, is_implied)


def read_settings(given: Mapping[str, str], use: Use, write_id: str) -> SinkSettings:
    """The settings of a write; raises OptionError or ConfigError if they are invalid."""
    options = read_options(given, use)
    app_id, version = options.get("txnAppId"), options.get("txnVersion")
    if version is not None and app_id is None:
        raise OptionError("option txnVersion also needs txnAppId, the application that the version belongs to")
    settings = SinkSettings(
        kafka=dict(options.kafka),
        topic=options.get("topic"),
        delivery=_delivery(options),
        id_prefix=options.get("transactionalIdPrefix"),
        topic_timeout_s=options.get("topicTimeoutMs") / 1000,
        write_id=write_id,
        txn_app_id=app_id,
        txn_version=version,
    )
    if app_id is not None and settings.delivery == AT_LEAST_ONCE:
        raise OptionError("option txnAppId can't be used with delivery=at-least-once, which may write rows again")
    ProducerSettings.read(settings.producer_settings(transactional=settings.delivery != AT_LEAST_ONCE), {})
    return settings


def _delivery(options: Options) -> str | None:
    """What the user asked for, or the default. A batch write without a name is at least once, because a repeated write
    can't be recognized, and because it may take longer than a transaction may stay open."""
    if options.is_given("delivery"):
        return str(options.get("delivery"))
    return EXACTLY_ONCE if options.use is Use.STREAM_WRITE or options.get("txnAppId") is not None else None
