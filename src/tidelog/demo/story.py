"""The demo, chapter by chapter: a shop, a pipeline that is killed, its second version, every result checked.

What always holds: commands run as a user would type them, in their own processes; every result is compared with a plain
computation of the same events, and the first difference ends the demo and is shown. Everything that was started is
stopped, however the demo ends, unless it is to be kept.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidelog.client.admin.admin import Admin
from tidelog.client.admin.types import NewTopic, OffsetSpec
from tidelog.client.types import TopicPartition
from tidelog.common.interruption import Interruption
from tidelog.common.watchdog import Watchdog
from tidelog.demo.chart import write_chart
from tidelog.demo.processes import DemoError, Process, Processes
from tidelog.demo.requirements import SPARK_PACKAGES, missing_pieces
from tidelog.demo.results import DeadLetter, Results, read_dead_letters, read_results
from tidelog.demo.shop import CLICKS, ORDERS, Shop, last_whole_hour, open_shop
from tidelog.demo.telling import Teller
from tidelog.demo.totals import Totals, differences, shortened
from tidelog.demo.traffic import Traffic
from tidelog.pipeline.versions.registry import Registry

PARTITIONS = 2
BEFORE_PROMOTION = 0.95  # the share of events that version 1 sees
LETTERS_SHOWN = 4
SAMPLES_SHOWN = 3

# A busy machine may be slow, so there is no limit on how long a step takes. The demo gives up when no event was sent or
# processed for this long, the start of a Spark driver included.
STANDSTILL_S = 600.0
# A driver of the demo lives for a minute or two, so its JVM should compile quickly rather than well: on two busy cores
# its start and first micro-batch took 81 s instead of 146.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
COMMAND_DEADLINE_S = 600.0  # of commands that print nothing before their end
LOOK_S = 0.25

PIPELINE = "revenue"
RESULTS = "revenue"
FILES = {1: "revenue_v1.py", 2: "revenue_v2.py"}
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user asked for."""

    events: int
    seed: int
    directory: Path | None
    chart: Path
    keep: bool
    quietly: bool


def tell_story(wishes: Wishes) -> dict[str, Any]:
    """Tell it; gives what a JSON document says of it. DemoError when it can't continue or a check fails."""
    check_pieces()
    _check_chart(wishes.chart)
    teller = Teller(quietly=wishes.quietly)
    with Interruption().caught() as interruption, ExitStack() as cleanup:
        directory = _directory(wishes, cleanup)
        processes = Processes(directory, interruption)
        cleanup.callback(processes.stop_all)
        story = Story(wishes, teller, processes, directory)
        document = story.tell()
        if wishes.keep:
            cleanup.pop_all()
            story.tell_how_to_go_on(processes.let_go())
        return document


def check_pieces() -> None:
    """Say what is missing before anything is started."""
    needs = missing_pieces((*SPARK_PACKAGES, "matplotlib"), "spark,charts")
    if needs:
        raise DemoError(f"the demo needs {', and '.join(needs)}; tidelog demo --quick needs neither Spark nor Java")


def _check_chart(chart: Path) -> None:
    """Find out now that the chart can't be written, not after the whole story."""
    if chart.is_dir() or not os.access(chart.parent, os.W_OK):
        raise DemoError(f"the chart can't be written to {chart}; choose another place with --chart")


def _directory(wishes: Wishes, cleanup: ExitStack) -> Path:
    if wishes.directory is None:
        directory = Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        return directory
    directory = wishes.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise DemoError(f"{directory} is not empty; give a new directory, so that nothing in it is overwritten")
    return directory


