"""Creates a claim store from what the user passed: a URL, a path, or a Redis client.

What always holds: a driver is imported only when its database is used, and a missing one is reported with the command
that installs it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import cast
from urllib.parse import unquote, urlsplit

from tidelog.client.errors import ConfigError, MissingExtraError
from tidelog.client.processing.claim_store import ClaimStore
from tidelog.client.processing.claims import ClaimSettings
from tidelog.common.extras import install_command

_REDIS_SCHEMES = ("redis", "rediss", "unix")
_POSTGRES_SCHEMES = ("postgresql", "postgres")


def open_store(target: object, settings: ClaimSettings, *, is_async: bool) -> ClaimStore:
    kind, place = _kind_of(target)
    if kind == "redis":
        store = _redis().open_redis(place, settings.name, settings.timeout_s, is_async=is_async)
        return cast("ClaimStore", store)
    sql_settings = (str(place), settings.name, settings.table, settings.timeout_s)
    if kind == "postgres":
        return cast("ClaimStore", _postgres().PostgresClaims(*sql_settings, is_async=is_async))
    from tidelog.client.processing.sqlite_claims import SqliteClaims

    return SqliteClaims(*sql_settings, is_async=is_async)


def _kind_of(target: object) -> tuple[str, object]:
    if isinstance(target, Path):
        return "sqlite", target
    if not isinstance(target, str):
        if type(target).__module__.partition(".")[0] == "redis":
            return "redis", target
        raise ConfigError(f"a deduplicator works over a URL, a path or a client of Redis, not {target!r}")
    scheme = urlsplit(target).scheme
    if scheme in _REDIS_SCHEMES:
        return "redis", target
    if scheme in _POSTGRES_SCHEMES:
        return "postgres", target
    if scheme == "sqlite":
        # As in SQLAlchemy: three slashes before a relative path, four before an absolute one.
        path = unquote(urlsplit(target).path)
        if urlsplit(target).netloc or len(path) < 2:
            raise ConfigError(f"{target!r} names no file: write sqlite:///relative.db or sqlite:////absolute.db")
        return "sqlite", path[1:]
    raise ConfigError(
        f"{target!r} names no database that is known: write redis://host:6379/0, postgresql://host/database, "
        "sqlite:///file.db, or give a Path"
    )


def _redis() -> ModuleType:
    return _driver("redis", "redis", "tidelog.client.processing.redis_claims")


def _postgres() -> ModuleType:
    return _driver("psycopg", "postgres", "tidelog.client.processing.postgres_claims")


def _driver(package: str, extra: str, module: str) -> ModuleType:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(f"{package} can't be imported ({error}): {install_command(extra)}") from error
    return importlib.import_module(module)
