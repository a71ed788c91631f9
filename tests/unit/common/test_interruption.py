"""Signals are noted when they come, and obeyed where the command says so."""

from __future__ import annotations

import signal
import sys

import pytest

from tidelog.common.interruption import Interruption, ended_by_signals, undisturbed


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (signal.SIGINT, KeyboardInterrupt()),
        (signal.SIGTERM, SystemExit(143)),
        (signal.SIGHUP, SystemExit(129)),
    ],
)
def test_a_signal_ends_the_command_at_the_next_check(number: int, error: BaseException) -> None:
    before = signal.getsignal(number)
    with Interruption().caught() as interruption:
        interruption.check()
        assert not interruption.has_come
        signal.raise_signal(number)
        assert interruption.has_come
        for act in (interruption.check, lambda: interruption.wait(60)):
            with pytest.raises(type(error)) as raised:
                act()
            assert raised.value.args == error.args
    assert signal.getsignal(number) == before


def test_a_second_signal_does_not_wait() -> None:
    with Interruption().caught():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_waiting_ends() -> None:
    Interruption().wait(0.01)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_ends_work_that_only_has_to_clean_up(number: int, error: type[BaseException]) -> None:
    before = signal.getsignal(number)
    cleaned_up = []

    def work() -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(signal.SIGTERM)  # impatience does not keep it from cleaning up
            cleaned_up.append(True)

    with pytest.raises(error), ended_by_signals():
        work()
    assert cleaned_up == [True]
    assert signal.getsignal(number) == before


def test_a_signal_waits_for_what_must_not_be_disturbed() -> None:
    before = signal.getsignal(signal.SIGTERM)
    done = []

    def work() -> None:
        with undisturbed():
            signal.raise_signal(signal.SIGTERM)
            done.append("started")
        done.append("went on")

    with pytest.raises(SystemExit), ended_by_signals():
        work()
    assert done == ["started"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_interruption_that_python_drops_is_noticed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)

    class Interrupted:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    with ended_by_signals() as check:
        check()
        Interrupted()
        assert dropped
        with pytest.raises(KeyboardInterrupt):
            check()


def test_an_ignored_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals() as check:
            signal.raise_signal(signal.SIGHUP)
            check()
    finally:
        signal.signal(signal.SIGHUP, before)
