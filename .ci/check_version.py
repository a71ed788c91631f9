"""Check before a release that a version is the same everywhere: pyproject.toml, the package, and CHANGELOG.md.

`python .ci/check_version.py 0.1.0` exits with 1 and says what differs. The changelog must have a section for the
version with its date: `## 0.1.0 - 2026-01-31`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def problems(version: str, root: Path = ROOT) -> list[str]:
    found = []
    declared = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if declared != version:
        found.append(f"pyproject.toml has version {declared}")
    package = (root / "src" / "tidelog" / "__init__.py").read_text(encoding="utf-8")
    in_package = re.search(r'^__version__ = "(.+)"$', package, re.MULTILINE)
    if in_package is not None and in_package[1] != version:
        found.append(f"tidelog.__version__ is {in_package[1]}")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md has no section '## {version} - YYYY-MM-DD'")
    return found


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: check_version.py VERSION", file=sys.stderr)
        return 2
    found = problems(sys.argv[1])
    for problem in found:
        print(f"{sys.argv[1]} can't be released: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
