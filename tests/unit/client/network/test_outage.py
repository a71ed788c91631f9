"""Outages are told when they begin, now and then, and when they end."""

from __future__ import annotations

import pytest

from tidelog.client.errors import ConnectError
from tidelog.client.network.outage import OutageLog

ERROR = ConnectError("cannot reach broker at 127.0.0.1:1")


def test_an_outage_is_told_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    outage = OutageLog("billing")
    for second in range(3600):
        outage.failed(ERROR, 1000.0 + second)
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "client billing can't reach any broker, retrying: cannot reach broker at 127.0.0.1:1"
    after_s = [int(text.split(" for ")[1].split()[0]) for text in told[1:]]
    assert after_s == [10, 30, 70, 150, 310, 630, 1230, 1830, 2430, 3030]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_its_end_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    outage = OutageLog("billing")
    outage.reached(1.0)
    assert not caplog.records
    outage.failed(ERROR, 2.0)
    outage.reached(5.5)
    outage.reached(6.0)
    assert [record.getMessage() for record in caplog.records][1:] == [
        "client billing has reached a broker again after 3.5 s"
    ]
    outage.failed(ERROR, 7.0)
    assert "retrying" in caplog.records[-1].getMessage()
