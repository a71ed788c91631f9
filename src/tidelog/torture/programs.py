"""Programs of the system that make networks and disks; they are often where only root's PATH leads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping


def find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def missing(packages: Mapping[str, str]) -> str | None:
    """The first of these programs that is not installed, with the package that brings it; None if all are there."""
    for program, package in packages.items():
        if find(program) is None:
            return f"{program} was not found: install {package}"
    return None
