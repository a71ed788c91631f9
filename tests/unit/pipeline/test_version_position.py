"""Where a checkpoint stands, by the files that Spark writes."""

from __future__ import annotations

import json
from pathlib import Path

from tidelog.pipeline.versions.position import checkpoint_dir, position_of
from tidelog.pipeline.versions.switching import Position


def _plan(query: Path, batch: int, *sources: object) -> None:
    lines = [json.dumps(source) if source is not None else "-" for source in sources]
    _write(query / "offsets" / str(batch), "\n".join(["v1", '{"batchWatermarkMs":0,"conf":{}}', *lines]))


def _commit(query: Path, batch: int) -> None:
    _write(query / "commits" / str(batch), 'v1\n{"nextBatchWatermarkMs":0}')


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_checkpoint_that_is_not_there_stands_nowhere(tmp_path: Path) -> None:
    assert position_of(tmp_path / "nothing") == Position({}, {}, is_clean=True)


def test_a_finished_batch_and_one_that_is_half_done(tmp_path: Path) -> None:
    query = checkpoint_dir(tmp_path, "revenue", 2) / "main"
    assert query == tmp_path / "revenue" / "v2" / "checkpoint" / "main"
    for batch in range(11):
        _plan(query, batch, {"orders": {"0": batch, "1": 2 * batch}})
        _commit(query, batch)
    finished = {"orders": {0: 10, 1: 20}}
    assert position_of(query.parent) == Position(finished, finished, is_clean=True)
    _plan(query, 11, {"orders": {"0": 15, "1": 20}})
    assert position_of(query.parent) == Position(finished, {"orders": {0: 15, 1: 20}}, is_clean=False)


def test_the_first_batch_when_it_is_half_done(tmp_path: Path) -> None:
    _plan(tmp_path / "main", 0, {"orders": {"0": 4}})
    assert position_of(tmp_path) == Position({}, {"orders": {0: 4}}, is_clean=False)


def test_a_batch_without_data_counts_as_one(tmp_path: Path) -> None:
    _plan(tmp_path / "main", 0, {"orders": {"0": 4}})
    _commit(tmp_path / "main", 0)
    _plan(tmp_path / "main", 1, {"orders": {"0": 4}})
    assert not position_of(tmp_path).is_clean


def test_several_inputs_of_which_one_has_not_begun_and_two_share_a_topic(tmp_path: Path) -> None:
    _plan(tmp_path / "main", 0, {"orders": {"0": 4}}, None, {"orders": {"0": 3}, "clicks": {"2": 7}})
    _commit(tmp_path / "main", 0)
    position = position_of(tmp_path)
    assert position.done == {"orders": {0: 3}, "clicks": {2: 7}}
    assert position.planned == {"orders": {0: 4}, "clicks": {2: 7}}
    assert position.is_clean


def test_half_written_files_do_not_count(tmp_path: Path) -> None:
    _plan(tmp_path / "main", 0, {"orders": {"0": 4}})
    _commit(tmp_path / "main", 0)
    _write(tmp_path / "main" / "offsets" / ".1.5c1d.tmp", "v1")
    _write(tmp_path / "main" / "offsets" / ".0.crc", "crc")
    assert position_of(tmp_path).is_clean
