"""The pages about clients: their examples run as they stand, and each public name has a page with an example of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidelog
import tidelog.client.admin
import tidelog.serialization
from tidelog.testing import Broker

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("admin", "arrow", "asyncio", "consumer", "errors", "migrating-clients", "producer")

# The first members of a group are not waited for, which would take three seconds for each of a page's groups.
SETTINGS = {"group.initial.rebalance.delay.ms": 0}

# Names that examples hold only as what other calls give or take: a sentence that names them explains them.
WITHOUT_EXAMPLE = {
    "ConsumerRecord",  # every poll gives them
    "ConsumerGroupMetadata",  # group_metadata() gives one
    "ConsumerMetrics",  # metrics()
    "DeliveryFuture",  # send()
    "MemberSubscription",  # what an own assignor gets
    "OffsetAndTimestamp",  # offsets_for_times()
    "ProducerInterceptor",  # a protocol: nobody has to name it
    "ProducerMetrics",
    "TopicLayout",
}


def pages_with_examples() -> dict[str, str]:
    """The text of every page whose Python examples some test runs: all that have one."""
    texts = {page.stem: page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md"))}
    return {name: text for name, text in texts.items() if "```python\n" in text and name != "client-settings"}


def example_code() -> str:
    return "\n".join(
        code
        for text in pages_with_examples().values()
        for code in re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)
    )


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(
    page: str, examples: Callable[[str], list[Any]], runner: Any, start_broker: Callable[..., Broker]
) -> None:
    runner.bootstrap = start_broker(settings=SETTINGS).bootstrap
    for example in examples(f"docs/{page}.md"):
        assert example.expected or example.language == "sh", "an example shows nothing"
        runner.run(example)


def test_a_test_runs_the_examples_of_every_page() -> None:
    tests = "\n".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*_page.py"))
    unrun = [page for page in pages_with_examples() if page not in PAGES and f"docs/{page}.md" not in tests]
    assert unrun == []


@pytest.mark.parametrize("name", [name for name in tidelog.__all__ if name != "__version__"])
def test_every_public_name_has_a_page_with_an_example(name: str) -> None:
    text = "\n".join(pages_with_examples().values())
    assert re.search(rf"`(tidelog\.)?{name}\b", text), f"no page explains {name}"
    if name not in WITHOUT_EXAMPLE:
        assert re.search(rf"\b{name}\b", example_code()), f"no example shows {name}"


@pytest.mark.parametrize("name", tidelog.client.admin.__all__)
def test_every_name_of_admin_calls_is_explained(name: str) -> None:
    assert re.search(rf"`{name}\b", (DOCS / "admin.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("client", [tidelog.Admin, tidelog.AsyncAdmin])
def test_every_admin_call_is_listed(client: type) -> None:
    text = (DOCS / "admin.md").read_text(encoding="utf-8")
    calls = [name for name, value in vars(client).items() if callable(value) and not name.startswith("_")]
    assert [call for call in calls if f"`{call}" not in text and f".{call}(" not in text] == []


@pytest.mark.parametrize(
    ("page", "client"),
    [("producer", tidelog.Producer), ("consumer", tidelog.Consumer), ("asyncio", tidelog.AsyncConsumer)],
)
def test_every_call_is_named(page: str, client: type) -> None:
    # What groups are about stands on their own page, and Arrow on its own.
    text = "\n".join(
        (DOCS / f"{name}.md").read_text(encoding="utf-8") for name in (page, "members", "arrow", "consumer")
    )
    calls = [name for base in client.__mro__[:-1] for name in vars(base) if not name.startswith("_")]
    assert [call for call in calls if not re.search(rf"\b{call}\b", text)] == []
