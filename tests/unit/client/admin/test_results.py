from __future__ import annotations

import logging

import pytest

from tidelog.client.admin import Results
from tidelog.client.errors import BrokerError, InvalidResponseError
from tidelog.protocol import ErrorCode

REFUSED = BrokerError(ErrorCode.INVALID_CONFIG, subject="topic b")


def test_values_and_errors_stand_in_the_order_asked() -> None:
    results = Results(["c", "b", "a", "c"], {"a": 1, "c": 3, "never asked": 9}, {"b": REFUSED})
    assert list(results) == ["c", "b", "a"]
    assert len(results) == 3
    assert results["a"] == 1
    assert results.succeeded == {"c": 3, "a": 1}
    assert results.errors == {"b": REFUSED}
    assert "b" in results
    assert "d" not in results


def test_what_failed_raises_its_error() -> None:
    results = Results(["a", "b"], {"a": 1}, {"b": REFUSED})
    with pytest.raises(BrokerError, match="topic b"):
        results["b"]
    with pytest.raises(BrokerError, match="topic b"):
        list(results.items())
    with pytest.raises(BrokerError, match="topic b"):
        results.get("b")
    with pytest.raises(KeyError):
        results["c"]


def test_what_a_broker_says_nothing_of_is_an_error() -> None:
    with pytest.raises(InvalidResponseError, match="the broker's response is missing 'a'"):
        Results(["a"], {})["a"]


def test_one_error_of_several_is_raised_and_the_others_are_counted() -> None:
    errors = {name: BrokerError(ErrorCode.INVALID_CONFIG, subject=name) for name in "bc"}
    results = Results("abc", {"a": 1}, errors)
    with pytest.raises(BrokerError, match="b: ") as caught:
        results.raise_for_errors()
    assert caught.value.__notes__ == ["and 1 more of 3 failed"]
    assert Results("a", {"a": 1}).raise_for_errors() == {"a": 1}


def test_they_compare_with_mappings() -> None:
    assert Results("ab", {"a": 1, "b": 2}) == {"b": 2, "a": 1}
    assert Results("ab", {"a": 1, "b": 2}) == Results("ba", {"a": 1, "b": 2})
    failed = Results("ab", {"a": 1}, {"b": REFUSED})
    assert failed != {"a": 1}
    assert failed == Results("ab", {"a": 1}, {"b": REFUSED})
    assert failed != 1
    assert failed.errors


def test_errors_that_nobody_looked_at_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        Results("ab", {"a": 1}, {"b": REFUSED})
        assert caplog.messages == [f"an error of an admin call was never checked: {REFUSED}"]
        caplog.clear()
        repr(Results("ab", {"a": 1}, {"b": REFUSED}))
        Results("a", {"a": 1})
        assert not caplog.messages
