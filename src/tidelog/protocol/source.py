"""Builds the source of a codec function and compiles it so that tracebacks show its lines."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any


class Source:
    """The indented lines of a function, unique variable names, and the objects that the function refers to."""

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
        """The name that the function uses for this object."""
        for name, known in self.namespace.items():
            if known is value:
                return name
        name = self.name(prefix)
        self.namespace[name] = value
        return name

    def literal(self, value: object) -> str:
        """The expression for this value: a Python literal where possible, else the name of a constant."""
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
        # linecache never discards an entry that has no modification time.
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        return self.namespace[function]
