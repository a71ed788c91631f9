"""What the story expects is the plain computation, whether it was made at once or goes on from an earlier one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tidelog.common.interruption import Interruption
from tidelog.demo.processes import DemoError, Processes
from tidelog.demo.shop import open_shop
from tidelog.demo.story import Story, Wishes
from tidelog.demo.telling import Teller
from tidelog.demo.totals import Totals

SHOP = open_shop(4000, 5, datetime(2026, 3, 1, 9, tzinfo=UTC))


@pytest.fixture
def story(tmp_path: Path) -> Story:
    wishes = Wishes(4000, 5, tmp_path, tmp_path / "chart.png", keep=False, quietly=True)
    return Story(wishes, Teller(quietly=True), Processes(tmp_path, Interruption()), tmp_path)


@pytest.mark.parametrize("version", [1, 2])
def test_expectations_go_on_from_earlier_ones(story: Story, version: int) -> None:
    earlier = story.expect(version, 0.6, SHOP)
    later = story.expect(version, 1.0, SHOP)
    for found, share in ((earlier, 0.6), (later, 1.0)):
        whole = Totals()
        for events in SHOP:
            whole.add(events.topic, events.between(0.0, share), count_cancelled=version == 1)
        assert found == whole
    assert story.expect(version, 0.6, SHOP) is earlier


def test_a_check_that_fails_ends_the_demo(story: Story) -> None:
    story.judge("all is as it must be", [])
    with pytest.raises(DemoError, match="all is as it must be: no, one; two; three and 1 more"):
        story.judge("all is as it must be", ["one", "two", "three", "four"])