class Story:
    def __init__(self, wishes: Wishes, teller: Teller, processes: Processes, directory: Path) -> None:
        self._wishes = wishes
        self._teller = teller
        self._processes = processes
        self._directory = directory
        self._state = directory / "tidelog-pipelines"
        self._bootstrap = ""
        self._expected: dict[tuple[int, float], Totals] = {}
        self._document: dict[str, Any] = {"events": wishes.events, "seed": wishes.seed, "checks": []}

    def tell(self) -> dict[str, Any]:
        teller = self._teller
        with teller.chapter("A broker"):
            self._start_broker()
        with teller.chapter("A shop"):
            shop = self._open_shop()
        with Traffic(shop, self._bootstrap, until=BEFORE_PROMOTION) as traffic:
            with teller.chapter("A pipeline, killed while it works"):
                first = self._run_and_kill(shop, traffic)
            with teller.chapter("Exactly once"):
                before = self._check(1, BEFORE_PROMOTION, shop)
            with teller.chapter("Dead letters"):
                self._show_dead_letters(first)
            with teller.chapter("Version 2, replayed beside version 1"):
                second = self._replay(shop)
            with teller.chapter("What would change"):
                self._diff(shop)
            with teller.chapter("Promotion"):
                self._promote(first, second)
            with teller.chapter("The rest of the day"):
                traffic.send(1.0)
                self._wait_for_pipeline(2, second)
                after = self._check(2, 1.0, shop)
        with teller.chapter("A chart"):
            self._draw(before, after)
        self._document |= {
            "directory": str(self._directory) if self._is_left else None,
            "bootstrap": self._bootstrap if self._wishes.keep else None,
            "chart": str(self._wishes.chart),
            "chapters": {title: round(seconds, 2) for title, seconds in teller.chapters.items()},
            "seconds": round(teller.seconds, 2),
        }
        if not self._wishes.keep:
            self._tell_end()
        return self._document

    @property
    def _is_left(self) -> bool:
        return self._wishes.keep or self._wishes.directory is not None

    # Chapters

    def _start_broker(self) -> None:
        _, self._bootstrap, seconds = self._processes.start_broker(self._directory / "data")
        self._processes.environment |= {"TIDELOG_BOOTSTRAP": self._bootstrap, "TIDELOG_PIPELINES": str(self._state)}
        self._processes.environment["JDK_JAVA_OPTIONS"] = (
            f"{JAVA_OPTIONS} {os.environ.get('JDK_JAVA_OPTIONS', '')}".strip()
        )
        self._teller.command("tidelog serve")
        self._teller.say(f"ready on {self._bootstrap} after {seconds:.2f} s")
        self._document["broker_start_seconds"] = round(seconds, 3)

    def _open_shop(self) -> Shop:
        shop = open_shop(self._wishes.events, self._wishes.seed, last_whole_hour(datetime.now(UTC)))
        with Admin(bootstrap_servers=self._bootstrap) as admin:
            admin.create_topics([NewTopic(topic, PARTITIONS) for topic in (ORDERS, CLICKS)]).raise_for_errors()
            admin.wait_for_topics([ORDERS, CLICKS])
        orders, clicks = (events.rows.num_rows for events in shop)
        self._teller.say(
            f"{orders:,} orders and {clicks:,} clicks of one hour, generated from seed {shop.seed}; "
            f"{shop.broken} of them are broken"
        )
        self._document["broken"] = shop.broken
        return shop

    def _run_and_kill(self, shop: Shop, traffic: Traffic) -> Process:
        for name in FILES.values():
            shutil.copy(_HERE / name, self._directory / name)
        self._teller.say("events flow into the broker while the pipeline starts, works, is killed and comes back")
        driver = self._run_pipeline()
        # Meanwhile: what must come of it.
        for version in FILES:
            self.expect(version, BEFORE_PROMOTION, shop)
        self._wait(
            lambda: self._written(RESULTS) > 0,
            driver,
            lambda: f"waiting for Spark to start; {traffic.share:.0%} of the events sent",
        )
        # Wherever in its batch the driver is by then.
        self._processes.interruption.wait(random.Random(self._wishes.seed).uniform(0.2, 1.5))
        share = traffic.share
        self._teller.command(f"kill -9 {driver.pid}")
        driver.kill()
        self._teller.say(
            f"the driver is dead, with {share:.0%} of the events sent and {self._written(RESULTS):,} results"
        )
        self._document["killed_at"] = round(share, 3)
        traffic.go_on()
        driver = self._run_pipeline()
        self._wait(lambda: traffic.is_done, driver, lambda: f"{traffic.share:.0%} of the events sent")
        self._wait_for_pipeline(1, driver)
        return driver

    def _run_pipeline(self) -> Process:
        command = ("pipeline", "run", FILES[1])
        self._teller.command(f"tidelog {' '.join(command)}")
        return self._processes.start(*command, log="pipeline-v1.log")

    def _show_dead_letters(self, driver: Process) -> None:
        sent = self._expected[1, BEFORE_PROMOTION].broken
        topic = f"{PIPELINE}.dead-letters"
        letters: list[DeadLetter] = []

        def are_there() -> bool:
            letters[:] = [letter for letter in read_dead_letters(self._bootstrap, topic) if letter.version == 1]
            return len(letters) >= sent

        # They are written after the batch that they belong to.
        self._wait(are_there, driver, lambda: f"{len(letters)} of {sent} dead letters")
        for letter in letters[:LETTERS_SHOWN]:
            self._teller.say(f"{letter.origin}: {letter.error}")
            self._teller.quote(letter.content or "(empty)")
        self.judge(
            f"{sent} broken events were sent, and {len(letters)} dead letters are in topic {topic}, "
            "each with its origin and the reason",
            [] if len(letters) == sent else [f"{len(letters)} dead letters for {sent} broken events"],
        )
        self._document["dead_letters"] = len(letters)

    def _replay(self, shop: Shop) -> Process:
        self._teller.say("version 1 counts cancelled orders; version 2 leaves them out:")
        self._teller.quote(lines_added(*((_HERE / name).read_text() for name in FILES.values())))
        command = ("pipeline", "replay", FILES[2])
        self._teller.command(f"tidelog {' '.join(command)}")
        process = self._processes.start(*command, log="pipeline-v2.log")
        self._wait_for_pipeline(2, process)
        self._teller.say(
            f"{self._sent(shop, BEFORE_PROMOTION):,} events from offset 0 into {RESULTS}.v2, while version 1 stays live"
        )
        return process

    def _diff(self, shop: Shop) -> None:
        """The two outputs by key; the command ends with 1 where they differ, as diff does."""
        command = ("pipeline", "diff", PIPELINE, "--samples", str(SAMPLES_SHOWN))
        self._teller.quote(self._command(*command, codes=(1,)))
        document = json.loads(self._processes.run(*command, "--json", deadline_s=COMMAND_DEADLINE_S).ok(1).out)
        (output,) = document["outputs"]
        first, second = (self._expected[version, BEFORE_PROMOTION].slots for version in FILES)
        expected = {
            "added": len(second.keys() - first.keys()),
            "missing": len(first.keys() - second.keys()),
            "changed": sum(first[slot] != second[slot] for slot in first.keys() & second.keys()),
        }
        found = {kind: output[kind] for kind in expected}
        self.judge(
            f"these are the same {sum(expected.values())} differences as in the plain computation",
            [] if found == expected else [f"{found} instead of {expected}"],
        )
        self._document["diff"] = found

    def _promote(self, first: Process, second: Process) -> None:
        self._teller.quote(self._command("pipeline", "promote", PIPELINE))
        second.check()
        end_s = time.monotonic() + COMMAND_DEADLINE_S
        while first.is_running:
            if time.monotonic() > end_s:
                raise DemoError(f"version 1 is still running after the promotion; see {first.log}")
            self._processes.interruption.wait(LOOK_S)
        self._teller.quote(self._command("pipeline", "history", PIPELINE))

    def _draw(self, before: Results, after: Results) -> None:
        write_chart(self._wishes.chart, before.slots, after.slots)
        self._teller.good(f"{self._wishes.chart}: revenue per minute and category, by both versions")

    # What must be

    def expect(self, version: int, share: float, shop: Shop) -> Totals:
        """The plain computation of the first events, going on from what was computed of fewer."""
        if (version, share) not in self._expected:
            before = max((done for known, done in self._expected if known == version and done < share), default=0.0)
            totals = copy.deepcopy(self._expected.get((version, before), Totals()))
            for events in shop:
                totals.add(events.topic, events.between(before, share), count_cancelled=version == 1)
                self._processes.interruption.check()
            self._expected[version, share] = totals
        return self._expected[version, share]

    def _check(self, version: int, share: float, shop: Shop) -> Results:
        """Hold what stands in the topic against the plain computation."""
        expected, found = self.expect(version, share, shop), read_results(self._bootstrap, RESULTS)
        whole = expected.whole
        self._teller.say(f"plain computation: {whole.text()}, in {len(expected.slots):,} minutes and categories")
        self.judge(
            f"topic {RESULTS} has the same for every minute and category",
            differences(found.slots, expected.slots),
        )
        if version == 1:
            self.judge(f"none of its {found.updates:,} updates was written twice", found.repeated)
        self._document[f"version_{version}"] = {
            "revenue_cents": whole.revenue_cents,
            "orders": whole.orders,
            "clicks": whole.clicks,
            "slots": len(found.slots),
            "updates": found.updates,
        }
        return found

    def judge(self, text: str, wrong: list[str]) -> None:
        if wrong:
            raise DemoError(f"a check failed: {text}: no, {shortened(wrong)}")
        self._teller.good(text)
        self._document["checks"].append(text)

    # Waiting

    def _wait_for_pipeline(self, version: int, process: Process) -> None:
        """Wait until the version has processed all that is in the topics now."""
        with Registry(self._state) as registry:
            ends = self._ends(ORDERS) | self._ends(CLICKS)
            done = 0

            def is_there() -> bool:
                nonlocal done
                runs = registry.runs(PIPELINE, version)
                processed = runs[-1].progress.processed if runs else {}
                reached = {key: processed.get(key.topic, {}).get(key.partition, 0) for key in ends}
                done = sum(min(reached[key], end) for key, end in ends.items())
                return all(reached[key] >= end for key, end in ends.items())

            total = sum(ends.values())
            self._wait(is_there, process, lambda: f"version {version} has processed {done:,} of {total:,} events")

    def _wait(self, is_there: Callable[[], bool], process: Process, words: Callable[[], str]) -> None:
        """Wait as long as what `words` say keeps changing."""
        watchdog = Watchdog(STANDSTILL_S)
        while not is_there():
            process.check()
            said = words()
            if watchdog.is_standstill(said):
                raise DemoError(f"nothing has moved for {STANDSTILL_S:.0f} s ({said}); see {process.log}")
            self._teller.progress(said)
            self._processes.interruption.wait(LOOK_S)

    def _ends(self, topic: str) -> dict[TopicPartition, int]:
        """Where the partitions of a topic end; nothing when it is not there yet."""
        with Admin(bootstrap_servers=self._bootstrap) as admin:
            found = [each for each in admin.list_topics() if each.name == topic]
            keys = [TopicPartition(topic, each.partition) for row in found for each in row.partitions]
            listed = admin.list_offsets(dict.fromkeys(keys, OffsetSpec.LATEST), isolation_level="read_committed")
            return {key: row.offset for key, row in listed.items()}

    def _written(self, topic: str) -> int:
        return sum(self._ends(topic).values())

    def _sent(self, shop: Shop, share: float) -> int:
        return sum(events.between(0.0, share).num_rows for events in shop)

    def _command(self, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        """Run a command to its end, as a user would, and return what it printed."""
        self._teller.command(f"tidelog {' '.join(arguments)}")
        began_s = time.monotonic()

        def watch() -> None:
            self._teller.progress(f"running for {time.monotonic() - began_s:.0f} s")

        return self._processes.run(*arguments, deadline_s=COMMAND_DEADLINE_S, watch=watch).ok(*codes).out

    # The end

    def _tell_end(self) -> None:
        where = f"what it wrote is in {self._directory}" if self._is_left else "everything was cleaned up"
        self._teller.say("")
        self._teller.say(f"Done in {self._teller.seconds:.0f} s; {where}. To explore by hand: tidelog demo --keep")

    def tell_how_to_go_on(self, running: list[Process]) -> None:
        (broker,) = [process.pid for process in running if process.command.startswith("tidelog serve")]
        going_on = go_on_lines(self._directory, self._bootstrap)
        stopping = [f"tidelog pipeline stop {PIPELINE}", f"kill {broker}", f"rm -r {self._directory}"]
        self._document |= {"go_on": going_on, "stop": stopping}
        self._teller.say("")
        self._teller.say(f"Done in {self._teller.seconds:.0f} s, and everything is still running. To explore by hand:")
        for line in going_on:
            self._teller.command(line)
        self._teller.say("")
        self._teller.say("To stop it, the broker last:")
        for line in stopping:
            self._teller.command(line)


def go_on_lines(directory: Path, bootstrap: str) -> list[str]:
    """What can be typed while everything is kept running."""
    return [
        f"cd {directory}",
        f"export TIDELOG_BOOTSTRAP={bootstrap} TIDELOG_PIPELINES={directory}/tidelog-pipelines",
        f"tidelog pipeline status {PIPELINE}",
        f"tidelog pipeline history {PIPELINE}",
        f"tidelog consume {RESULTS} --from-beginning --exit-at-end --max-messages 5",
        f"tidelog consume {PIPELINE}.dead-letters --from-beginning --exit-at-end --format '%h %v'",
        f"tidelog groups describe tidelog-pipeline-{PIPELINE}",
        f"tidelog replay {ORDERS} --into {ORDERS}-again --create --to 1000",
    ]


def lines_added(first: str, second: str) -> str:
    """The lines that the second file has and the first has not."""
    known = set(first.splitlines())
    return "\n".join(f"+ {line.strip()}" for line in second.splitlines() if line not in known)
