"""What can be declared, and that whatever can't be meant is refused with the fix."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tidelog.pipeline import (
    Avro,
    BatchMap,
    DeclarationError,
    DeltaOutput,
    Json,
    ParquetOutput,
    Pipeline,
    PostgresOutput,
    Protobuf,
    Raw,
    SqliteOutput,
    TableInput,
    Text,
    TopicInput,
    TopicOutput,
)
from tidelog.pipeline.declaration import interval_seconds

ORDERS = TopicInput("orders", format=Json("id long"))
# As people write them who have no type checker.
AnyInput: Any = TopicInput
AnyOutput: Any = TopicOutput


def transform(orders: Any) -> Any:
    return orders


def declared(**changes: Any) -> Pipeline:
    values: dict[str, Any] = {
        "name": "shop",
        "version": 1,
        "inputs": {"orders": ORDERS},
        "transform": transform,
        "outputs": [TopicOutput("out")],
    }
    return Pipeline(**{**values, **changes})


def test_defaults() -> None:
    pipeline = declared()
    assert pipeline.dead_letters == "shop.dead-letters"
    assert pipeline.group == "tidelog-pipeline-shop"
    assert pipeline.topic_inputs == {"orders": ORDERS}
    assert pipeline.table_inputs == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "two words"}, "letters, digits"),
        ({"version": 0}, "an integer of at least 1"),
        ({"version": "1"}, "an integer of at least 1"),
        ({"inputs": {}}, "inputs must be a dict"),
        ({"inputs": [ORDERS]}, "inputs must be a dict"),
        ({"inputs": {"orders": "orders"}}, "TopicInput or TableInput, not str"),
        ({"inputs": {"my orders": ORDERS}}, "is a parameter of transform"),
        ({"inputs": {"clicks": ORDERS}}, "no parameter for input 'clicks'"),
        ({"inputs": {"orders": TableInput("t", format=Json("a long"))}}, "at least one input"),
        ({"inputs": {"orders": TopicInput(format=Json("a long"))}}, "give TopicInput either a topic"),
        ({"inputs": {"orders": TopicInput("a b", format=Json("a long"))}}, "may only hold ASCII"),
        ({"inputs": {"orders": TopicInput("a")}}, "format must be Json"),
        ({"inputs": {"orders": AnyInput("a", format=Json)}}, "add parentheses"),
        ({"inputs": {"orders": TopicInput("a", format=Json())}}, "needs a schema"),
        ({"inputs": {"orders": TopicInput("a", format=Avro())}}, "schema=... or registry="),
        ({"inputs": {"orders": TopicInput("a", format=Protobuf())}}, "generated class"),
        ({"inputs": {"orders": TopicInput("a", format=Protobuf("a.B"))}}, "descriptor_set_out"),
        ({"inputs": {"orders": AnyInput("a", format=Raw(), watermark="at")}}, "(column, delay)"),
        ({"inputs": {"orders": TopicInput("a", format=Raw(), meta=["offset"])}}, "_offset"),
        ({"inputs": {"orders": AnyInput("a", format=Raw(), map=3)}}, "BatchMap"),
        ({"inputs": {"orders": TopicInput("a", format=Raw(), map_schema="a long")}}, "there is no map"),
        ({"inputs": {"orders": AnyInput("a", format=Raw(), tombstones="drop")}}, "'skip' or 'keep'"),
        ({"transform": transform(None)}, "without parentheses"),
        ({"transform": lambda orders, clicks: orders}, "no input has that name"),
        ({"outputs": []}, "outputs must be a list"),
        ({"outputs": ["out"]}, "not str"),
        ({"outputs": [TopicOutput("orders")]}, "an endless loop"),
        ({"outputs": [TopicOutput("shop.dead-letters")]}, "an endless loop"),
        ({"outputs": [TopicOutput("out"), TopicOutput("out")]}, "remove one"),
        ({"outputs": [TopicOutput("out", mode="upsert")]}, "key=['order_id']"),
        ({"outputs": [AnyOutput("out", mode="merge")]}, "'append' or 'upsert'"),
        ({"outputs": [TopicOutput("out", deleted="gone")]}, "needs mode='upsert'"),
        ({"outputs": [TopicOutput("out", format=Avro())]}, "for writing"),
        ({"outputs": [ParquetOutput("s3://bucket/x")]}, "not a URL"),
        ({"outputs": [ParquetOutput("x", compact_files=1)]}, "at least 2"),
        ({"outputs": [ParquetOutput("x")], "output_mode": "update"}, "mode='upsert' with a key"),
        ({"outputs": [SqliteOutput("x.db", "a b", key="id")]}, "plain name"),
        ({"outputs": [PostgresOutput("postgresql://", "t")]}, "needs key columns"),
        ({"output_mode": "all"}, "append, update, complete"),
        ({"dead_letters": "orders"}, "an endless loop"),
        ({"trigger": "often"}, "'10 seconds'"),
        ({"trigger": "1"}, "'10 seconds'"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        declared(**changes)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_avro_schema_that_is_no_json() -> None:
    with pytest.raises(DeclarationError, match=r"Path\('file.avsc'\)"):
        Avro(schema="orders.avsc")


def test_avro_schema_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.avsc").write_text('{"type": "record", "name": "A", "fields": []}')
    assert Avro(schema=tmp_path / "a.avsc").schema.startswith("{")


def test_what_a_transform_may_ask_for() -> None:
    assert "spark" in declared(transform=lambda orders, spark: orders).parameters
    assert "orders" in declared(transform=lambda **inputs: inputs["orders"]).parameters
    declared(transform=lambda orders, scale=2: orders)


def test_places_of_versions() -> None:
    topic = TopicOutput("out", key="id", mode="upsert")
    assert topic.shadow(2).topic == "out.v2"
    assert topic.shadow(2).live(2).topic == "out"
    assert topic.shadow(2).name == "out"
    table = ParquetOutput("/data/out")
    assert table.live(3).place == Path("/data/out__v3")
    assert table.shadow(3) == table.live(3)
    with pytest.raises(ValueError, match="get one with live"):
        _ = table.place
    assert DeltaOutput("/data/out").live(1).pointer == Path("/data/out")
    assert SqliteOutput("x.db", "out", key="id").live(4).place == "out__v4"


def test_one_column_of_a_key_may_be_a_text() -> None:
    output = TopicOutput("out", key="id", mode="upsert")
    declared(outputs=[output])
    assert list(output.key) == ["id"]


def test_declarations_are_values() -> None:
    assert TopicInput("a", format=Text()) == TopicInput("a", format=Text())
    changed = dataclasses.replace(declared(), version=2)
    assert changed.version == 2
    assert BatchMap(len) == BatchMap(len)


@pytest.mark.parametrize(
    ("text", "seconds"), [("1 second", 1), ("500 milliseconds", 0.5), ("1 minute 30 seconds", 90), ("2 hours", 7200)]
)
def test_intervals(text: str, seconds: float) -> None:
    assert interval_seconds(text, "trigger") == seconds
