"""Decisions as bytes, and the names in them."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.spark.sink_decision import (
    Decision,
    Winner,
    decode_decision,
    encode_decision,
    is_second_write,
    split_metadata,
)
from tidelog.spark.sink_identity import (
    TaskName,
    WorkerNames,
    WriteIdentity,
    new_name,
    parse_transactional_id,
)

METADATA_BYTES_MAX = 4096  # what brokers take by default

_names = st.binary(min_size=6, max_size=6).map(bytes.hex)
_winners = st.builds(
    Winner,
    partition=st.integers(0, 2**31 - 1),
    name=st.builds(TaskName, _names, _names, st.integers(0, 2**31)),
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
)


@given(
    st.builds(
        Decision,
        version=st.integers(-1, 2**62),
        topic=st.text(min_size=1),
        run=_names,
        write_id=st.one_of(st.just(""), _names),
        winners=st.lists(_winners, max_size=20).map(tuple),
        deposed=st.lists(_names, max_size=64).map(tuple),
    )
)
def test_a_decision_survives_its_bytes(decision: Decision) -> None:
    assert decode_decision(decision.version, decision.topic, encode_decision(decision)) == decision


def test_a_decision_that_is_cut_short_is_refused_at_every_byte() -> None:
    winner = Winner(3, TaskName(new_name(), new_name(), 300), 2**40, 7)
    data = encode_decision(Decision(1, "t", new_name(), winners=[winner], deposed=[new_name()]))
    for size in range(len(data)):
        with pytest.raises(ValueError, match="truncated"):
            decode_decision(1, "t", data[:size])


def test_a_later_format_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="newer tidelog"):
        decode_decision(1, "t", b"\xff" + encode_decision(Decision(1, "t", new_name()))[1:])


@pytest.mark.parametrize("tasks", [1, 200, 10_000])
def test_metadata_fits_what_brokers_take(tasks: int) -> None:
    run, worker = new_name(), new_name()
    winners = [Winner(number, TaskName(run, worker, number), 2**33 + number, 30_000) for number in range(tasks)]
    texts = split_metadata(encode_decision(Decision(5, "t", run, winners=winners)))
    assert max(len(text.encode()) for text in texts) <= METADATA_BYTES_MAX
    count, _, first = texts[0].partition(" ")
    assert int(count) == len(texts)
    data = b"".join(base64.b64decode(text) for text in (first, *texts[1:]))
    assert decode_decision(5, "t", data).winners == tuple(winners)


def test_two_hundred_tasks_fit_one_offset() -> None:
    run, worker = new_name(), new_name()
    winners = [Winner(number, TaskName(run, worker, number), 100_000 + number, 1_000) for number in range(200)]
    assert len(split_metadata(encode_decision(Decision(5, "t", run, winners=winners)))) == 1


def test_the_latest_deposed_runs_are_remembered() -> None:
    runs = [new_name() for _ in range(70)]
    decision = Decision(1, "t", new_name(), deposed=tuple(runs[:64]))
    assert decision.with_deposed(runs[64:]) == tuple(runs[6:])
    assert decision.with_deposed([runs[3]]) == tuple(runs[:64])


def test_a_transactional_id_tells_its_parts() -> None:
    identity = WriteIdentity("prefix-query-1", new_name(), 3)
    worker = new_name()
    made = identity.transactional_id(worker, 12)
    assert parse_transactional_id("prefix-query-1", made) == TaskName(identity.run, worker, 12)
    assert TaskName(identity.run, worker, 12).of("prefix-query-1") == made


@pytest.mark.parametrize("other", ["prefix-query", "prefix-query-11", "prefix-query-1x", "prefix.query-1"])
def test_ids_of_other_queries_are_not_taken_for_ours(other: str) -> None:
    made = WriteIdentity(other, new_name(), 3).transactional_id(new_name(), 0)
    assert parse_transactional_id("prefix-query-1", made) is None
    assert parse_transactional_id("prefix-query-1", "prefix-query-1") is None


def test_an_id_serves_again_for_a_later_version_and_never_for_the_same() -> None:
    names = WorkerNames()
    run = new_name()
    first = [names.claim(WriteIdentity("q", run, 1)) for _ in range(3)]
    assert len(set(first)) == 3
    second = [names.claim(WriteIdentity("q", run, 2)) for _ in range(2)]
    assert second == first[:2]
    replayed = names.claim(WriteIdentity("q", run, 2))
    assert replayed == first[2]
    assert names.claim(WriteIdentity("q", run, 2)) not in first


def test_another_run_of_the_query_gets_other_ids() -> None:
    names = WorkerNames()
    assert names.claim(WriteIdentity("q", "a" * 12, 1)) != names.claim(WriteIdentity("q", "b" * 12, 2))


def test_numbers_of_forgotten_runs_are_not_given_out_again() -> None:
    names = WorkerNames()
    first = WriteIdentity("q", new_name(), 1)
    made = [names.claim(first)]
    for _ in range(300):
        names.claim(WriteIdentity("q", new_name(), 1))
    made.append(names.claim(first))
    assert len(set(made)) == 2


def test_a_second_write_of_a_batch_is_told_from_a_replay() -> None:
    first = WriteIdentity("q", new_name(), 4, write_id=new_name(), is_implied=True)
    decision = Decision(4, "t", first.run, first.write_id)
    assert not is_second_write(first, decision)
    assert is_second_write(WriteIdentity("q", first.run, 4, new_name(), is_implied=True), decision)
    assert not is_second_write(WriteIdentity("q", new_name(), 4, new_name(), is_implied=True), decision)
    assert not is_second_write(WriteIdentity("q", first.run, 4, new_name()), decision)
