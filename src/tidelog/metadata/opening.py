"""Which store a cluster's metadata is in: what `--metadata` may say, and the store that it names.

What always holds: nothing is opened or connected to here. ZooKeeper's client is imported only where it is asked for.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tidelog.metadata.sqlite import SqliteStore
from tidelog.metadata.store import MetadataStoreError, Store

SQLITE: Final = "sqlite"
ZOOKEEPER: Final = "zookeeper"
_FILE_NAME: Final = "metadata.sqlite"


def store_problem(text: str) -> str | None:
    """What is wrong with a text that should name a store; None if nothing is."""
    scheme, colon, rest = text.partition(":")
    if scheme == SQLITE and (rest or not colon):
        return None
    if scheme == ZOOKEEPER and rest.startswith("//"):
        return None
    return f"{text!r} names no metadata store; expected sqlite, sqlite:PATH or zookeeper://HOST:PORT,HOST:PORT/PATH"


def metadata_file(text: str, data_dir: str | os.PathLike[str]) -> Path | None:
    """The file that holds the metadata; None if they are not in a file."""
    scheme, _, rest = text.partition(":")
    return Path(rest or Path(data_dir) / _FILE_NAME) if scheme == SQLITE else None


def make_store(text: str, data_dir: str | os.PathLike[str]) -> Store:
    """The store of `sqlite` (a file in the data directory), `sqlite:PATH` or `zookeeper://HOST:PORT,.../PATH`.

    Raises ValueError for anything else, and MetadataStoreError where ZooKeeper's client is not installed.
    """
    scheme, colon, rest = text.partition(":")
    if scheme == SQLITE and (rest or not colon):
        return SqliteStore(metadata_file(text, data_dir) or "")
    if scheme == ZOOKEEPER and rest.startswith("//"):
        try:
            from tidelog.metadata.zookeeper import ZooKeeperStore, parse_address
        except ModuleNotFoundError as error:
            raise MetadataStoreError(
                "metadata in ZooKeeper needs the package kazoo: install it, or Tidelog with the extra 'zookeeper'"
            ) from error
        return ZooKeeperStore(parse_address(text))
    raise ValueError(store_problem(text))
