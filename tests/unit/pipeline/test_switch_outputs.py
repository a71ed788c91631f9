"""Which outputs can be switched, and when two values of a topic mean the same."""

from __future__ import annotations

import pytest

from tidelog.pipeline import Json, ParquetOutput, Pipeline, PipelineError, Raw, TopicInput, TopicOutput
from tidelog.pipeline.outputs import Output
from tidelog.pipeline.versions.source import from_the_start
from tidelog.pipeline.versions.switch_outputs import check_switchable, keyed_topics, meaning_of, tables

KEYED = TopicOutput("revenue", key=["minute"], mode="upsert")
APPENDED = TopicOutput("clicks")
TABLE = ParquetOutput("clicks-table")


def _pipeline(*outputs: Output, starting: object = "latest") -> Pipeline:
    return Pipeline(
        name="shop",
        version=2,
        inputs={"orders": TopicInput("orders", format=Json("amount long"), starting=starting)},  # type: ignore[arg-type]
        transform=lambda orders: orders,
        outputs=outputs,
    )


def test_topics_without_keys_can_not_be_switched_and_the_ways_out_are_told() -> None:
    check_switchable(_pipeline(KEYED, TABLE))
    with pytest.raises(PipelineError, match=r"clicks of shop is an append-only topic.*mode='upsert'.*another"):
        check_switchable(_pipeline(KEYED, APPENDED))


def test_outputs_by_kind() -> None:
    pipeline = _pipeline(KEYED, APPENDED, TABLE)
    assert keyed_topics(pipeline) == [KEYED]
    assert tables(pipeline) == [TABLE]


def test_json_is_compared_by_what_it_means_and_all_else_by_bytes() -> None:
    same = meaning_of(KEYED)
    assert same is not None
    assert same(b'{"a": 1, "b": [2.0]}', b'{"b":[2],"a":1}')
    assert not same(b'{"a": 1}', b'{"a": 2}')
    assert not same(b"not JSON", b'{"a": 1}')
    assert meaning_of(TopicOutput("raw", key=["id"], mode="upsert", format=Raw())) is None


@pytest.mark.parametrize("starting", ["latest", "earliest", "group:readers"])
def test_a_replay_begins_at_the_first_offset_whatever_the_file_says(starting: str) -> None:
    replayed = from_the_start(_pipeline(KEYED, starting=starting))
    assert replayed.topic_inputs["orders"].starting == "earliest"


def test_offsets_by_number_are_meant() -> None:
    replayed = from_the_start(_pipeline(KEYED, starting={"orders": {0: 17}}))
    assert replayed.topic_inputs["orders"].starting == {"orders": {0: 17}}
