"""The user functions that a replay applies: given as `file.py:function`, and sent to executors by value.

What always holds: a file runs once, when the replay is prepared, and exceptions are reported with the line; a digest of
the files shows whether a resumed replay would still apply the same code. Workers also find modules next to the file,
but these are not part of the digest.
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
    file: Path | None = None  # executors look for imported modules next to it

    @property
    def may_refuse(self) -> bool:
        return self.transform is not None or self.map is not None

    @classmethod
    def load(cls, transform: str | None, map_: str | None) -> Functions:
        """Load functions given as `file.py:function`; raises DeclarationError."""
        digest = hashlib.sha256()
        of_frames, of_events = (None if text is None else _load(text, digest.update) for text in (transform, map_))
        named = map_ or transform
        if named is None:
            return cls(None, None, None)
        return cls(of_frames, of_events, digest.hexdigest(), Path(named.rpartition(":")[0]).resolve())


def _load(text: str, note: Callable[[bytes], None]) -> Callable[[Any], Any]:
    file, separator, name = text.rpartition(":")
    if not separator or not name.isidentifier():
        raise DeclarationError(f"{text!r} is not a function; write FILE:FUNCTION, such as fixes.py:repair")
    path = Path(file).resolve()
    if not path.is_file():
        raise DeclarationError(f"there is no file {file}")
    note(path.read_bytes())
    # A unique module name, so that workers don't look for it and get what it defines by value instead.
    spec = importlib.util.spec_from_file_location(f"_tidelog_replay_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise DeclarationError(f"{file} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    # Classes in the file look up their module while they are being defined.
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
    return found  # type: ignore[no-any-return]  # all we know is that it is callable
