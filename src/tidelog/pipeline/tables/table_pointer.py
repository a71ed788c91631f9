"""The pointer of a table that is a directory: a symbolic link from the declared name to the location of one version.

What always holds: the link is replaced with a rename, so a reader always finds the old version or the new one; a real
directory or file with the declared name is not ours and is never touched.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from tidelog.common.durable_files import replace_link
from tidelog.pipeline.errors import PipelineError

_VERSION = re.compile(r"__v(\d+)(?:/|$)")


def pointed_version(pointer: Path) -> int | None:
    """The version that readers see, or None if there is none yet."""
    try:
        target = os.readlink(pointer)
    except FileNotFoundError:
        return None
    except OSError:
        raise PipelineError(
            f"{pointer} already exists and is not a link to a version of this table; move it, or choose another path"
        ) from None
    found = _VERSION.search(target)
    if found is None or not target.startswith(f"{pointer.name}__v"):
        raise PipelineError(f"{pointer} points to {target}, which is not a version of this table; choose another path")
    return int(found.group(1))


def point_to(pointer: Path, version: int, inside: str = "") -> int | None:
    """Point the link to the location of a version, or to something inside it; returns the previous version."""
    before = pointed_version(pointer)
    place = f"{pointer.name}__v{version}"
    if not (pointer.parent / place).is_dir():
        raise PipelineError(f"there is no version {version} of {pointer}: {pointer.parent / place} does not exist")
    replace_link(pointer, os.path.join(place, inside) if inside else place)
    return before


def remove_place(pointer: Path, version: int) -> None:
    """Delete a version's rows, unless readers see them."""
    if pointed_version(pointer) == version:
        raise PipelineError(f"readers currently see version {version} of {pointer}; switch to another one first")
    shutil.rmtree(pointer.parent / f"{pointer.name}__v{version}", ignore_errors=True)
