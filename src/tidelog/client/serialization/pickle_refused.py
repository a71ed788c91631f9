"""Pickle, which is refused: anyone who can write to a topic could run code in all of its readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from tidelog.client.errors import SerializationError
from tidelog.client.serialization.contract import Headers

_WHY = (
    "pickle is not supported: unpickling runs whatever code the bytes ask for, so anyone who can write to a topic would"
    " own its readers; use JsonSerializer or MsgpackSerializer for plain values, AvroSerializer or ProtobufSerializer"
    " for typed ones"
)

# Modules whose functions unpickle, or create data that only unpickling can read.
_PICKLES = ("pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve")


def refusal_of_pickle(function: Callable[..., Any]) -> str | None:
    """Why a function of a module that pickles, such as `pickle.loads`, is not accepted; None for others."""
    module = getattr(function, "__module__", None) or ""
    return _WHY if module.split(".")[0] in _PICKLES else None


class PickleSerializer:
    """Can't be instantiated; the error says why and what to use instead."""

    def __init__(self, *_: object, **__: object) -> None:
        raise SerializationError(_WHY)

    def __call__(self, topic: str, value: object, headers: Headers = (), /) -> NoReturn:
        raise SerializationError(_WHY)


class PickleDeserializer:
    """Can't be instantiated; the error says why and what to use instead."""

    def __init__(self, *_: object, **__: object) -> None:
        raise SerializationError(_WHY)

    def __call__(self, topic: str, data: bytes | None, headers: Headers = (), /) -> NoReturn:
        raise SerializationError(_WHY)
