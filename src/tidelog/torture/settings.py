"""What a run of `tidelog torture` is told: which cluster, which workloads and faults, and when to end.

What always holds: settings that contradict each other are refused before anything starts, with a line that says what to
write instead; a run without `--time` and without counts lasts five minutes.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Self

from tidelog.torture.errors import TortureError

OWN_CLUSTERS: Final = ("tidelog-sqlite", "tidelog-zookeeper", "kafka")
FOREIGN: Final = "foreign"
NO_FAULTS: Final = "none"
DEFAULT_SECONDS: Final = 300.0
DEFAULT_BROKERS: Final = 3
DEFAULT_PAUSE_S: Final = 5.0
BROKERS_MAX: Final = 9
# A seed has to be typed again.
SEEDS: Final = 1_000_000


@dataclass(frozen=True)
class TortureSettings:
    """The settings of one run; all defaults are filled in.

    `seconds` is None where only counts end the run; a count is 0 where it does not matter.
    """

    directory: Path
    cluster: str = OWN_CLUSTERS[0]
    bootstrap: str = ""
    brokers: int = DEFAULT_BROKERS
    workloads: tuple[str, ...] = ()  # none: all that can run here
    faults: tuple[str, ...] = ()  # none: all that are possible here
    seconds: float | None = DEFAULT_SECONDS
    fault_count: int = 0
    send_count: int = 0
    seed: int = 0
    rate: float | None = None  # records a second of each workload; 0: as fast as it can; None: its own
    pause_s: float = DEFAULT_PAUSE_S
    keep: bool = False
    unsafe: bool = False

    @classmethod
    def checked(
        cls,
        *,
        directory: Path,
        known_workloads: Sequence[str],
        known_faults: Sequence[str],
        cluster: str | None = None,
        bootstrap: str = "",
        brokers: int | None = None,
        workloads: Iterable[str] = (),
        faults: Iterable[str] = (),
        seconds: float | None = None,
        fault_count: int = 0,
        send_count: int = 0,
        seed: int | None = None,
        rate: float | None = None,
        pause_s: float = DEFAULT_PAUSE_S,
        keep: bool = False,
        unsafe: bool = False,
    ) -> Self:
        """The settings with their defaults; raises TortureError that names what to change."""
        if bootstrap and (cluster is not None or brokers is not None):
            raise TortureError("--bootstrap tests a cluster that runs already; leave out --cluster and --brokers")
        if cluster is not None:
            _check_names("--cluster", "cluster", [cluster], OWN_CLUSTERS)
        if brokers is not None and not 1 <= brokers <= BROKERS_MAX:
            raise TortureError(f"--brokers {brokers}: a cluster on one machine has 1 to {BROKERS_MAX} brokers")
        if seconds is not None and seconds <= 0:
            raise TortureError("--time must be more than nothing, as in --time 60s")
        return cls(
            directory=directory,
            cluster=FOREIGN if bootstrap else cluster or OWN_CLUSTERS[0],
            bootstrap=bootstrap,
            brokers=brokers or DEFAULT_BROKERS,
            workloads=_check_names("--workload", "workload", workloads, known_workloads),
            faults=_check_faults(faults, known_faults),
            seconds=seconds if seconds is not None or fault_count or send_count else DEFAULT_SECONDS,
            fault_count=fault_count,
            send_count=send_count,
            seed=secrets.randbelow(SEEDS) if seed is None else seed,
            rate=rate,
            pause_s=pause_s,
            keep=keep,
            unsafe=unsafe,
        )

    def as_data(self) -> dict[str, Any]:
        """For run.json."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"directory": str(self.directory), "workloads": [*self.workloads], "faults": [*self.faults]}

    @property
    def command(self) -> str:
        """The command that runs this again, with the same seed and in a new directory."""
        words = ["tidelog", "torture"]
        if self.bootstrap:
            words += ["--bootstrap", self.bootstrap]
        else:
            words += ["--cluster", self.cluster]
            words += [] if self.brokers == DEFAULT_BROKERS else ["--brokers", str(self.brokers)]
        for option, names in (("--workload", self.workloads), ("--fault", self.faults)):
            for name in names:
                words += [option, name]
        if self.seconds is not None:
            words += ["--time", f"{self.seconds:g}s"]
        for option, number, default in (
            ("--faults", self.fault_count, 0),
            ("--sends", self.send_count, 0),
            ("--rate", self.rate, None),
            ("--pause", self.pause_s, DEFAULT_PAUSE_S),
        ):
            words += [] if number is None or number == default else [option, f"{number:.12g}"]
        words += ["--unsafe"] if self.unsafe else []
        return shlex.join([*words, "--seed", str(self.seed)])


def _check_faults(faults: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    names = _check_names("--fault", "kind of fault", faults, [*known, NO_FAULTS])
    if NO_FAULTS in names and len(names) > 1:
        raise TortureError(f"--fault {NO_FAULTS} stands for a run without faults; leave it out or leave out the others")
    return names


def _check_names(option: str, noun: str, names: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """The names, each once, in the order in which they were given."""
    unique = tuple(dict.fromkeys(names))
    for name in unique:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise TortureError(f"{option} {name}: no such {noun}; {hint}")
    return unique
