"""Explains why a value is not a JSON object of a schema. Runs on executors, for dead letters only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

_NUMBERS = {"byte", "short", "integer", "long", "float", "double"}
_SHOWN_LENGTH_MAX = 60


@dataclass(frozen=True)
class JsonReasons:
    """Finds reasons for one schema, which is a Spark schema as JSON."""

    schema_json: str

    def explain(self, values: pa.Array, errors: pa.Array) -> pa.Array:
        """A reason for every value whose error says only that it could not be parsed."""
        reasons = [
            self.reason(value.as_py()) if (error.as_py() or "").startswith("JsonError:") else error.as_py()
            for value, error in zip(values, errors, strict=True)
        ]
        return pa.array(reasons, pa.string())

    def reason(self, value: bytes | None) -> str | None:
        if value is None:
            return None
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError as error:
            return f"UnicodeDecodeError: byte {error.start} of the value is not UTF-8"
        if not text.strip():
            return "JsonError: the value is empty"
        try:
            document = json.loads(text)
        except RecursionError:
            return "JsonError: nested too deeply"
        except ValueError as error:
            return f"JSONDecodeError: {error}"
        if not isinstance(document, dict):
            return f"JsonError: expected an object, found {_shown(document)}"
        for field in _fields(self.schema_json):
            problem = _problem(field["type"], document.get(field["name"]))
            if problem is not None:
                return f"JsonError: {field['name']}: {problem}"
        return None


@lru_cache(maxsize=64)
def _fields(schema_json: str) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(schema_json)["fields"]
    return fields


def _problem(kind: Any, found: object) -> str | None:
    """Why Spark doesn't accept a value for this type; text that could be a date or number is left to Spark's rules."""
    if found is None:
        return None
    name = kind["type"] if isinstance(kind, dict) else str(kind)
    if name in _NUMBERS or name.startswith("decimal"):
        is_right = isinstance(found, int | float) and not isinstance(found, bool)
        if is_right and name not in ("float", "double") and not name.startswith("decimal"):
            is_right = isinstance(found, int)
    elif name == "boolean":
        is_right = isinstance(found, bool)
    elif name == "array":
        is_right = isinstance(found, list)
    elif name in ("struct", "map"):
        is_right = isinstance(found, dict)
    elif name.startswith(("timestamp", "date")):
        return f"{_shown(found)} can't be read as {name}" if not _may_be_time(found) else None
    else:
        return None
    return None if is_right else f"expected {name}, found {_shown(found)}"


def _may_be_time(found: object) -> bool:
    from datetime import datetime

    if isinstance(found, int | float) and not isinstance(found, bool):
        return True
    try:
        datetime.fromisoformat(str(found))
    except ValueError:
        return False
    return True


def _shown(found: object) -> str:
    text = json.dumps(found, ensure_ascii=False)
    return text if len(text) <= _SHOWN_LENGTH_MAX else text[: _SHOWN_LENGTH_MAX - 3] + "..."
