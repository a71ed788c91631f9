"""Users' classes: made of what a format gives, and turned into it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tidelog.client.serialization.objects import builder_of, to_plain
from tidelog.serialization import JsonDeserializer, MsgpackDeserializer, MsgpackSerializer, SerializationError


@dataclass
class Address:
    street: str


@dataclass
class Person:
    name: str
    home: Address
    work: Address | None = None
    others: list[Address] = field(default_factory=list)
    by_name: dict[str, Address] = field(default_factory=dict)
    friends: list[Person] = field(default_factory=list)
    best: Person | None = None
    tags: list[str] = field(default_factory=list)


class Temperature:
    def __init__(self, degrees: float) -> None:
        self.degrees = degrees

    @classmethod
    def from_dict(cls, value: dict[str, float]) -> Temperature:
        return cls(value["degrees"])

    def to_dict(self) -> dict[str, float]:
        return {"degrees": self.degrees}


ANN = Person(
    "Ann",
    Address("A"),
    others=[Address("B")],
    by_name={"x": Address("C")},
    friends=[Person("Bob", Address("D"))],
    best=Person("Cid", Address("E"), Address("F")),
    tags=["t"],
)


def test_dataclasses_go_there_and_back() -> None:
    build = builder_of(Person)
    assert build is not None
    plain = to_plain(ANN)
    assert plain["friends"][0]["home"] == {"street": "D"}
    assert plain["work"] is None
    assert build("t", plain) == ANN


def test_fields_that_a_newer_writer_added_are_left_out() -> None:
    build = builder_of(Address)
    assert build is not None
    assert build("t", {"street": "A", "zip": 1}) == Address("A")


def test_a_class_is_asked_for_its_own_way() -> None:
    build = builder_of(Temperature)
    assert build is not None
    made = build("t", {"degrees": 3.5})
    assert isinstance(made, Temperature)
    assert to_plain(made) == {"degrees": 3.5}
    assert to_plain([made]) == [{"degrees": 3.5}]


def test_a_function_will_do() -> None:
    deserializer = JsonDeserializer(lambda value: value["a"] + 1)
    assert deserializer("t", b'{"a": 1}') == 2


@pytest.mark.parametrize(
    ("value", "said"), [({"zip": 1}, "street"), ([1], "built from a dict, not from a list"), ({}, "street")]
)
def test_what_a_class_refuses_is_told_with_the_topic(value: Any, said: str) -> None:
    build = builder_of(Address)
    assert build is not None
    with pytest.raises(SerializationError, match=rf"^topic orders: Address can't be built from the value: .*{said}"):
        build("orders", value)


def test_without_a_class_values_stay_as_they_are() -> None:
    assert builder_of(None) is None
    assert to_plain(7) == 7
    assert to_plain(Address) is Address


def test_formats_take_dataclasses() -> None:
    data = MsgpackSerializer()("t", ANN)
    assert MsgpackDeserializer(Person)("t", data) == ANN
    assert MsgpackSerializer(str)("t", {"list": [Address("A"), 1j]}) == b"\x81\xa4list\x92\x81\xa6street\xa1A\xa21j"
