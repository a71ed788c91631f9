"""The page on serialization: its examples run as they stand, and it names all that there is."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidelog.serialization
from local_registry import LocalRegistry
from tidelog.testing import Broker

PAGE = "docs/serialization.md"
TEXT = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")
DOCUMENTED_REGISTRY = "http://127.0.0.1:8081"


def test_the_examples_run(
    examples: Callable[[str], list[Any]], runner: Any, start_broker: Callable[..., Broker]
) -> None:
    runner.bootstrap = start_broker().bootstrap
    with LocalRegistry() as registry:
        for example in examples(PAGE):
            assert example.expected or example.language == "sh"
            runner.run(dataclasses.replace(example, code=example.code.replace(DOCUMENTED_REGISTRY, registry.url)))


@pytest.mark.parametrize("name", tidelog.serialization.__all__)
def test_every_name_is_explained(name: str) -> None:
    # The table of serializers stands for both directions.
    names = {name, name.replace("Deserializer", "Serializer")}
    assert any(re.search(rf"`{either}\b", TEXT) for either in names)
