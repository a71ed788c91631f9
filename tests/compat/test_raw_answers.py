"""The same raw requests to Apache Kafka and to Tidelog: what their answers differ in is listed, and nothing else is.

Every API that both serve is asked in its lowest and highest common version, with good values and with odd ones in each
field. An entry of the list that no longer differs fails, too. It takes about two minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from raw_answers.asking import ABSENT, Place, differences
from raw_answers.chosen_requests import chosen_cases
from raw_answers.known_differences import KAFKA_FAILS, KNOWN, Known, explain
from raw_answers.odd_requests import TEMPLATES, Case, odd_cases
from tidelog.bench.brokers import BrokerProcess, KafkaBroker, TidelogBroker
from tidelog.protocol import all_apis, request_class
from tidelog.server.settings_table import TABLE

PAGE = Path(__file__).parents[2] / "docs" / "kafka-differences.md"

# What Kafka's shipped server.properties sets, so that both have the same settings from the same source.
SHIPPED = {
    "node.id": "1",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Place]]:
    """Kafka and Tidelog, each with the topics and groups that the requests are about."""
    directory = tmp_path_factory.mktemp("raw-answers")
    common = {"group.initial.rebalance.delay.ms": "0"}
    brokers: list[BrokerProcess] = [
        KafkaBroker(directory / "kafka", settings=common),
        TidelogBroker(
            directory / "tidelog", settings={**SHIPPED, **common, "log.dirs": str(directory / "tidelog" / "logs")}
        ),
    ]
    opened: list[Place] = []
    try:
        for broker in brokers:
            broker.start()
            place = Place(broker.port)
            opened.append(place)
            place.set_up()
        yield opened[0], opened[1]
    finally:
        for place in opened:
            place.close()
        for broker in brokers:
            broker.stop()


def cases(kafka: Place, tidelog: Place) -> Iterator[Case]:
    apis = {api.name: api for api in all_apis()}
    for name in TEMPLATES:
        ranges = (kafka.versions[name], tidelog.versions[name], apis[name].versions)
        low, high = max(first for first, _ in ranges), min(last for _, last in ranges)
        for version in sorted({low, high}):
            yield from odd_cases(name, request_class(apis[name]), version)
    yield from chosen_cases(TABLE, kafka.broker_settings() & tidelog.broker_settings())


@pytest.mark.compat
@pytest.mark.timeout(900)
def test_answers_are_kafkas_but_for_what_is_listed(places: tuple[Place, Place]) -> None:
    kafka, tidelog = places
    assert kafka.versions.keys() >= tidelog.versions.keys()
    used: set[Known | str] = set()
    unknown: list[str] = []
    asked = equal = 0
    for case in cases(kafka, tidelog):
        found = differences(case, kafka, tidelog)
        if case.api == "DescribeConfigs":
            found = _without_one_sided_settings(found)
        asked += 1
        equal += not found
        covering, rest = explain(case.name, found)
        used |= covering
        unknown += rest
    print(f"{asked} requests, {equal} equal answers, {asked - equal} with listed differences")
    assert not unknown, "\n".join(unknown)
    stale = [known for known in KNOWN if known not in used]
    assert not stale, f"these are equal now: {stale}"


def _without_one_sided_settings(found: dict[str, tuple[object, object]]) -> dict[str, tuple[object, object]]:
    """All but settings of a broker that only one of the two has: the page says that there are many, and why."""
    one_sided = {
        match[1]
        for path, values in found.items()
        if ABSENT in values and (match := re.fullmatch(r"results\[1 4\]\.configs\[([a-z0-9.]+)\]\.name", path))
    }
    return {
        path: values
        for path, values in found.items()
        if not (
            (match := re.match(r"results\[1 4\]\.configs(?:#|\[([a-z0-9.]+)\])", path))
            and (not match[1] or match[1] in one_sided)
        )
    }


@pytest.mark.parametrize("row", sorted({KAFKA_FAILS, *(known.row for known in KNOWN)}))
def test_every_listed_difference_has_its_row(row: str) -> None:
    first_cells = [
        line.split("|")[1].strip() for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"
    ]
    assert first_cells.count(row) == 1
