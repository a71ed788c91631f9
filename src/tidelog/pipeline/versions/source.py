"""Loads the code of a version, even if its file has moved on to the next version.

What always holds: the registry has the source that a version last ran with. If the file still has that source, the file
itself is loaded; otherwise a copy of the source in the version's own directory, with the file's directory on the path.
Modules that the file imports are not kept.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path

from tidelog.pipeline.declaration import Pipeline, TopicInput
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.loading import load, module_name_of
from tidelog.pipeline.versions.registry import Registry
from tidelog.pipeline.versions.registry_rows import Version


def source_file(registry: Registry, version: Version) -> Path:
    """The file that declares a version: the original, or a copy of what it contained."""
    file = Path(version.file)
    if file.is_file() and file.read_text(encoding="utf-8") == version.source:
        return file
    if not version.source:
        raise PipelineError(
            f"the file of version {version.version} of {version.pipeline} is unknown, because it was run from Python"
        )
    # A unique name, because two versions of one file may be loaded in one process.
    name = f"{module_name_of(file)}_v{version.version}.py"
    copy = registry.state_dir / version.pipeline / f"v{version.version}" / "source" / name
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(version.source, encoding="utf-8")
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    return copy


def load_version(registry: Registry, pipeline: str, number: int) -> tuple[Pipeline, Path]:
    """A version that has run before, and the file that it was loaded from."""
    version = registry.version(pipeline, number)
    if version is None:
        known = ", ".join(str(each.version) for each in registry.versions(pipeline)) or "none"
        raise PipelineError(f"{pipeline} has no version {number}; it has {known}")
    file = source_file(registry, version)
    loaded = load(file, pipeline)
    if loaded.version != number:
        raise PipelineError(f"{file} declares version {loaded.version} of {pipeline}, not {number}")
    return loaded, file


def from_the_start(pipeline: Pipeline) -> Pipeline:
    """The same pipeline, but reading its inputs from the start; numeric offsets in its file are kept."""
    inputs = {
        name: dataclasses.replace(declared, starting="earliest")
        if isinstance(declared, TopicInput) and not isinstance(declared.starting, Mapping)
        else declared
        for name, declared in pipeline.inputs.items()
    }
    return dataclasses.replace(pipeline, inputs=inputs)
