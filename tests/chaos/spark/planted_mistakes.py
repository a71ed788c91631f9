"""Mistakes that a sink could have, planted on purpose: the tests must find each of them, else they find nothing."""

from __future__ import annotations

from typing import Any

from tidelog.client.producer.foreign_transactions import Outcome
from tidelog.spark import sink_driver, sink_tasks
from tidelog.spark.sink_decision import DecisionLog
from tidelog.spark.sink_identity import TaskName, WorkerNames, WriteIdentity

_Batch: Any = sink_driver._Batch
_Log: Any = DecisionLog
_tasks: Any = sink_tasks


def _use_ids_again() -> None:
    """A worker that forgets which ids it used for this very batch."""

    def claim(self: WorkerNames, identity: WriteIdentity) -> str:
        return identity.transactional_id(self.worker, 0)

    WorkerNames.claim = claim  # type: ignore[method-assign]


def _commit_undecided() -> None:
    """A driver that commits the transactions of tasks without writing down first which ones."""

    async def write(*_: Any) -> None:
        return None

    _Log.write = write


def _decide_again() -> None:
    """A driver that does not look whether the batch was decided before; nor do its tasks."""

    async def read(*_: Any, **__: Any) -> None:
        return None

    _Log.read = read


def _abort_all() -> None:
    """An abort that does not look whether the commit before it has decided."""

    async def abort(batch: Any) -> None:
        await batch._end(batch._mine, committed=False)

    _Batch.abort = abort


def _abort_everybody() -> None:
    """A driver that aborts what other drivers have open, without shutting them out for good."""
    _Batch._other_runs = lambda *_: []

    async def orphans_of_all(batch: Any, orphans: list[TaskName], winners: Any, _: Any) -> None:
        await abort_orphans(batch, orphans, winners, {name.run for name in orphans})

    abort_orphans = _Batch._abort_orphans
    _Batch._abort_orphans = orphans_of_all


def _leave_orphans() -> None:
    """A driver that leaves open what dead tasks have left."""

    async def none(*_: Any) -> list[TaskName]:
        return []

    _Batch._orphans = none


def _forget_winners() -> None:
    """A driver that does not carry out what another has decided; nor do its tasks."""
    end_all = _Batch._end

    async def end(batch: Any, transactions: Any, *, committed: bool) -> Any:
        named = list(transactions)
        mine = {transaction[:3] for transaction in batch._mine}
        outcomes = dict.fromkeys(named, Outcome.ENDED)
        wanted = [transaction for transaction in named if not committed or transaction[:3] in mine]
        return outcomes | await end_all(batch, wanted, committed=committed)

    _Batch._end = end
    _tasks.end_transactions = _all_ended


async def _all_ended(_: Any, transactions: Any, **__: Any) -> Any:
    return dict.fromkeys(transactions, Outcome.ENDED)


MISTAKES = {
    function.__name__.strip("_"): function
    for function in (
        _use_ids_again,
        _commit_undecided,
        _decide_again,
        _abort_all,
        _abort_everybody,
        _leave_orphans,
        _forget_winners,
    )
}


def plant(name: str) -> None:
    MISTAKES[name]()
