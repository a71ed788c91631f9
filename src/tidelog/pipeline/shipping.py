"""What the executors of a cluster are sent with a pipeline: tidelog, what it imports there, and the user's modules.

What always holds: everything is one archive, which Spark unpacks in each executor's own directory and which comes first
where Python looks; nothing is installed on the cluster. Executors need the same minor version of Python on the same
platform, with pyarrow and pandas, which Spark's own Arrow functions need as well. On a local master nothing is sent.
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

# The directory of the archive below that of an executor, which is where its Python processes start.
UNPACKED = "tidelog-shipped"
# What of tidelog's dependencies a source or a sink imports on executors, beside pyarrow; names as pip has them.
_DEPENDENCIES = ("crc32c", "cramjam", "google-re2", "orjson")
# What the formats of pipelines import there, as far as it is installed here.
_FORMATS = {"fastavro": "fastavro", "protobuf": "google.protobuf"}  # and the modules that they bring
# A file beside the pipeline's that is larger than this is data and no module.
_MODULE_BYTES_MAX = 4 << 20


def shipping_settings(file: Path | None, home: Path) -> dict[str, str]:
    """Settings of Spark with which executors get what they need; the archive is made below `home`."""
    archive = home / "shipped.tar.gz"
    write_archive(archive, file)
    _let_the_driver_find(file)
    return {"spark.archives": f"{archive}#{UNPACKED}", "spark.executorEnv.PYTHONPATH": UNPACKED}


def _let_the_driver_find(file: Path | None) -> None:
    """Spark starts the executors' Python beside its driver, too; there it finds all this where it is already."""
    places = [_tidelog().parent, *(Path(str(_distribution(name).locate_file(""))) for name in _DEPENDENCIES)]
    beside = [file.parent] if file is not None else []
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = dict.fromkeys([*map(str, [*beside, *places]), *before])
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)


def write_archive(archive: Path, file: Path | None) -> None:
    """Written under another name and renamed, so that no run finds half of it."""
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
            # What pip puts elsewhere, as commands, is of no use there.
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
    """The user's file with the modules and packages of its directory."""
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
        raise PipelineError(f"{name} can't be sent to the executors: it is not installed here") from None
