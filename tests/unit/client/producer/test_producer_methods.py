"""`Producer.send` and `send_nowait`, which come from a compiled base class."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest

from tidelog import Producer
from tidelog.client.producer import producer as module


@pytest.mark.parametrize("name", ["send", "send_nowait"])
def test_what_type_checkers_see_is_what_is_called(name: str) -> None:
    tree = ast.parse(inspect.getsource(module))
    (declared,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
    method = getattr(Producer, name)
    parameters = inspect.signature(method).parameters
    assert list(parameters) == [argument.arg for argument in declared.args.args]
    assert [each.default for each in parameters.values() if each.default is not each.empty] == [
        ast.literal_eval(default) for default in declared.args.defaults
    ]
    assert inspect.getdoc(method) == ast.get_docstring(declared)


def test_a_subclass_may_send_in_its_own_way() -> None:
    sent: list[object] = []

    class Recording(Producer):
        def send(self, topic: str, *record: Any, **options: Any) -> Any:
            sent.append(topic)

    with Recording(bootstrap_servers="127.0.0.1:1") as producer:
        producer.send("clicks", b"v")
    assert sent == ["clicks"]
