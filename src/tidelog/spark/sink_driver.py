"""What the driver does: decide which attempts count, end their transactions, and abort all others.

What always holds: the decision is written before the first transaction is committed, and nothing that a decision names
is ever aborted here. A transaction is aborted only when no decision can name it any more: it is one of the driver's own
run whose batch is over, or of a run that a written decision has deposed. Doing any of it twice does no harm, so whoever
comes after a driver that died goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tidelog.client.admin.transaction_types import TransactionListing
from tidelog.client.admin.transactions import describe_transactions, list_transactions
from tidelog.client.errors import ClientError, ProducerFencedError, UnsupportedVersionError
from tidelog.client.network.cluster import Cluster
from tidelog.client.producer.foreign_transactions import Outcome, end_transactions, fence_all
from tidelog.client.producer.handover import HandedOver
from tidelog.spark.sink_decision import NOTHING_DECIDED, Decision, DecisionLog, Winner, is_second_write
from tidelog.spark.sink_identity import TaskName, TaskReport, WriteIdentity, first_identity, parse_transactional_id
from tidelog.spark.sink_settings import TWO_PHASE, SinkSettings

log = logging.getLogger(__name__)

_ATTEMPTS_MAX = 3  # at a decision, when other drivers of the same query come between
_REMEMBERED_BASES_MAX = 64
_ORPHANS_EVERY_S = 10.0
_ORPHANS_WAIT_S = 3.0
_ORPHAN_TIMEOUT_MS = 60_000  # of a transactional id that is taken over to abort what it left
_TRUSTED_SHARE = 0.5  # of the time-out: a transaction that is open for less is still open, whatever the clocks say
_ONGOING = "Ongoing"

Reports = Sequence[TaskReport | None]


class SinkError(Exception):
    """A batch could not be committed; the text says why, and what happens to it."""


class SinkDriver:
    """The commits of one process; keeps what it knows of each query from one batch to the next."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._logs: OrderedDict[str, DecisionLog] = OrderedDict()

    def _log(self, base: str, timeout_s: float) -> DecisionLog:
        """The decisions of a base, with the place of its driver, which this process may still hold."""
        found = self._logs.pop(base, None) or DecisionLog(self._cluster, base, timeout_s=timeout_s)
        self._logs[base] = found
        if len(self._logs) > _REMEMBERED_BASES_MAX:
            self._logs.popitem(last=False)
        return found

    async def commit(self, settings: SinkSettings, reports: Reports) -> None:
        """Make what the reports name visible, once; raises when it is not certain that it is."""
        identity = first_identity(reports)
        if identity is None:
            return
        if any(report is not None and report.is_second_write for report in reports):
            raise _second_write(identity)
        decisions = self._log(identity.base, settings.timeout_s)
        batch = _Batch(self._cluster, settings, identity, reports, decisions)
        if identity.version is None:
            await batch.commit_unnamed()
        elif not await batch.commit_in_office():
            for attempt in range(1, _ATTEMPTS_MAX + 1):
                try:
                    await batch.commit()
                    return
                except ProducerFencedError:
                    # Another driver of the same query took over before the decision: what it decided is found now.
                    if attempt == _ATTEMPTS_MAX:
                        raise

    async def abort(self, settings: SinkSettings, reports: Reports) -> None:
        """Abort what the reports name, except what was decided for all the same."""
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

    @property
    def _mine(self) -> list[HandedOver]:
        return [report.transaction for report in self._written if report.transaction is not None]

    # Without a name nobody can repeat it, so nothing has to be remembered

    async def commit_unnamed(self) -> None:
        await self._check_still_open()
        orphans = await self._orphans()
        outcomes = await self._end(self._mine, committed=True)
        await self._wait_until_visible(self._mine)
        await self._abort_orphans(orphans, self._mine, {self._identity.run})
        lost = [transaction for transaction, outcome in outcomes.items() if outcome is Outcome.LOST]
        if lost:
            raise SinkError(f"{len(lost)} of {len(outcomes)} tasks' rows were lost: {self._why_lost()}")

    # With one

    async def commit_in_office(self) -> bool:
        """Commit as the driver that made the last decision and that nobody has shut out since; False: it can't be.

        What was decided is known then, and losers are looked for where attempts were repeated, and now and then.
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
            log.info("%s: deciding again, from the beginning: %s", self._identity, error)
            return False
        finally:
            found = await orphans
        await self._carry_out(decision, self._mine, found)
        if self._other_runs(found):
            self._decisions.mine = None  # the next commit begins anew, which deposes them
        return True

    async def commit(self) -> None:
        orphans = await self._take_over()
        decision = await self._decisions.read(stable=True)
        if decision is not None and {self._identity.run, self._identity.write_id} & set(decision.deposed):
            await self._end(self._mine, committed=False)
            raise SinkError(
                f"{self._identity} was aborted, or another driver writes it and has shut this one out: nothing of it "
                "was written; stop the other if this is the one that should run, and start it again"
            )
        if decision is None or decision.version < self._version:
            await self._decide(decision, orphans)
        elif is_second_write(self._identity, decision):
            await self._end(self._mine, committed=False)
            raise _second_write(self._identity)
        elif decision.version == self._version:
            await self._finish(decision, orphans)
        else:
            # A later version was decided, so this one was complete before.
            await self._end(self._mine, committed=False)

    @property
    def _version(self) -> int:
        assert self._identity.version is not None
        return self._identity.version

    async def _decide(self, last: Decision | None, orphans: Sequence[TaskName]) -> None:
        """Nobody has decided: all that was written now counts."""
        if not self._written:
            await self._abort_orphans(orphans, [], {self._identity.run})
            return
        await self._check_still_open()
        if last is not None:
            # Its driver may have failed to carry it out, and whoever was told so may have gone on all the same.
            await self._end([winner.transaction(self._identity.base) for winner in last.winners], committed=True)
        others = self._other_runs(orphans)
        decision = self._decision(last, deposed=last.with_deposed(others) if last is not None else others)
        await self._decisions.write(decision)
        await self._carry_out(decision, self._mine, orphans)

    def _decision(self, last: Decision | None, deposed: Sequence[str]) -> Decision:
        """For all that was written now."""
        return Decision(
            version=self._version,
            topic=last.topic if last is not None else min(report.topic for report in self._written),
            run=self._identity.run,
            write_id=self._identity.write_id,
            winners=[_winner(self._identity.base, report) for report in self._written],
            deposed=tuple(deposed),
        )

    async def _finish(self, decision: Decision, orphans: Sequence[TaskName]) -> None:
        """It was decided before, by a driver that may have gone before it was carried out."""
        base = self._identity.base
        winners = {winner.transaction(base): winner for winner in decision.winners}
        outcomes = await self._end(winners, committed=True)
        lost = {winners[transaction].partition for transaction, how in outcomes.items() if how is Outcome.LOST}
        again = [report for report in self._written if report.partition in lost]
        missing = lost - {report.partition for report in again}
        if missing:
            await self._end(self._mine, committed=False)
            raise SinkError(
                f"the rows of tasks {_some(missing)} of {self._identity} were decided for and lost: "
                f"{self._why_lost()}. They are written again when the batch is replayed: restart the query"
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
        """Commit the winners, and abort what can't win any more."""
        abortable = {self._identity.run, *decision.deposed}
        outcomes, _ = await asyncio.gather(
            self._end(winners, committed=True), self._abort_orphans(orphans, winners, abortable)
        )
        lost = [transaction for transaction, outcome in outcomes.items() if outcome is Outcome.LOST]
        if lost:
            raise SinkError(
                f"the rows of {len(lost)} of {len(outcomes)} tasks of {self._identity} were lost after they were "
                f"decided for: {self._why_lost()}. They are written again when the batch is replayed: restart the query"
            )
        if self._identity.write_id:
            await self._wait_until_visible(winners)
        self._decisions.mine = decision

    async def abort(self) -> None:
        if self._identity.version is None:
            orphans = await self._orphans()
            await self._end(self._mine, committed=False)
            await self._abort_orphans(orphans, [], {self._identity.run})
            return
        # The commit before may have decided and failed to hear of it, and may even be at it still, when it was
        # interrupted and not ended: from here on it can't decide any more.
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
        """The last decision, which stands, and that nothing of this write may win any more."""
        if last is None:
            last = Decision(NOTHING_DECIDED, min(report.topic for report in self._written), self._identity.run)
        return replace(last, deposed=last.with_deposed([self._identity.write_id or self._identity.run]))

    async def _take_over(self) -> list[TaskName]:
        """Shut out other drivers; the attempts whose transactions are open."""
        await self._decisions.take_over()
        return await self._orphans()

    # Transactions

    async def _end(self, transactions: Iterable[HandedOver], *, committed: bool) -> dict[HandedOver, Outcome]:
        return await end_transactions(
            self._cluster, transactions, committed=committed, timeout_s=self._settings.timeout_s
        )

    async def _wait_until_visible(self, committed: Iterable[HandedOver]) -> None:
        """Until markers are written, which follow behind the answer: who writes a batch expects to read it then.

        A coordinator that is asked for the same end meanwhile says to ask again.
        """
        await self._end(committed, committed=True)

    async def _orphans(self) -> list[TaskName]:
        """All attempts of this base whose transactions are open, those of the batch's own reports among them."""
        try:
            listings = await self._cluster.retry(self._open_transactions, timeout_s=_ORPHANS_WAIT_S, patient=True)
        except ClientError as error:
            # Brokers before Apache Kafka 3.0 can't tell, and time-outs end what is left there; one of several that is
            # away does not hold up a commit: the next one looks again.
            log.info("can't tell which transactions of %s are open: %s", self._identity.base, error)
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
        """Abort what dead tasks and drivers left open, so that readers of committed records need not wait for it."""
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
        """Before anything is decided: whether transactions that are open for long have not timed out by now."""
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
                log.info("%s: can't tell if it is open: %s", transactional_id, found.errors.get(transactional_id))
            elif told.state != _ONGOING or told.producer_epoch != transaction.producer_epoch:
                raise SinkError(f"the batch took longer than its transactions may be open: {self._why_lost()}")

    def _why_lost(self) -> str:
        return (
            f"brokers abort transactions after kafka.transaction.timeout.ms, {self._settings.transaction_timeout_ms}; "
            f"raise it, make batches smaller, or set kafka.{TWO_PHASE}=true where brokers offer it"
        )


def _second_write(identity: WriteIdentity) -> SinkError:
    return SinkError(
        f"this batch was written under {identity} before: give each of several writes in one foreachBatch an option "
        "txnAppId of its own, so that none is taken for the other when the batch is replayed"
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
