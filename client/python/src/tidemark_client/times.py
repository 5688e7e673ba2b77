"""Times and intervals as callers write them, in the form that the service takes."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeAlias

from .errors import SettingError

#: A date, a datetime, a pandas or numpy time, or ISO text. Without a zone it is UTC.
Time: TypeAlias = Any


def moment(value: Time, name: str = "time") -> datetime:
    """A time as an aware datetime in UTC, cut up to a whole millisecond.

    Rows have milliseconds, so that a finer bound and the next millisecond select the same rows.

    >>> moment("2024-05-04 12:00").isoformat()
    '2024-05-04T12:00:00+00:00'
    >>> moment(date(2024, 5, 4)).isoformat()
    '2024-05-04T00:00:00+00:00'
    >>> moment("2024-05-04T12:00:00.0001+02:00").isoformat()
    '2024-05-04T10:00:00.001000+00:00'

    Raises SettingError for a number, because its unit is not known, and for what is no time.
    """
    # NaT is a datetime that equals nothing.
    if isinstance(value, datetime) and value != value:
        raise SettingError(f"{name} is {value!r}: give a time")
    nanoseconds = int(getattr(value, "nanosecond", 0))
    if type(value).__name__ == "datetime64":
        text = str(value)
        digits = re.search(r"\.\d{6}(\d{3})", text)
        nanoseconds = int(digits[1]) if digits else 0
        value = re.sub(r"(\.\d{6})\d+", r"\1", text)
    if isinstance(value, str):
        cut = re.sub(r"(\.\d{6})(\d+)", r"\1", value.strip())
        nanoseconds = nanoseconds or int(cut != value.strip())
        try:
            value = datetime.fromisoformat(cut)
        except ValueError as error:
            raise SettingError(f"{name} is {value!r}: write it as 2024-05-04 or 2024-05-04T12:00:00Z") from error
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        raise SettingError(f"{name} is {value!r}: give a date, a datetime, a pandas or numpy time, or ISO text")
    if hasattr(value, "to_pydatetime"):
        value = value.to_pydatetime(warn=False)
    found: datetime = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    beyond = found.microsecond % 1000
    return found + timedelta(microseconds=1000 - beyond) if beyond or nanoseconds else found


def iso(value: Time, name: str = "time") -> str:
    """A time as the service writes it.

    >>> iso("2024-05-04")
    '2024-05-04T00:00:00.000Z'
    """
    return moment(value, name).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3].rjust(23, "0") + "Z"


def is_midnight(value: datetime) -> bool:
    """Whether a UTC day begins then."""
    return (value.hour, value.minute, value.second, value.microsecond) == (0, 0, 0, 0)


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def seconds(size: int | str | timedelta) -> int:
    """The seconds of an interval, such as ``"1h"``, ``90`` or a timedelta.

    >>> seconds("5m"), seconds(timedelta(days=1))
    (300, 86400)
    """
    if isinstance(size, timedelta):
        total = size.total_seconds()
        if total != int(total):
            raise SettingError(f"the interval {size!r} is not a whole number of seconds")
        return int(total)
    if isinstance(size, str):
        found = re.fullmatch(r"([0-9]+)([smhdw])", size)
        if not found:
            raise SettingError(f'the interval is {size!r}: write it as "90s", "5m", "4h", "1d" or "1w"')
        return int(found[1]) * _UNITS[found[2]]
    return int(size)
