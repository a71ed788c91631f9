"""Which store `--metadata` names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidelog.metadata import MetadataStoreError, SqliteStore
from tidelog.metadata.opening import make_store
from tidelog.metadata.zookeeper import ZooKeeperStore


def test_sqlite_is_a_file_of_the_data_directory_or_the_one_given(tmp_path: Path) -> None:
    for text, path in (("sqlite", tmp_path / "metadata.sqlite"), (f"sqlite:{tmp_path}/other", tmp_path / "other")):
        store = make_store(text, tmp_path)
        assert isinstance(store, SqliteStore)
        assert store.path == path


def test_zookeeper_is_an_address() -> None:
    assert isinstance(make_store("zookeeper://a:1,b:2/x", "."), ZooKeeperStore)


@pytest.mark.parametrize("text", ["", "sqlite:", "postgres://x", "zookeeper", "zookeeper://x"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="zookeeper://"):
        make_store(text, ".")


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tidelog.metadata.zookeeper")
    monkeypatch.setitem(sys.modules, "kazoo", None)
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    with pytest.raises(MetadataStoreError, match="needs the package kazoo"):
        make_store("zookeeper://a:1", ".")
