"""Text of a function in the making, and its compilation so that a traceback shows the lines of the codec."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any


class Source:
    """Lines at their depth, names that are used once, and the objects that the function refers to."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {}
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    def add(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    @contextmanager
    def block(self, line: str) -> Iterator[None]:
        self.add(line)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, prefix: str, value: object) -> str:
        """The name under which the function finds this object."""
        for name, known in self.namespace.items():
            if known is value:
                return name
        name = self.name(prefix)
        self.namespace[name] = value
        return name

    def literal(self, value: object) -> str:
        """How the function writes this value: as Python text where there is one."""
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return repr(value)
        return self.constant("constant", value)

    def packer(self, codes: str) -> str:
        return self._struct_method("pack", codes)

    def unpacker(self, codes: str) -> str:
        return self._struct_method("unpack", codes)

    def _struct_method(self, kind: str, codes: str) -> str:
        name = f"{kind}_{codes.replace('?', 'o')}"
        if name not in self.namespace:
            fused = Struct(">" + codes)
            self.namespace[name] = fused.pack if kind == "pack" else fused.unpack_from
        return name

    def compile(self, title: str, function: str) -> Any:
        text = "\n".join(self._lines) + "\n"
        filename = f"<tidelog {title}>"
        exec(compile(text, filename, "exec"), self.namespace)
        # An entry without a modification time is never thrown out by linecache's own checks.
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        return self.namespace[function]
