from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tidelog.torture.errors import TortureError
from tidelog.torture.settings import SEEDS, TortureSettings

WORKLOADS = ("queue", "table", "probe")
FAULTS = ("kill", "kill-store", "cut-halves")


def checked(**given: Any) -> TortureSettings:
    return TortureSettings.checked(directory=Path("somewhere"), known_workloads=WORKLOADS, known_faults=FAULTS, **given)


def test_without_anything_it_is_a_small_cluster_for_five_minutes() -> None:
    settings = checked()
    assert (settings.cluster, settings.brokers, settings.seconds) == ("tidelog-sqlite", 3, 300)
    assert 0 <= settings.seed < SEEDS


def test_counts_replace_the_time_unless_both_are_given() -> None:
    assert checked(fault_count=10).seconds is None
    assert checked(send_count=10).seconds is None
    assert checked(send_count=10, seconds=7).seconds == 7


def test_a_cluster_that_runs_already_is_foreign() -> None:
    assert checked(bootstrap="b:1").cluster == "foreign"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cluster": "kafak"}, "--cluster kafak: no such cluster; did you mean kafka?"),
        ({"workloads": ["queu"]}, "--workload queu: no such workload; did you mean queue?"),
        ({"workloads": ["zzz"]}, "there are queue, table, probe"),
        ({"faults": ["kil"]}, "did you mean kill?"),
        ({"faults": ["none", "kill"]}, "--fault none stands for a run without faults"),
        ({"bootstrap": "b:1", "cluster": "kafka"}, "leave out --cluster and --brokers"),
        ({"bootstrap": "b:1", "brokers": 5}, "leave out --cluster and --brokers"),
        ({"brokers": 0}, "1 to 9 brokers"),
        ({"brokers": 10}, "1 to 9 brokers"),
        ({"seconds": 0.0}, "--time must be more than nothing"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TortureError, match=message.replace("?", r"\?")):
        checked(**given)


def test_names_count_once_and_keep_their_order() -> None:
    settings = checked(workloads=["table", "queue", "table"], faults=["none"])
    assert settings.workloads == ("table", "queue")
    assert settings.faults == ("none",)


def test_the_command_that_repeats_a_run_says_all_that_matters() -> None:
    settings = checked(
        cluster="kafka", brokers=5, workloads=["queue"], faults=["kill"], fault_count=1000, send_count=10_000_000,
        rate=2500.5, pause_s=0.5, seed=7, unsafe=True, keep=True,
    )  # fmt: skip
    assert settings.command == (
        "tidelog torture --cluster kafka --brokers 5 --workload queue --fault kill --faults 1000 --sends 10000000 "
        "--rate 2500.5 --pause 0.5 --unsafe --seed 7"
    )
    assert checked(bootstrap="a:1,b:2", seconds=90, rate=0.0, seed=3).command == (
        "tidelog torture --bootstrap a:1,b:2 --time 90s --rate 0 --seed 3"
    )


def test_the_command_can_be_pasted_into_a_shell() -> None:
    settings = checked(bootstrap="a b:1;rm", seed=3)
    assert shlex.split(settings.command)[3] == "a b:1;rm"
