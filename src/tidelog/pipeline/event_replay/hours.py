"""Quiet hours: the times of day when a replay may run. Plain arithmetic; the caller supplies the clock.

What always holds: times of day are local wall-clock time, and hours may span midnight. Callers poll instead of sleeping
until the start, so that they follow changes of the clock, including daylight saving time.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass

_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


def parse_time_of_day(text: str) -> datetime.time:
    """`02:00`; raises ValueError."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a time of day; write hours and minutes, such as 02:00")
    return datetime.time(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class QuietHours:
    start: datetime.time
    end: datetime.time

    @classmethod
    def parse(cls, text: str) -> QuietHours:
        """`01:00-05:00`; raises ValueError."""
        start, separator, end = text.partition("-")
        if not separator:
            raise ValueError(f"{text!r} is not a range of hours; write two times of day, such as 01:00-05:00")
        hours = cls(parse_time_of_day(start), parse_time_of_day(end))
        if hours.start == hours.end:
            raise ValueError(f"{text!r} starts and ends at the same time")
        return hours

    def contain(self, now: datetime.datetime) -> bool:
        time = now.time()
        if self.start < self.end:
            return self.start <= time < self.end
        return time >= self.start or time < self.end

    def next_start(self, now: datetime.datetime) -> datetime.datetime:
        return next_time(self.start, now)

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M}"


def next_time(time_of_day: datetime.time, now: datetime.datetime) -> datetime.datetime:
    """The next moment with this time of day; now, if it is that minute."""
    today = now.replace(hour=time_of_day.hour, minute=time_of_day.minute, second=0, microsecond=0)
    if today <= now < today + datetime.timedelta(minutes=1):
        return now
    return today if today > now else today + datetime.timedelta(days=1)
