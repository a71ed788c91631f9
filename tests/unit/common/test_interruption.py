"""Signals are noted when they come, and obeyed where the command says so."""

from __future__ import annotations

import signal

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
