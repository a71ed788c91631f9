"""What has to be installed before Spark can run: packages, and Java."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tidelog.common.extras import install_command

SPARK_PACKAGES = ("pyspark", "pandas", "pyarrow")


def missing_pieces(packages: Sequence[str], extras: str) -> list[str]:
    """What is missing, and how to get it; `extras` are those of Tidelog that bring the packages."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    needs = []
    if missing:
        needs.append(f"{' and '.join(missing)} ({install_command(extras)})")
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        needs.append("Java 17 or later (on Debian: apt-get install openjdk-17-jre-headless)")
    return needs
