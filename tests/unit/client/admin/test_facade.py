"""Admin has every call of AsyncAdmin, with the same parameters, types and words."""

from __future__ import annotations

import inspect

import pytest

from tidelog.client import admin as package
from tidelog.client.admin import Admin, AsyncAdmin

CALLS = sorted(
    name for name, value in vars(AsyncAdmin).items() if inspect.iscoroutinefunction(value) and not name.startswith("_")
)


def test_there_are_calls() -> None:
    assert len(CALLS) > 25
    assert {name for name, value in vars(Admin).items() if inspect.isfunction(value) and not name.startswith("_")} == {
        *CALLS
    }


@pytest.mark.parametrize("name", CALLS)
def test_both_clients_are_called_alike(name: str) -> None:
    synchronous, asynchronous = getattr(Admin, name), getattr(AsyncAdmin, name)
    assert inspect.signature(synchronous) == inspect.signature(asynchronous)
    if name != "close":
        assert synchronous.__doc__ == asynchronous.__doc__


def test_everything_that_is_exported_is_there() -> None:
    assert sorted(package.__all__) == package.__all__
    assert all(hasattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'NoSuchThing'"):
        _ = package.NoSuchThing  # type: ignore[attr-defined]  # on purpose
