"""The driver's part of a write: decide which attempts count, commit their transactions, and abort all others.

What always holds: the decision is written before the first transaction is committed, and a transaction named by a
decision is never aborted. A transaction is aborted only when no future decision can name it: either it belongs to the
driver's own run and its batch is over, or it belongs to a run that a written decision has deposed. Every step can be
repeated safely, so the successor of a driver that died resumes where it stopped.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tidelog.client.admin.transactions import describe_transactions, list_transactions
from tidelog.client.admin.types import TransactionListing
from tidelog.client.errors import ClientError, ProducerFencedError, UnsupportedVersionError
from tidelog.client.network.cluster import Cluster
from tidelog.client.producer.foreign_transactions import Outcome, end_transactions, fence_all
from tidelog.client.producer.handover import HandedOver
from tidelog.spark.sink_decision import NOTHING_DECIDED, Decision, DecisionLog, Winner, is_second_write
from tidelog.spark.sink_identity import TaskName, TaskReport, WriteIdentity, first_identity, parse_transactional_id
from tidelog.spark.sink_settings import TWO_PHASE, SinkSettings

logger = logging.getLogger(__name__)

_ATTEMPTS_MAX = 3  # to decide, if other drivers of the same query interfere
_REMEMBERED_BASES_MAX = 64
_ORPHANS_EVERY_S = 10.0
_ORPHANS_WAIT_S = 3.0
_ORPHAN_TIMEOUT_MS = 60_000  # of a transactional id that is taken over to abort its transaction
_TRUSTED_SHARE = 0.5  # of the timeout: a younger transaction is sure to be open, even if clocks differ
_ONGOING = "Ongoing"

Reports = Sequence[TaskReport | None]


class SinkError(Exception):
    """A batch could not be committed; the message says why, and what happens to it."""


class SinkDriver:
    """The commits of one process; remembers what it knows about each query between batches."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._logs: OrderedDict[str, DecisionLog] = OrderedDict()

    def _log(self, base: str, timeout_s: float) -> DecisionLog:
        """The decisions of a base; this process may still be its current driver from an earlier batch."""
        found = self._logs.pop(base, None) or DecisionLog(self._cluster, base, timeout_s=timeout_s)
        self._logs[base] = found
        if len(self._logs) > _REMEMBERED_BASES_MAX:
            self._logs.popitem(last=False)
        return found

    async def commit(self, settings: SinkSettings, reports: Reports) -> None:
        """Make the reported rows visible exactly once; raises if it isn't certain that they are."""
        identity = first_identity(reports)
        if identity is None:
            return
        if any(report is not None and report.is_second_write for report in reports):
            raise _second_write(identity)
        decisions = self._log(identity.base, settings.timeout_s)
        batch = _Batch(self._cluster, settings, identity, reports, decisions)
        if identity.version is None:
            await batch.commit_unnamed()
        elif not await batch.commit_as_current_driver():
            for attempt in range(1, _ATTEMPTS_MAX + 1):
                try:
                    await batch.commit()
                    return
                except ProducerFencedError:
                    # Another driver of the same query took over before the decision. The next attempt finds what that
                    # driver decided.
                    if attempt == _ATTEMPTS_MAX:
                        raise

    async def abort(self, settings: SinkSettings, reports: Reports) -> None:
        """Abort the reported transactions, except those that a decision has named nevertheless."""
        identity = first_identity(reports)
        if identity is not None:
            decisions = self._log(identity.base, settings.timeout_s)
            await _Batch(self._cluster, settings, identity, reports, decisions).abort()


