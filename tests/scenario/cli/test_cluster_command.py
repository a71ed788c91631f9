"""`tidelog cluster` against one broker: what it shows, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.scenario.cli.conftest import Command


def test_status_shows_brokers_and_counts(tidelog: Command, topic: str) -> None:
    document = tidelog("cluster", "status", "--json").ok().json()
    (broker,) = document["brokers"]
    assert (broker["broker"], broker["controller"]) == (1, True)
    assert broker["leads"] == broker["preferred"] == broker["replicas"] == document["partitions"] >= 3
    assert document["offline"] == document["under_replicated"] == document["under_min_isr"] == []
    assert document["missing_brokers"] == document["reassigning"] == []
    text = tidelog("cluster", "status").ok().text
    assert "BROKER  ADDRESS" in text
    assert "all replicas in sync" in text


def test_no_election_is_needed_where_preferred_replicas_lead(tidelog: Command, topic: str) -> None:
    assert tidelog("cluster", "elect-leaders", "--topic", topic).ok().text == "no election was needed\n"
    assert tidelog("cluster", "elect-leaders", "--json").ok().json() == {"elected": [], "failed": {}}
    assert "needs --topic" in tidelog("cluster", "elect-leaders", "--partition", "0").refused(2)
    assert "add --yes to confirm" in tidelog("cluster", "elect-leaders", "--unclean").refused(2)


def test_what_can_t_move_is_refused_with_the_way_out(tidelog: Command, topic: str, tmp_path: Path) -> None:
    assert "0 brokers would be left; add a broker" in tidelog("cluster", "reassign", "--drain", "1").refused()
    assert "choose one of" in tidelog("cluster", "reassign").refused(2)
    assert "choose one of" in tidelog("cluster", "reassign", "--balance", "--drain", "1").refused(2)
    assert "tidelog cluster reassign --drain 1" in tidelog("cluster", "unregister", "1").refused()
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    assert "is not a plan such as" in tidelog("cluster", "reassign", "--plan", str(plan)).refused()
    rows = [{"topic": topic, "partition": 99, "replicas": [1]}]
    plan.write_text(json.dumps({"version": 1, "partitions": rows}))
    assert (
        f"names partition {topic}-99, which does not exist"
        in tidelog("cluster", "reassign", "--plan", str(plan)).refused()
    )


def test_nothing_moves_where_nothing_has_to(tidelog: Command, topic: str, tmp_path: Path) -> None:
    assert tidelog("cluster", "reassign", "--balance").ok().text == "nothing has to move\n"
    assert tidelog("cluster", "reassign", "--status").ok().text == "nothing is being moved\n"
    assert tidelog("cluster", "reassign", "--cancel", "--json").ok().json() == {"cancelled": []}
    plan = tmp_path / "plan.json"
    tidelog("cluster", "reassign", "--balance", "--save", str(plan)).ok()
    assert json.loads(plan.read_text()) == {"version": 1, "partitions": []}
