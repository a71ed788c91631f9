"""What a run is put together from: a cluster, workloads, a nemesis that breaks things, and the checker.

What always holds: the run and the command know only what is declared here, and each part is imported when it is first
needed, so the command's help costs nothing. Tests put other parts in their place.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.torture.errors import TortureError
from tidelog.torture.settings import TortureSettings
from tidelog.torture.verdict import Availability

if TYPE_CHECKING:
    from tidelog.torture.anomalies import Checked
    from tidelog.torture.cluster import TortureCluster
    from tidelog.torture.nemesis import Nemesis
    from tidelog.torture.workloads import Place, Workload


class Parts:
    """The parts of Tidelog's own runs."""

    @property
    def workload_names(self) -> tuple[str, ...]:
        from tidelog.torture.workloads import WORKLOADS

        return tuple(WORKLOADS)

    @property
    def fault_kinds(self) -> tuple[str, ...]:
        from tidelog.torture.fault_kinds import FAULT_KINDS

        return tuple(FAULT_KINDS)

    def make_cluster(self, settings: TortureSettings, directory: Path) -> TortureCluster:
        """The cluster, not started, ready for the faults of the settings."""
        from tidelog.torture.clusters import make_cluster

        return make_cluster(
            settings.cluster,
            directory,
            brokers=settings.brokers,
            faults=settings.faults,
            bootstrap=settings.bootstrap,
        )

    def make_workload(self, name: str) -> Workload:
        from tidelog.torture.workloads import WORKLOADS

        return WORKLOADS[name]()

    def java_libs(self) -> Path | None:
        """The jars of Kafka's Java client, which Maven brings the first time; None where it can't."""
        from tidelog.bench.brokers import kafka_jars
        from tidelog.bench.errors import PeerUnavailableError

        try:
            return kafka_jars()
        except PeerUnavailableError:
            return None

    def place(
        self, settings: TortureSettings, cluster: TortureCluster, workload: Workload, directory: Path, seed: int
    ) -> Place:
        """Where a workload runs, and how fast it goes."""
        from tidelog.torture.workloads import Place

        return Place(
            bootstrap=cluster.bootstrap,
            directory=directory,
            seed=seed,
            rate=workload.default_rate if settings.rate is None else settings.rate,
            command_prefix=cluster.command_prefix,
            replication_factor=cluster.replication_factor,
            min_isr=cluster.min_isr,
            java_libs=self.java_libs() if workload.name == "copy" else None,
        )

    def make_nemesis(
        self,
        settings: TortureSettings,
        cluster: TortureCluster,
        workloads: Sequence[Workload],
        rng: random.Random,
        kinds: Sequence[str],
        fault_log: Path,
        on_event: Callable[[str], None],
    ) -> Nemesis:
        from tidelog.torture.nemesis import Nemesis

        return Nemesis(cluster, workloads, rng, kinds, settings.pause_s, fault_log, on_event, unsafe=settings.unsafe)

    def check(self, workload: str, histories: Sequence[Path], progress: Callable[[str], None]) -> Checked:
        """Look for anomalies in the histories of a workload."""
        from tidelog.torture.checker import check
        from tidelog.torture.history import HistoryError

        try:
            return check(workload, histories, progress)
        except HistoryError as error:
            raise TortureError(str(error)) from error

    def availability(self, histories: Sequence[Path], start_ns: int) -> Availability | None:
        """When clients could write, and how fast."""
        from tidelog.torture.availability import measure

        return measure(histories, start_ns)

    def descriptions(self, settings: TortureSettings) -> list[tuple[str, str, str, str | None]]:
        """All workloads and kinds of faults: what it is, its name, what it does, and why it is not possible here."""
        from tidelog.torture.fault_kinds import FAULT_KINDS
        from tidelog.torture.workloads import WORKLOADS

        cluster = self.make_cluster(settings, settings.directory)
        return [
            *(("workload", name, workload.about, None) for name, workload in WORKLOADS.items()),
            *(("fault", kind, text, cluster.can(kind)) for kind, text in FAULT_KINDS.items()),
        ]
