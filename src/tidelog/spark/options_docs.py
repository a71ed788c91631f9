"""The page of the documentation about the options of the Spark format, made from their table.

`python -m tidelog.spark.options_docs` prints it; a test compares it with `docs/spark-options.md`. What always holds:
every row stands on the page, with its help, its kind, its default and where it can be used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tidelog.spark.options import OPTIONS, READS, WRITES, Option, Use

_INTRODUCTION = """\
# Options of the Spark format

This page is made from the format's own table by `python -m tidelog.spark.options_docs > docs/spark-options.md`.

They are given with `option("name", value)` to `spark.read`, `spark.readStream`, `df.write` and `df.writeStream` with
`format("tidelog")`; capital letters do not matter. Names and meanings are those of Spark's own `kafka` format where it
has the option. An unknown name or a value that can't be used fails when the DataFrame or the query is made, and the
error names what would be right.

Every other option begins with `kafka.` and is a [setting of the client](client-settings.md), of the consumer for
reading and of the producer for writing: `kafka.bootstrap.servers` is always needed. Some are decided by the source or
the sink and refused with the reason, as `kafka.auto.offset.reset`. For reading `kafka.isolation.level` is
`read_committed` unless it is set, and `kafka.max.partition.fetch.bytes` is 8 MiB.
"""
_SECTIONS = (("Reading", READS), ("Writing", WRITES))


def options_markdown() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    for title, uses in _SECTIONS:
        yield f"## {title}\n"
        rows = [row for row in OPTIONS.values() if row.uses & uses]
        for row in sorted(rows, key=lambda row: row.name.lower()):
            yield f"### {row.name}\n"
            yield f"{row.help}\n"
            yield f"{'; '.join(_facts(row, uses))}.\n"


def _facts(row: Option, uses: frozenset[Use]) -> Iterator[str]:
    yield " or ".join(f"`{choice}`" for choice in row.choices) if row.choices else row.kind.value.capitalize()
    yield "default: none" if row.default is None else f"default: `{row.default}`"
    if row.uses & uses != uses:
        only = "streams" if row.uses & uses <= {Use.STREAM_READ, Use.STREAM_WRITE} else "batches"
        yield f"{only} only"


if __name__ == "__main__":
    sys.stdout.write(options_markdown())