class _Batch:
    """The commit or abort of one batch."""

    def __init__(
        self,
        cluster: Cluster,
        settings: SinkSettings,
        identity: WriteIdentity,
        reports: Reports,
        decisions: DecisionLog,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._identity = identity
        self._written = [report for report in reports if report is not None and report.transaction is not None]
        self._is_repeated = any(report is None or report.is_repeated for report in reports)
        self._decisions = decisions
        self._are_orphans_unknown = False

    @property
    def _mine(self) -> list[HandedOver]:
        return [report.transaction for report in self._written if report.transaction is not None]

    # A write without a name can't be repeated, so nothing has to be remembered

    async def commit_unnamed(self) -> None:
        await self._check_still_open()
        orphans = await self._orphans()
        outcomes = await self._end(self._mine, committed=True)
        await self._wait_until_visible(self._mine)
        await self._abort_orphans(orphans, self._mine, {self._identity.run})
        lost = [transaction for transaction, outcome in outcomes.items() if outcome is Outcome.LOST]
        if lost:
            raise SinkError(f"the rows of {len(lost)} of {len(outcomes)} tasks were lost: {self._why_lost()}")

    # A write with a name

    async def commit_as_current_driver(self) -> bool:
        """Commit without taking over, if this driver made the last decision and has not been fenced; else False.

        The last decision is then known. Losing attempts are looked for only if attempts were repeated, and now and
        then.
        """
        last = self._decisions.mine
        if last is None or last.run != self._identity.run or last.version >= self._version or not self._written:
            return False
        await self._check_still_open()
        is_due = time.monotonic() - self._decisions.looked_for_orphans_s > _ORPHANS_EVERY_S
        orphans = asyncio.create_task(self._orphans() if self._is_repeated or is_due else _nobody())
        try:
            decision = self._decision(last, deposed=last.deposed)
            await self._decisions.write(decision)
        except ClientError as error:
            logger.info("%s: taking over and deciding again: %s", self._identity, error)
            return False
        finally:
            found = await orphans
        await self._carry_out(decision, self._mine, found)
        if self._other_runs(found):
            self._decisions.mine = None  # the next commit takes over, which deposes them
        return True

    async def commit(self) -> None:
        orphans = await self._take_over()
        decision = await self._decisions.read(stable=True)
        if decision is not None and {self._identity.run, self._identity.write_id} & set(decision.deposed):
            await self._end(self._mine, committed=False)
            raise SinkError(
                f"{self._identity} was aborted, or another driver is writing it and has fenced this one. Nothing was "
                "written. If this is the one that should run, stop the other and restart this one"
            )
        if decision is None or decision.version < self._version:
            await self._decide(decision, orphans)
        elif is_second_write(self._identity, decision):
            await self._end(self._mine, committed=False)
            raise _second_write(self._identity)
        elif decision.version == self._version:
            await self._finish(decision, orphans)
        else:
            # A later version has been decided, so this one was already complete.
            await self._end(self._mine, committed=False)

    @property
    def _version(self) -> int:
        assert self._identity.version is not None
        return self._identity.version

    async def _decide(self, last: Decision | None, orphans: Sequence[TaskName]) -> None:
        """There is no decision yet: everything that was just written counts."""
        if not self._written:
            await self._abort_orphans(orphans, [], {self._identity.run})
            return
        await self._check_still_open()
        if last is not None:
            # Its driver may have failed to carry it out, and the query may have continued despite the error.
            await self._end([winner.transaction(self._identity.base) for winner in last.winners], committed=True)
        others = self._other_runs(orphans)
        decision = self._decision(last, deposed=last.with_deposed(others) if last is not None else others)
        await self._decisions.write(decision)
        await self._carry_out(decision, self._mine, orphans)

    def _decision(self, last: Decision | None, deposed: Sequence[str]) -> Decision:
        """A decision for everything that was just written."""
        return Decision(
            version=self._version,
            topic=last.topic if last is not None else min(report.topic for report in self._written),
            run=self._identity.run,
            write_id=self._identity.write_id,
            winners=[_winner(self._identity.base, report) for report in self._written],
            deposed=tuple(deposed),
        )

    async def _finish(self, decision: Decision, orphans: Sequence[TaskName]) -> None:
        """Finish an earlier decision, whose driver may have died before it carried it out."""
        base = self._identity.base
        winners = {winner.transaction(base): winner for winner in decision.winners}
        outcomes = await self._end(winners, committed=True)
        lost = {winners[transaction].partition for transaction, how in outcomes.items() if how is Outcome.LOST}
        again = [report for report in self._written if report.partition in lost]
        missing = lost - {report.partition for report in again}
        if missing:
            await self._end(self._mine, committed=False)
            raise SinkError(
                f"the rows of tasks {_some(missing)} of {self._identity} were lost after the decision to commit them: "
                f"{self._why_lost()}. Restart the query to replay the batch, which writes them again"
            )
        others = self._other_runs(orphans)
        if again or others:
            kept = [winner for winner in decision.winners if winner.partition not in lost]
            decision = Decision(
                version=decision.version,
                topic=decision.topic,
                run=self._identity.run,
                write_id=self._identity.write_id,
                winners=[*kept, *(_winner(base, report) for report in again)],
                deposed=decision.with_deposed(others),
            )
            await self._decisions.write(decision)
        await self._carry_out(decision, [winner.transaction(base) for winner in decision.winners], orphans)
        named = {_name(winner.transaction(base)) for winner in decision.winners}
        await self._end([mine for mine in self._mine if _name(mine) not in named], committed=False)

    async def _carry_out(self, decision: Decision, winners: Sequence[HandedOver], orphans: Sequence[TaskName]) -> None:
        """Commit the winners, and abort attempts that can no longer win."""
        abortable = {self._identity.run, *decision.deposed}
        outcomes, _ = await asyncio.gather(
            self._end(winners, committed=True), self._abort_orphans(orphans, winners, abortable)
        )
        lost = [transaction for transaction, outcome in outcomes.items() if outcome is Outcome.LOST]
        if lost:
            raise SinkError(
                f"the rows of {len(lost)} of {len(outcomes)} tasks of {self._identity} were lost after the decision to "
                f"commit them: {self._why_lost()}. Restart the query to replay the batch, which writes them again"
            )
        if self._identity.write_id:
            await self._wait_until_visible(winners)
        # If attempts of other runs may be open, the next commit takes over, which finds and deposes them.
        self._decisions.mine = None if self._are_orphans_unknown else decision

    async def abort(self) -> None:
        if self._identity.version is None:
            orphans = await self._orphans()
            await self._end(self._mine, committed=False)
            await self._abort_orphans(orphans, [], {self._identity.run})
            return
        # The previous commit may have decided without getting the response. If it was only interrupted, it may even
        # still be running; from here on, it can no longer decide.
        orphans = await self._take_over()
        decision = await self._decisions.read(stable=True)
        winners: list[HandedOver] = []
        if decision is not None and decision.version == self._version:
            winners = [winner.transaction(self._identity.base) for winner in decision.winners]
            await self._end(winners, committed=True)
        elif self._written and (decision is None or decision.version < self._version):
            await self._decisions.write(self._depose_myself(decision))
        named = {_name(winner) for winner in winners}
        await self._end([mine for mine in self._mine if _name(mine) not in named], committed=False)
        await self._abort_orphans(orphans, winners, {self._identity.run})

    def _depose_myself(self, last: Decision | None) -> Decision:
        """The last decision, unchanged, except that this write can no longer win."""
        if last is None:
            last = Decision(NOTHING_DECIDED, min(report.topic for report in self._written), self._identity.run)
        return replace(last, deposed=last.with_deposed([self._identity.write_id or self._identity.run]))

    async def _take_over(self) -> list[TaskName]:
        """Fence other drivers; returns the attempts whose transactions are open."""
        await self._decisions.take_over()
        return await self._orphans()

    # Transactions

    async def _end(self, transactions: Iterable[HandedOver], *, committed: bool) -> dict[HandedOver, Outcome]:
        return await end_transactions(
            self._cluster, transactions, committed=committed, timeout_s=self._settings.timeout_s
        )

    async def _wait_until_visible(self, committed: Iterable[HandedOver]) -> None:
        """Wait until the markers are written, so that the caller of a batch write can read it right away.

        Brokers write markers only after they respond. We end the transactions again, and until the markers are written
        the coordinator tells us to retry.
        """
        await self._end(committed, committed=True)

    async def _orphans(self) -> list[TaskName]:
        """All attempts of this base whose transactions are open, including those reported for this batch."""
        try:
            listings = await self._cluster.retry(self._open_transactions, timeout_s=_ORPHANS_WAIT_S, patient=True)
        except UnsupportedVersionError as error:
            # Brokers before Apache Kafka 3.0 can't list transactions; those left open there end by their timeout.
            logger.info("can't list the open transactions of %s: %s", self._identity.base, error)
            return []
        except ClientError as error:
            # An unreachable broker doesn't hold up the commit, but we have to ask again what it knows.
            self._are_orphans_unknown = True
            logger.warning(
                "%s: can't list the open transactions of failed attempts, so none are aborted now; the next batch will "
                "try again. Until then, read_committed consumers may have to wait, at most "
                "kafka.transaction.timeout.ms (%d): %s",
                self._identity.base,
                self._settings.transaction_timeout_ms,
                error,
            )
            return []
        self._decisions.looked_for_orphans_s = time.monotonic()
        names = (parse_transactional_id(self._identity.base, listing.transactional_id) for listing in listings)
        return [name for name in names if name is not None]

    async def _open_transactions(self) -> list[TransactionListing]:
        if self._decisions.lists_by_pattern:
            pattern = f"{re.escape(self._identity.base)}-.*"
            try:
                return await list_transactions(self._cluster, states=[_ONGOING], transactional_id_pattern=pattern)
            except UnsupportedVersionError:  # before Apache Kafka 4.1
                self._decisions.lists_by_pattern = False
        return await list_transactions(self._cluster, states=[_ONGOING])

    def _other_runs(self, orphans: Iterable[TaskName]) -> list[str]:
        return list(dict.fromkeys(name.run for name in orphans if name.run != self._identity.run))

    async def _abort_orphans(
        self, orphans: Iterable[TaskName], winners: Iterable[HandedOver], runs: Iterable[str]
    ) -> None:
        """Abort transactions that dead tasks and drivers left open, so that read_committed consumers need not wait."""
        kept = {winner.transactional_id for winner in winners}
        abortable = frozenset(runs)
        ids = [name.of(self._identity.base) for name in orphans if name.run in abortable]
        await fence_all(
            self._cluster,
            [orphan for orphan in ids if orphan not in kept],
            transaction_timeout_ms=_ORPHAN_TIMEOUT_MS,
            timeout_s=self._settings.timeout_s,
        )

    async def _check_still_open(self) -> None:
        """Before a decision, check that transactions that have been open for long have not timed out."""
        if self._settings.kafka.get(TWO_PHASE, "").lower() == "true":
            return
        oldest_ms = time.time_ns() // 1_000_000 - self._settings.transaction_timeout_ms * _TRUSTED_SHARE
        old = {
            report.transaction.transactional_id: report.transaction
            for report in self._written
            if report.transaction is not None and report.began_ms < oldest_ms
        }
        if not old:
            return
        found = await describe_transactions(self._cluster, old)
        for transactional_id, transaction in old.items():
            told = found.succeeded.get(transactional_id)
            if told is None:
                logger.info("%s: can't tell if it is open: %s", transactional_id, found.errors.get(transactional_id))
            elif told.state != _ONGOING or told.producer_epoch != transaction.producer_epoch:
                raise SinkError(f"the batch took longer than its transactions may stay open: {self._why_lost()}")

    def _why_lost(self) -> str:
        return (
            f"brokers abort transactions after kafka.transaction.timeout.ms ({self._settings.transaction_timeout_ms}); "
            f"raise it, make batches smaller, or set kafka.{TWO_PHASE}=true if your brokers support it"
        )


def _second_write(identity: WriteIdentity) -> SinkError:
    return SinkError(
        f"this batch has already been written as {identity}. If foreachBatch writes more than once, give each write "
        "its own txnAppId option, so that they can be told apart when the batch is replayed"
    )


async def _nobody() -> list[TaskName]:
    return []


def _winner(base: str, report: TaskReport) -> Winner:
    assert report.transaction is not None
    name = parse_transactional_id(base, report.transaction.transactional_id)
    assert name is not None, report
    return Winner(report.partition, name, report.transaction.producer_id, report.transaction.producer_epoch)


def _name(transaction: HandedOver) -> tuple[str, int, int]:
    return transaction[:3]


def _some(numbers: Iterable[int]) -> str:
    shown = sorted(numbers)
    return ", ".join(str(number) for number in shown[:10]) + (" and others" if len(shown) > 10 else "")
