"""Jars of peers, downloaded by Maven once and kept in the user's cache.

What always holds: a directory in the cache is whole, because it is filled under another name and renamed. Only
benchmarks and compatibility tests use this; the product itself needs no jar.
"""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

from tidelog.bench.errors import PeerUnavailableError
from tidelog.common.user_cache import cache_directory

_POM = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidelog.bench</groupId><artifactId>peer</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY = (
    "    <dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>{exclusions}</dependency>"
)
_NOTHING_ELSE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def jars(name: str, artifacts: Sequence[str], *, with_dependencies: bool = True) -> Path:
    """The directory with these artifacts (`group:artifact:version`), and what they depend on unless told otherwise."""
    cache = cache_directory()
    place = cache / name
    if place.is_dir():
        return place
    for program, package in (("mvn", "maven"), ("java", "a Java 17 runtime")):
        if shutil.which(program) is None:
            raise PeerUnavailableError(f"{program} was not found: install {package} to measure against {name}")
    # Filled under another name and renamed, so that an interrupted download is not taken for a whole one.
    partial = cache / f"{name}.{uuid.uuid4().hex}"
    partial.mkdir(parents=True)
    try:
        (partial / "pom.xml").write_text(_pom(artifacts, with_dependencies))
        maven = ["mvn", "-q", "-B", "-f", str(partial / "pom.xml"), "dependency:copy-dependencies"]
        done = subprocess.run([*maven, f"-DoutputDirectory={partial}"], capture_output=True, text=True)
        if done.returncode != 0:
            raise PeerUnavailableError(f"Maven could not download {name}:\n{done.stdout}{done.stderr}")
        if not place.exists():
            partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return place


def _pom(artifacts: Sequence[str], with_dependencies: bool) -> str:
    exclusions = "" if with_dependencies else _NOTHING_ELSE
    lines = [_DEPENDENCY.format(*artifact.split(":"), exclusions=exclusions) for artifact in artifacts]
    return _POM.format(dependencies="\n".join(lines))
