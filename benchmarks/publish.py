"""Put a measured table into docs/benchmarks.md: `python benchmarks/publish.py NAME FILE`.

NAME is the word behind `tidelog bench`, FILE what its `--markdown` wrote. The page has the table between two comments
that name it, and the text around it stays as it is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def with_table(page: str, name: str, table: str) -> str:
    """The page with that table in its place."""
    marked = re.compile(rf"(<!-- bench {re.escape(name)} -->\n).*?(<!-- end -->\n)", re.DOTALL)
    if len(marked.findall(page)) != 1:
        raise SystemExit(f"the page has no place for the table of '{name}'")
    if not table.startswith("| what |"):
        raise SystemExit("that is not a table of `tidelog bench`")
    return marked.sub(lambda match: f"{match[1]}\n{table.strip()}\n\n{match[2]}", page)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python benchmarks/publish.py NAME FILE")
    PAGE.write_text(with_table(PAGE.read_text(), sys.argv[1], Path(sys.argv[2]).read_text()))
