"""Long work gets its share of the loop and no more, and what comes meanwhile does not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from tidelog.broker.memory import AnswerMemory
from tidelog.broker.turns import FRESH_WORK_S, SHORT_WORK_BYTES, SHORT_WORK_S, SLICE_S, AnswerTooLargeError, Turns
from tidelog.common.steps import Steps, run_through, run_with_pauses, with_pauses

STEP_S = 0.0005


class _Work:
    """Makes steps that each take some of a clock's time, and notes in which turn of the loop they ran."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.turn = 0
        self.log: list[tuple[int, str]] = []

    def monotonic_s(self) -> float:
        return self.now_s

    def steps(self, name: str, count: int, *, step_s: float = STEP_S, step_bytes: int = 0) -> Steps[str]:
        for _ in range(count):
            self.now_s += step_s
            self.log.append((self.turn, name))
            yield step_bytes
        return name

    def in_turn(self, turn: int) -> list[str]:
        return [name for at, name in self.log if at == turn]


class _Reader:
    """A connection with an answer to be read."""

    received_bytes = 0
    sent_bytes = 0

    def memory_freed(self) -> None:
        raise AssertionError("it never waits for memory")

    def lets_us_wait(self) -> bool:
        return True

    def close(self, reason: str, level: int) -> None:
        raise AssertionError(reason)


Scenario = Callable[[Turns, _Work, AnswerMemory], Coroutine[None, None, None]]


def run(scenario: Scenario, bound_bytes: int = 1 << 30) -> _Work:
    work = _Work()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        answers = AnswerMemory(bound_bytes, loop)

        async def count_turns() -> None:
            while True:
                work.turn += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_turns())
        await asyncio.sleep(0)
        await scenario(Turns(answers, loop, work.monotonic_s, work.monotonic_s), work, answers)
        counting.cancel()

    asyncio.run(main())
    return work


def test_small_work_is_done_at_once() -> None:
    async def scenario(turns: Turns, work: _Work, _: AnswerMemory) -> None:
        future = turns.start(work.steps("small", 1))
        assert future.done()
        assert future.result() == "small"
        assert not turns.waiting_count

    run(scenario)


def test_a_small_request_goes_before_many_that_have_had_some_time() -> None:
    async def scenario(turns: Turns, work: _Work, _: AnswerMemory) -> None:
        # All of them together take nine turns, and each has had its first moment after four.
        short = [turns.start(work.steps("short", 9, step_s=SHORT_WORK_S / 10)) for _ in range(40)]
        while work.turn < 5:  # noqa: ASYNC110 - the turns themselves are what counts
            await asyncio.sleep(0)
        came_in = work.turn
        assert await turns.start(work.steps("small", 1, step_s=FRESH_WORK_S / 2)) == "small"
        assert work.turn <= came_in + 2
        await asyncio.gather(*short)

    run(scenario)


def test_no_turn_of_the_loop_takes_longer_than_a_slice() -> None:
    async def scenario(turns: Turns, work: _Work, _: AnswerMemory) -> None:
        futures = [turns.start(work.steps(str(number), 100)) for number in range(5)]
        assert await asyncio.gather(*futures) == ["0", "1", "2", "3", "4"]

    work = run(scenario)
    steps_max = SLICE_S / STEP_S + 1
    assert max(len(work.in_turn(turn)) for turn in range(work.turn + 1)) <= steps_max
    assert len(work.log) == 500


def test_short_work_passes_long_work() -> None:
    async def scenario(turns: Turns, work: _Work, _: AnswerMemory) -> None:
        long = [turns.start(work.steps(f"long-{number}", 1000)) for number in range(20)]
        for number in range(10):
            await turns.start(work.steps(f"short-{number}", 1))
        assert not any(future.done() for future in long)
        begun = {name for _, name in work.log if name.startswith("long")}
        for number in range(10):
            at = next(turn for turn, name in work.log if name == f"short-{number}")
            # All that came before had a short time each to show that it is long.
            assert at < 20 * SHORT_WORK_S / SLICE_S * 3 + 3 * number
        assert begun
        for future in long:
            future.cancel()

    run(scenario)


def test_long_work_goes_on_however_much_short_work_comes() -> None:
    async def scenario(turns: Turns, work: _Work, answers: AnswerMemory) -> None:
        long = turns.start(work.steps("long", 50))
        while not long.done():
            for _ in range(50):
                turns.start(work.steps("short", 1))
            await asyncio.sleep(0)
            assert work.turn < 1000

    run(scenario)


def test_steps_that_take_too_long_do_not_take_it_from_longer_work() -> None:
    """So does every step of a process that has to wait for a core."""

    async def scenario(turns: Turns, work: _Work, answers: AnswerMemory) -> None:
        long = turns.start(work.steps("long", 20))
        short = turns.start(work.steps("short", 3, step_s=FRESH_WORK_S))
        while not (long.done() and short.done()):
            for _ in range(3):
                turns.start(work.steps("small", 1, step_s=SLICE_S))
            await asyncio.sleep(0)
            assert work.turn < 100

    run(scenario)


def test_one_large_answer_is_made_at_a_time() -> None:
    async def scenario(turns: Turns, work: _Work, _: AnswerMemory) -> None:
        futures = [turns.start(work.steps(name, 100, step_bytes=SHORT_WORK_BYTES)) for name in "abc"]
        await asyncio.gather(*futures)

    work = run(scenario)
    names = [name for _, name in work.log]
    # Each does a little to show that it is large; then one after the other is finished.
    first_end = max(number for number, name in enumerate(names) if name == "a")
    assert names[:first_end].count("b") <= 2 * SHORT_WORK_S / STEP_S
    assert names[:first_end].count("c") <= 2 * SHORT_WORK_S / STEP_S


