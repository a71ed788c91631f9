"""Random programs over one partition's log, each made from its seed alone.

What always holds: a step that is taken out leaves the others runnable, so a failing program is made shorter before it
is shown.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
from dataclasses import replace
from pathlib import Path

from log_run import LogRun
from log_steps import STEPS, Step
from tidelog.log import LogConfig


def make_program(seed: int) -> tuple[LogConfig, list[Step]]:
    rng = random.Random(seed)
    config = LogConfig(
        segment_bytes=rng.choice((700, 1000, 2500)),
        index_interval_bytes=rng.choice((0, 150, 400)),
        segment_index_bytes=rng.choice((60, 240, 4096)),
        segment_ms=rng.choice((300, 10_000_000)),
        file_delete_delay_ms=rng.choice((0, 50)),
        message_timestamp_type=rng.choice(("CreateTime", "CreateTime", "LogAppendTime")),
        retention_ms=rng.choice((300, 604_800_000)),
        retention_bytes=rng.choice((-1, -1, 1500)),
        cleanup_policy=frozenset({rng.choice(("delete", "delete", "compact"))}),
        min_cleanable_dirty_ratio=0.0,
    )
    crash_chance = rng.choice((0.03, 0.1, 0.25))
    failure_chance = rng.choice((0.0, 0.05))
    names, weights = zip(*STEPS.items(), strict=True)
    steps = []
    for _ in range(rng.randint(5, 45)):
        (name,) = rng.choices(names, weights)
        step = Step(name, rng.random(), rng.random(), seed=rng.getrandbits(32))
        if rng.random() < crash_chance:
            count = rng.choice((1, 1, 1, 2, 3))
            crashes = tuple(int(rng.expovariate(1 / 6)) for _ in range(count))
            step = replace(step, crashes=crashes, is_power_cut=rng.random() < 0.6)
        elif rng.random() < failure_chance:
            step = replace(step, failure=int(rng.expovariate(1 / 4)))
        steps.append(step)
    return config, steps


def run_seed(seed: int, base: Path) -> None:
    """Run one program; raises AssertionError that names the seed and the shortest program that fails alike."""
    config, steps = make_program(seed)
    error = _attempt(config, steps, base)
    if error is not None:
        steps = _shorten(config, steps, base)
        last = _attempt(config, steps, base)
        program = "\n".join(f"    {step}" for step in steps)
        raise AssertionError(f"seed {seed} fails with {_differences(config)}:\n{program}") from last or error


def _attempt(config: LogConfig, steps: list[Step], base: Path) -> BaseException | None:
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir()
    try:
        LogRun(base, config).run(steps)
    except Exception as error:  # noqa: BLE001 - every failure is one of the program
        return error
    finally:
        shutil.rmtree(base)
    return None


def _shorten(config: LogConfig, steps: list[Step], base: Path) -> list[Step]:
    index = len(steps) - 1
    while index >= 0:
        fewer = steps[:index] + steps[index + 1 :]
        if _attempt(config, fewer, base) is not None:
            steps = fewer
        index -= 1
    return steps


def _differences(config: LogConfig) -> str:
    plain = LogConfig()
    names = [field.name for field in dataclasses.fields(config)]
    return ", ".join(f"{n}={getattr(config, n)!r}" for n in names if getattr(config, n) != getattr(plain, n))
