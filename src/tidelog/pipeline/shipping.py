"""Ships what a pipeline needs to the executors of a cluster: tidelog, its dependencies, and the user's modules.

What always holds: everything is in one archive, which Spark unpacks in each executor's directory and which comes first
on Python's path; nothing is installed on the cluster. Executors need the same minor version of Python on the same
platform, with pyarrow and pandas, which Spark's own Arrow functions also need. With a local master, nothing is sent.
"""

from __future__ import annotations

import importlib.util
import os
import tarfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import tidelog
from tidelog.pipeline.errors import PipelineError

# Where the archive is unpacked, relative to the executor's directory, in which its Python processes start.
UNPACKED = "tidelog-shipped"
# The dependencies that the source and the sink import on executors, besides pyarrow; these are pip's names.
_DEPENDENCIES = ("crc32c", "cramjam", "google-re2", "orjson")
# What pipeline formats import there, if it is installed here: pip's name, and the module.
_FORMATS = {"fastavro": "fastavro", "protobuf": "google.protobuf"}
# A larger file next to the pipeline's is data, not a module.
_MODULE_BYTES_MAX = 4 << 20


def shipping_settings(file: Path | None, home: Path) -> dict[str, str]:
    """Spark settings that give executors what they need; the archive is created in `home`."""
    archive = home / "shipped.tar.gz"
    write_archive(archive, file)
    _let_the_driver_find(file)
    return {"spark.archives": f"{archive}#{UNPACKED}", "spark.executorEnv.PYTHONPATH": UNPACKED}


def _let_the_driver_find(file: Path | None) -> None:
    """Spark also starts the executors' Python next to its driver; there it uses what is already installed."""
    places = [_tidelog().parent, *(Path(str(_distribution(name).locate_file(""))) for name in _DEPENDENCIES)]
    beside = [file.parent] if file is not None else []
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = dict.fromkeys([*map(str, [*beside, *places]), *before])
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)


def write_archive(archive: Path, file: Path | None) -> None:
    """Write the archive under a temporary name and rename it, so that no run sees half of it."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_name(f"{archive.name}.{os.getpid()}")
    with tarfile.open(partial, "w:gz", compresslevel=1) as tar:
        for name, path in _contents(file):
            tar.add(path, name, recursive=False)
    os.replace(partial, archive)


def _contents(file: Path | None) -> Iterator[tuple[str, Path]]:
    yield from _files_of(_tidelog())
    formats = [name for name, module in _FORMATS.items() if _is_there(module)]
    for name in (*_DEPENDENCIES, *formats):
        found = _distribution(name)
        for part in found.files or ():
            # Files that pip installs elsewhere, such as commands, are not needed there.
            if ".." not in part.parts and "__pycache__" not in part.parts:
                yield str(part), Path(str(found.locate_file(part)))
    if file is not None:
        yield from _beside(file)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it is missing
        return False


def _beside(file: Path) -> Iterator[tuple[str, Path]]:
    """The user's file, with the modules and packages in its directory."""
    for path in sorted(file.parent.iterdir()):
        if path == _tidelog() or path.name.startswith("."):
            continue
        if path.is_dir() and (path / "__init__.py").exists():
            yield from _files_of(path)
        elif path.suffix == ".py" and path.stat().st_size <= _MODULE_BYTES_MAX:
            yield path.name, path


def _files_of(package: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield str(path.relative_to(package.parent)), path


def _tidelog() -> Path:
    return Path(tidelog.__file__).parent


def _distribution(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise PipelineError(f"can't send {name} to the executors, because it is not installed here") from None
