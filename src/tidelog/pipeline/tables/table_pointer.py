"""The pointer of a table that is a directory: a symbolic link from the declared name to the place of one version.

What always holds: the link is replaced by a rename, so a reader finds the old version or the new one, never none; a
real directory or file with the declared name is somebody else's and is not touched.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from pathlib import Path

from tidelog.pipeline.errors import PipelineError

_VERSION = re.compile(r"__v(\d+)(?:/|$)")


def pointed_version(pointer: Path) -> int | None:
    """The version that readers see; None before any."""
    try:
        target = os.readlink(pointer)
    except FileNotFoundError:
        return None
    except OSError:
        raise PipelineError(
            f"{pointer} is there already and is no link to a version of this table; move it, or choose another path"
        ) from None
    found = _VERSION.search(target)
    if found is None or not target.startswith(f"{pointer.name}__v"):
        raise PipelineError(f"{pointer} points to {target}, which is no version of this table; choose another path")
    return int(found.group(1))


def point_to(pointer: Path, version: int, inside: str = "") -> int | None:
    """Let the link point to a version's place, or to something in it; gives the version that it pointed to."""
    before = pointed_version(pointer)
    place = f"{pointer.name}__v{version}"
    if not (pointer.parent / place).is_dir():
        raise PipelineError(f"there is no version {version} of {pointer}: {pointer.parent / place} does not exist")
    replace_link(pointer, os.path.join(place, inside) if inside else place)
    return before


def replace_link(link: Path, target: str) -> None:
    """A symbolic link with this target, in one step, whatever it pointed to."""
    temporary = link.with_name(f".{link.name}.{secrets.token_hex(6)}")
    os.symlink(target, temporary)
    os.replace(temporary, link)
    sync_directory(link.parent)


def sync_directory(directory: Path) -> None:
    """Names in a directory survive a power cut only after this."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_place(pointer: Path, version: int) -> None:
    """Delete a version's rows, unless readers see them."""
    if pointed_version(pointer) == version:
        raise PipelineError(f"version {version} of {pointer} is the one that readers see; switch to another first")
    shutil.rmtree(pointer.parent / f"{pointer.name}__v{version}", ignore_errors=True)
