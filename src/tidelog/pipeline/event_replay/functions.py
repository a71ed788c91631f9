"""The functions of a user that a replay applies: found by `file.py:function`, sent to executors by value.

What always holds: a file runs once, when the replay is prepared, and what it raises is told with its line; the digest
of the files tells whether a replay that goes on would apply what it began with. Modules beside a file are found by the
workers, too, and are not part of the digest.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidelog.pipeline.errors import DeclarationError
from tidelog.pipeline.loading import describe_failure


@dataclass(frozen=True, slots=True)
class Functions:
    transform: Callable[[Any], Any] | None
    map: Callable[[Any], Any] | None
    digest: str | None
    file: Path | None = None  # beside which executors find what it imports

    @property
    def may_refuse(self) -> bool:
        return self.transform is not None or self.map is not None

    @classmethod
    def load(cls, transform: str | None, map_: str | None) -> Functions:
        """Load what `file.py:function` names; raises DeclarationError."""
        digest = hashlib.sha256()
        of_frames, of_events = (None if text is None else _load(text, digest.update) for text in (transform, map_))
        named = map_ or transform
        if named is None:
            return cls(None, None, None)
        return cls(of_frames, of_events, digest.hexdigest(), Path(named.rpartition(":")[0]).resolve())


def _load(text: str, note: Callable[[bytes], None]) -> Callable[[Any], Any]:
    file, separator, name = text.rpartition(":")
    if not separator or not name.isidentifier():
        raise DeclarationError(f"{text!r} names no function; write the file and the function, as fixes.py:repair")
    path = Path(file).resolve()
    if not path.is_file():
        raise DeclarationError(f"there is no file {file}")
    note(path.read_bytes())
    # Under a name that nobody else has: workers don't look for it, and get what it defines by value instead.
    spec = importlib.util.spec_from_file_location(f"_tidelog_replay_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise DeclarationError(f"{file} is no Python file; its name is to end in .py")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    # Classes of the file look their module up while they are made.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise DeclarationError(describe_failure(error, path)) from error
    found = getattr(module, name, None)
    if not callable(found):
        raise DeclarationError(f"{file} has no function {name}")
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # pyspark left it untyped
    return found  # type: ignore[no-any-return]  # it is callable, which is all that is known
