"""The light data classes beside the standard library's: the same behaviour from the same declarations."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from tidelog.common import light_dataclass
from tidelog.common.light_dataclass import dataclass

KINDS = (light_dataclass.dataclass, dataclasses.dataclass)


@dataclass(frozen=True, slots=True)
class Pickled:
    name: str
    size: int = 0


def frozen_class(make: Callable[..., Any]) -> Any:
    @make(frozen=True, slots=True)
    class Point:
        x: int
        y: int = 2
        note: str = field(default="", compare=False, repr=False)

    return Point


def mutable_class(make: Callable[..., Any]) -> Any:
    @make(slots=True)
    class Base:
        first: int
        items: list[int] = field(default_factory=list)

    @make(slots=True)
    class Derived(Base):
        last: str = "z"
        seen: int = field(init=False)
        count: int = field(init=False, default=7)

        def __post_init__(self) -> None:
            self.seen = self.first + 1

    return Derived


@pytest.mark.parametrize("make", KINDS)
def test_a_frozen_class_compares_hashes_and_prints_by_value(make: Callable[..., Any]) -> None:
    point_class = frozen_class(make)
    point = point_class(1)
    assert point == point_class(1, 2, "noted")
    assert point != point_class(1, 3)
    assert point != (1, 2)
    assert hash(point) == hash(point_class(x=1, note="noted"))
    assert repr(point).endswith("Point(x=1, y=2)")
    assert point_class.__match_args__ == ("x", "y", "note")
    assert not hasattr(point, "__dict__")


@pytest.mark.parametrize("make", KINDS)
def test_a_frozen_class_refuses_changes(make: Callable[..., Any]) -> None:
    point = frozen_class(make)(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError, AttributeError)):
        point.unknown = 3
    assert point.x == 1


@pytest.mark.parametrize("make", KINDS)
def test_the_librarys_functions_know_the_class(make: Callable[..., Any]) -> None:
    point = frozen_class(make)(1, note="kept")
    moved = dataclasses.replace(point, y=5)
    assert (moved.x, moved.y, moved.note) == (1, 5, "kept")
    assert [each.name for each in dataclasses.fields(point)] == ["x", "y", "note"]
    assert dataclasses.asdict(moved) == {"x": 1, "y": 5, "note": "kept"}
    assert copy.copy(moved) == moved
    assert dataclasses.is_dataclass(type(point))


@pytest.mark.parametrize("make", KINDS)
def test_fields_are_inherited_and_factories_give_each_instance_its_own(make: Callable[..., Any]) -> None:
    derived_class = mutable_class(make)
    one, other = derived_class(1), derived_class(1)
    one.items.append(3)
    assert other.items == []
    assert (one.first, one.last, one.seen, one.count) == (1, "z", 2, 7)
    assert one != other
    assert derived_class.__slots__ == ("last", "seen", "count")
    with pytest.raises(TypeError):
        hash(one)


@pytest.mark.parametrize("make", KINDS)
def test_keyword_only_arguments_come_last(make: Callable[..., Any]) -> None:
    class Mixed:
        named: int = field(kw_only=True)
        place: int

    class Named:
        first: int = 1
        second: int

    mixed_class: Any = make(slots=True)(Mixed)
    named_class: Any = make(slots=True, kw_only=True)(Named)
    assert (mixed_class(3, named=4).place, named_class(second=2).first) == (3, 1)
    with pytest.raises(TypeError, match="positional"):
        named_class(1, 2)
    with pytest.raises(TypeError, match="second"):
        named_class()


@pytest.mark.parametrize("make", KINDS)
def test_own_methods_and_identity_are_kept(make: Callable[..., Any]) -> None:
    class Same:
        value: int

    class Own:
        value: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 5

        def __repr__(self) -> str:
            return "own"

    same_class: Any = make(slots=True, eq=False)(Same)
    own = make(frozen=True, slots=True)(Own)(1)
    assert same_class(1) != same_class(1)
    assert len({same_class(1), same_class(1)}) == 2
    assert own == 3
    assert (hash(own), repr(own)) == (5, "own")


@pytest.mark.parametrize("make", KINDS)
def test_a_default_that_instances_would_share_is_refused(make: Callable[..., Any]) -> None:
    class Wrong:
        items: list[int] = []  # noqa: RUF012 - what is refused

    with pytest.raises(ValueError, match="default_factory"):
        make(slots=True)(Wrong)


@pytest.mark.parametrize("make", KINDS)
def test_a_frozen_class_has_frozen_bases_only(make: Callable[..., Any]) -> None:
    @make(slots=True)
    class Base:
        value: int

    class Derived(Base):
        other: int

    with pytest.raises(TypeError, match="frozen"):
        make(frozen=True, slots=True)(Derived)


@pytest.mark.parametrize("base_made_by", KINDS)
@pytest.mark.parametrize("make", KINDS)
def test_either_kind_may_derive_from_the_other(make: Callable[..., Any], base_made_by: Callable[..., Any]) -> None:
    class Derived(frozen_class(base_made_by)):  # type: ignore[misc]  # which one is known at run time only
        z: int = 3

    derived_class = make(frozen=True, slots=True)(Derived)
    assert derived_class(1) == derived_class(1, 2, "", 3)
    assert derived_class(1) != derived_class(1, z=4)


def test_an_instance_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(Pickled("a", 2))) == Pickled("a", 2)


def test_no_method_is_compiled_before_the_first_instance() -> None:
    point_class = frozen_class(light_dataclass.dataclass)
    before = point_class.__init__
    point_class(1)
    assert point_class.__init__ is not before
    assert before.__code__.co_filename == light_dataclass.__file__