def test_an_answer_waits_until_others_have_been_read() -> None:
    bound_bytes = 100 * SHORT_WORK_BYTES

    async def scenario(turns: Turns, work: _Work, answers: AnswerMemory) -> None:
        reader = _Reader()
        answers.update(reader, bound_bytes - 10 * SHORT_WORK_BYTES)
        large = turns.start(work.steps("large", 50, step_bytes=SHORT_WORK_BYTES))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not large.done()
        assert len(work.log) <= 11
        assert turns.start(work.steps("small", 1)).done(), "small answers need no memory of the bound"
        answers.update(reader, 0)
        await large

    run(scenario, bound_bytes)


def test_answers_in_the_making_stay_within_the_bound_together() -> None:
    bound_bytes = 100 * SHORT_WORK_BYTES

    async def scenario(turns: Turns, work: _Work, answers: AnswerMemory) -> None:
        reader = _Reader()
        answers.update(reader, bound_bytes // 2)
        large = [turns.start(work.steps(name, 80, step_bytes=SHORT_WORK_BYTES)) for name in "abcdefgh"]
        for _ in range(200):
            await asyncio.sleep(0)
        assert not any(future.done() for future in large)
        # One has grown as far as it may; the others have only shown that they are large.
        assert len(work.log) < 50 + 3 * len(large)
        answers.update(reader, 0)
        await asyncio.gather(*large)

    run(scenario, bound_bytes)


def test_without_memory_other_work_goes_on_as_long_as_it_makes_little() -> None:
    bound_bytes = 100 * SHORT_WORK_BYTES

    async def scenario(turns: Turns, work: _Work, answers: AnswerMemory) -> None:
        reader = _Reader()
        answers.update(reader, bound_bytes)
        large = [turns.start(work.steps("large", 50, step_bytes=SHORT_WORK_BYTES)) for _ in range(3)]
        for _ in range(20):
            await asyncio.sleep(0)
        assert await turns.start(work.steps("much work, few bytes", 1000, step_bytes=10)) == "much work, few bytes"
        assert not any(future.done() for future in large)
        answers.update(reader, 0)
        await asyncio.gather(*large)

    run(scenario, bound_bytes)


def test_a_busy_machine_does_not_make_short_work_long() -> None:
    """What counts is the processor's time: work that was only kept waiting stays before the work that is long."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        work = _Work()
        cpu_s = 0.0
        turns = Turns(AnswerMemory(1 << 30, loop), loop, work.monotonic_s, lambda: cpu_s)

        def long_steps() -> Steps[None]:
            nonlocal cpu_s
            for _ in range(1000):
                cpu_s += STEP_S
                yield from work.steps("long", 1)

        long = [turns.start(long_steps()) for _ in range(10)]
        for _ in range(50):
            await asyncio.sleep(0)
        # Each step takes as long as the whole slice, of which the process had hardly any.
        await turns.start(work.steps("kept waiting", 20, step_s=SLICE_S))
        assert not any(future.done() for future in long)

    asyncio.run(main())


def test_an_answer_larger_than_the_bound_is_refused() -> None:
    async def scenario(turns: Turns, work: _Work, _: AnswerMemory) -> None:
        with pytest.raises(AnswerTooLargeError, match="more than 1000000 bytes"):
            await turns.start(work.steps("huge", 1000, step_bytes=SHORT_WORK_BYTES))
        assert len(work.log) < 20
        assert turns.start(work.steps("next", 1)).done()

    run(scenario, 1_000_000)


def test_work_that_nobody_waits_for_any_more_is_dropped() -> None:
    ended: list[str] = []

    def steps(work: _Work) -> Steps[None]:
        try:
            yield from work.steps("dropped", 1000)
        finally:
            ended.append("dropped")

    async def scenario(turns: Turns, work: _Work, answers: AnswerMemory) -> None:
        future = turns.start(steps(work))
        await asyncio.sleep(0)
        future.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not turns.waiting_count
        assert ended == ["dropped"]
        assert len(work.log) < 100

    run(scenario)


def test_a_failure_reaches_whoever_waits() -> None:
    def steps() -> Steps[None]:
        yield 0
        raise ValueError("no such thing")

    async def scenario(turns: Turns, _: _Work, __: AnswerMemory) -> None:
        with pytest.raises(ValueError, match="no such thing"):
            await turns.start(steps())

    run(scenario)


def test_steps_can_be_run_through() -> None:
    work = _Work()
    assert run_through(work.steps("all", 7)) == "all"
    assert len(work.log) == 7


def test_a_coroutine_pauses_between_items(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    others = 0

    def perf_counter() -> float:
        return now_s

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    async def main() -> list[int]:
        nonlocal now_s
        task = asyncio.create_task(other())
        seen = []
        async for item in with_pauses(range(100)):
            seen.append(item)
            now_s += 0.001
        task.cancel()
        return seen

    monkeypatch.setattr("tidelog.common.steps.time.perf_counter", perf_counter)
    assert asyncio.run(main()) == list(range(100))
    assert 20 < others < 60


def test_steps_run_in_a_coroutine_let_others_have_their_turn() -> None:
    turns = 0

    def steps() -> Steps[str]:
        while turns < 3:
            yield 0
        return "done"

    async def main() -> None:
        nonlocal turns
        running = asyncio.create_task(run_with_pauses(steps()))
        while not running.done():
            turns += 1
            await asyncio.sleep(0)
        assert running.result() == "done"

    asyncio.run(main())
