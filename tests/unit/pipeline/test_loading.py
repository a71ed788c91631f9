"""From files to pipelines, and what is wrong with files, told by the line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidelog.pipeline import DeclarationError
from tidelog.pipeline.loading import load, load_all

DECLARED = """
from tidelog.pipeline import Json, Pipeline, TopicInput, TopicOutput

def transform(orders):
    return orders

def declare(name):
    return Pipeline(name=name, version=1, inputs={"orders": TopicInput("orders", format=Json("id long"))},
                    transform=transform, outputs=[TopicOutput("out-" + name)])
"""


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    before, path = set(sys.modules), list(sys.path)

    def write_file(name: str, text: str) -> Path:
        file = tmp_path / name
        file.write_text(text)
        return file

    yield write_file
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def test_one_pipeline(write: Callable[[str, str], Path]) -> None:
    file = write("shop_one.py", DECLARED + "pipeline = declare('shop')\nagain = pipeline\n")
    assert load(file).name == "shop"
    assert load(file, "shop").transform.__module__ == "shop_one"


def test_several_need_a_name(write: Callable[[str, str], Path]) -> None:
    file = write("shop_two.py", DECLARED + "a = declare('orders')\nb = declare('clicks')\n")
    assert [pipeline.name for pipeline in load_all(file)] == ["orders", "clicks"]
    assert load(file, "clicks").name == "clicks"
    with pytest.raises(DeclarationError, match="choose one with --name"):
        load(file)
    with pytest.raises(DeclarationError, match="did you mean 'orders'"):
        load(file, "order")


def test_modules_beside_it(write: Callable[[str, str], Path]) -> None:
    write("shop_rates.py", "RATE = 2\n")
    file = write("shop_three.py", "import shop_rates\n" + DECLARED + "pipeline = declare(f'r{shop_rates.RATE}')\n")
    assert load(file).name == "r2"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("bad_a.py", "x = 1\ny = 1 / 0\n", "bad_a.py:2: ZeroDivisionError: division by zero"),
        ("bad_b.py", "def f(:\n", "bad_b.py:1: "),
        ("bad_c.py", "import nothing_of_this_name\n", "bad_c.py:1: ModuleNotFoundError"),
        ("bad_d.py", DECLARED + "p = declare('two words')\n", "bad_d.py:8: Pipeline(name='two words')"),
        ("bad_e.py", "x = 1\n", "declares no pipeline"),
        ("bad_f.py", DECLARED + "a, b = declare('x'), declare('x')\n", "two pipelines called 'x'"),
        ("json.py", DECLARED + "a = declare('x')\n", "rename the file"),
    ],
)
def test_what_is_wrong(write: Callable[[str, str], Path], name: str, text: str, words: str) -> None:
    import json  # noqa: F401 - one of the files has its name

    with pytest.raises(DeclarationError) as wrong:
        load(write(name, text))
    assert words in str(wrong.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="there is no file"):
        load(tmp_path / "none.py")
    with pytest.raises(DeclarationError, match="is a directory"):
        load(tmp_path)
