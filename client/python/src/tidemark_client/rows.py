"""The canonical bytes of rows, from which a leaf's digest of rows is made, again from the fields of an export."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any

from .prooflog import ProofFault

_HEADER = bytes.fromhex("5047434f50590aff0d0a00") + bytes(8)
_END = b"\xff\xff"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,3}))?Z", re.ASCII)
_NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Column:
    """A column of the canonical rows."""

    name: str
    type: str
    #: The field that shows it, or in parentheses the rule that computes it back.
    shown: str

    @cached_property
    def is_field(self) -> bool:
        """Whether it is the value of one field."""
        return not self.shown.startswith("(")

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The fields that it is made of."""
        return (self.shown,) if self.is_field else _RULE_FIELDS.get(self.shown, ())


_RULE_FIELDS = {
    "(sats)": ("fee_total_btc",),
    "(fee)": ("fee_rate_sat_vb", "vsize"),
    "(kind)": ("metric_value_string", "metric_value_int", "metric_value_float", "metric_value_bool"),
    "(provenance)": ("provenance_json",),
}


@dataclass(frozen=True)
class Layout:
    """The canonical rows of a dataset."""

    dataset: str
    order: tuple[int, ...]
    columns: tuple[Column, ...]
    #: Fields that repeat a column.
    repeats: tuple[tuple[str, int], ...]
    #: What names a row's partition.
    by: str

    @property
    def by_fields(self) -> tuple[str, ...]:
        """The fields that tell a row's partition."""
        return {
            "day": ("timestamp",),
            "heights": (self.columns[self.order[0]].name,),
            "snapshot": ("snapshot_at_unix_ms",),
            "vintage": ("source_id", "provenance_json"),
            "capture": ("source_id", "provenance_json", "observed_at_utc"),
        }[self.by]

    def missing(self, names: Sequence[str]) -> list[str]:
        """The fields that rows with these columns lack."""
        needed = dict.fromkeys([*self.by_fields, *(field for column in self.columns for field in column.fields)])
        return [name for name in needed if name not in names]


def layouts() -> Mapping[str, Layout]:
    """The layouts, as the list of the page on the proof log states them."""
    text = files(__package__).joinpath("rows.md").read_text()
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"- `(\w+)`, by (.*?): (.*)", line)
        if match:
            found[match[1]] = _layout(match[1], re.findall(r"`(\w+)`", match[2]), match[3])
    return found


def _layout(dataset: str, order: list[str], text: str) -> Layout:
    columns: list[Column] = []
    untyped: list[tuple[str, str]] = []
    for part in text.split(", "):
        match = re.fullmatch(r"`(\w+)`(?: = `(\w+)`| (\(\w+\)))?(?: (\w+))?", part)
        assert match, part
        untyped.append((match[1], match[2] or match[3] or match[1]))
        if match[4]:
            columns += [Column(name, match[4], shown) for name, shown in untyped]
            untyped = []
    names = [column.name for column in columns]
    repeats = {
        "timestamp": ("datetime",),
        "block_timestamp": ("datetime",),
        "snapshot_at_unix_ms": ("snapshot_at",),
    }
    found = [(field, names.index(of)) for of, fields in repeats.items() if of in names for field in fields]
    if dataset == "exchange_b_spot_trades":
        found.append(("source_event_time_utc", names.index("timestamp")))
    found += [
        (column.name, at) for at, column in enumerate(columns) if dataset.endswith("_trades") and column.shown != column.name
    ]
    by = {"etf_daily_metrics": "capture", "macro_series_metrics": "vintage", "bitcoin_mempool_state": "snapshot"}.get(
        dataset, "day" if dataset.endswith("_trades") else "heights"
    )
    return Layout(dataset, tuple(names.index(name) for name in order), tuple(columns), tuple(found), by)


# Cells


def integer(cell: Any) -> int:
    """An integer, or the ms since 1970 of a time."""
    if isinstance(cell, str):
        if cell.isdigit() and cell.isascii():
            return int(cell)
        match = _TIME.fullmatch(cell)
        if match:
            try:
                cell = datetime.fromisoformat(f"{match[1]}.{(match[2] or '0'):0<3}+00:00")
            except ValueError as error:
                raise ProofFault(f"{cell!r} is no time") from error
        elif re.fullmatch(r"-?[0-9]+", cell):
            return int(cell)
    if isinstance(cell, datetime):
        found, rest = divmod(cell - _EPOCH, timedelta(milliseconds=1))
        if not rest:
            return found
    if isinstance(cell, int) and not isinstance(cell, bool):
        return cell
    raise ProofFault(f"{cell!r:.80} is not an integer")


def _instant(ms: int) -> str:
    seconds, rest = divmod(ms, 1000)
    day, second = divmod(seconds, 86_400)
    return f"{_day(day)}T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.{rest:03}Z"


@lru_cache(64)
def _day(number: int) -> str:
    return (_EPOCH + timedelta(days=number)).date().isoformat()


def number(cell: Any) -> float:
    """A finite double."""
    if isinstance(cell, str) and _NUMBER.fullmatch(cell):
        cell = float(cell)
    if isinstance(cell, (int, float)) and not isinstance(cell, bool) and abs(cell) <= 1.7976931348623157e308:
        return float(cell)
    raise ProofFault(f"{cell!r:.80} is not a number")


def flag(cell: Any) -> bool:
    """0 or 1."""
    if cell in (True, 1, "1", "true"):
        return True
    if cell in (False, 0, "0", "false"):
        return False
    raise ProofFault(f"{cell!r:.80} is neither 0 nor 1")


def _text(cell: Any) -> bytes:
    if not isinstance(cell, str):
        raise ProofFault(f"{cell!r:.80} is not a text")
    return cell.encode()


def _of_integer(cell: Any) -> bytes:
    value = integer(cell)
    if not -(2**63) <= value < 2**63:
        raise ProofFault(f"{value} is not an integer of 64 bits")
    return struct.pack(">iq", 8, value)


_ENCODERS: Mapping[str, Callable[[Any], bytes]] = {
    "int8": _of_integer,
    "float8": lambda cell: struct.pack(">id", 8, number(cell)),
    "bool": lambda cell: b"\x00\x00\x00\x01" + bytes([flag(cell)]),
    "text": lambda cell: struct.pack(">i", len(data := _text(cell))) + data,
}


def _whole(value: float, scale: float, what: str) -> int:
    found = round(value * scale)
    if found / scale != value:
        raise ProofFault(f"{value!r} is not {what}")
    return found


def _kind(text: Any, whole: Any, real: Any, yes: Any) -> str:
    """Which kind of value a metric has, by its channels, which must be those of its text."""
    if text is None:
        if (whole, real, yes) != (None, None, None):
            raise ProofFault("a metric has a value without its text")
        return "null"
    if yes is not None:
        if whole is not None or real is not None or flag(yes) != (text == "true"):
            raise ProofFault(f"{yes!r} is not the value of {text!r}")
        return "bool"
    if real is None:
        if whole is not None:
            raise ProofFault(f"{whole!r} is a value of {text!r} without a float")
        return "string"
    if number(real) != number(text):
        raise ProofFault(f"{real!r} is not the value of {text!r}")
    if whole is None:
        return "float"
    if integer(whole) != number(text):
        raise ProofFault(f"{whole!r} is not the value of {text!r}")
    return "int"


_ADDED = re.compile(r'"artifact_id":"([0-9a-f]{64})","artifact_sha256":"([0-9a-f]{64})",(?="fetch_method":)')
_VINTAGE = r'"realtime_start":"(\d{4}-\d\d-\d\d)"'
_ARTIFACT = r'"artifact_sha256":"([0-9a-f]{64})"'
_ADDED_TIME = re.compile(r'"last_updated_utc":"[^"]*",(?="realtime_start":)')


def _provenance(text: Any, partition: str, document: str | None) -> Any:
    """The provenance as it was proved: without what the service adds, which must name the partition's document."""
    if not isinstance(text, str):
        return text
    added = _ADDED.search(text)
    if not added and document is not None and '"fetch_method":' in text:
        raise ProofFault("a row's provenance names no document")
    if added and document is not None:
        uri = json.loads(text).get("source_uri")
        made = hashlib.sha256(f"{partition.split(':', maxsplit=1)[0]}|{uri}|{document}".encode()).hexdigest()
        if (added[1], added[2]) != (made, document):
            raise ProofFault(f"a row's provenance names the document {added[2]}, and the leaf {document}")
    return _ADDED_TIME.sub("", _ADDED.sub("", text, count=1), count=1)


# Rows


@dataclass(frozen=True)
class Expected:
    """A partition whose rows are expected."""

    rows: int | None
    document: str | None


class RowDigests:
    """Divides rows by partition, and computes the digest of each.

    Rows that come in the order of their offsets are hashed at once. Of a partition whose rows do not, the digest is None: feed
    all rows again with its name in ``keep``.
    """

    def __init__(
        self, layout: Layout, expected: Mapping[str, Expected], names: Sequence[str], keep: Collection[str] = ()
    ) -> None:
        self._layout = layout
        self._expected = expected
        place = {name: at for at, name in enumerate(names)}
        self._count = struct.pack(">h", len(layout.columns))
        self._steps = [(column, [place[field] for field in column.fields], _ENCODERS[column.type]) for column in layout.columns]
        self._by = [place[field] for field in layout.by_fields]
        self._repeats = [(place[field], of) for field, of in layout.repeats if field in place]
        self._partition_of = self._finder()
        self._keep = frozenset(keep)
        self._kept: dict[str, list[tuple[tuple[Any, ...], bytes]]] = {}
        self._hashes: dict[str, Any] = {}
        self._last: dict[str, tuple[Any, ...] | None] = {}
        #: Rows by partition.
        self.counts: dict[str, int] = {}
        self.strays = 0

    def add(self, row: Sequence[Any]) -> None:
        """Adds a row, its cells by the names given. Raises ProofFault for a cell that does not fit."""
        partition = self._partition_of([row[at] for at in self._by])
        expected = self._expected.get(partition) if partition is not None else None
        if partition is None or expected is None:
            self.strays += 1
            return
        columns = self._layout.columns
        values: list[Any] = []
        data = self._count
        for column, places, encode in self._steps:
            value = row[places[0]] if column.is_field else self._value(column, [row[at] for at in places], partition, expected)
            values.append(value)
            data += b"\xff\xff\xff\xff" if value is None else encode(value)
        for place, of in self._repeats:
            self._compare(row[place], values[of], columns[of])
        offset = tuple(_text(values[at]) if columns[at].type == "text" else integer(values[at]) for at in self._layout.order)
        count = self.counts[partition] = self.counts.get(partition, 0) + 1
        if partition in self._keep:
            if expected.rows is None or count <= expected.rows:
                self._kept.setdefault(partition, []).append((offset, data))
            return
        last = self._last.get(partition, ())
        if last is None or offset <= last:
            self._last[partition] = None
            return
        self._last[partition] = offset
        if partition not in self._hashes:
            self._hashes[partition] = hashlib.sha256(_HEADER)
        self._hashes[partition].update(data)

    def digest(self, partition: str) -> str | None:
        """sha256 of a partition's rows in the order of their offsets."""
        if partition not in self._keep:
            if self._last[partition] is None:
                return None
            found = self._hashes[partition]
        else:
            found = hashlib.sha256(_HEADER)
            for _, data in sorted(self._kept.pop(partition)):
                found.update(data)
        found.update(_END)
        return str(found.hexdigest())

    @staticmethod
    def _value(column: Column, cells: list[Any], partition: str, expected: Expected) -> Any:
        match column.shown:
            case "(sats)":
                return _whole(number(cells[0]), 1e8, "an amount in whole satoshis")
            case "(fee)":
                return _whole(number(cells[0]), integer(cells[1]), "a rate of whole satoshis")
            case "(kind)":
                return _kind(*cells)
            case "(partition)":
                return partition
            case "(vintage)":
                return partition.split(":")[1]
            case "(provenance)":
                return _provenance(cells[0], partition, expected.document)
        return cells[0]

    @staticmethod
    def _compare(cell: Any, value: Any, column: Column) -> None:
        if cell is None and value is None:
            return
        if column.type == "float8":
            is_same = cell is not None and value is not None and number(cell) == number(value)
        elif isinstance(cell, str):  # As the service writes the instant.
            is_same = value is not None and cell == _instant(integer(value))
        else:
            is_same = cell is not None and value is not None and integer(cell) == integer(value)
        if not is_same:
            raise ProofFault(f"{cell!r:.80} does not repeat the value of {column.name}")

    def _finder(self) -> Callable[[list[Any]], str | None]:
        known = self._expected
        if self._layout.by == "day":
            # File days of exchange B begin at 16:00 UTC of the day before.
            shift = 28_800_000 if self._layout.dataset == "exchange_b_spot_trades" else 0
            # All are of one instrument, which the key of another than the default begins with.
            instrument = next(iter(known), "")[:-10]
            return lambda cells: instrument + _day((integer(cells[0]) + shift) // 86_400_000)
        if self._layout.by == "snapshot":
            return lambda cells: str(integer(cells[0]))
        if self._layout.by == "heights":
            ranges = sorted((*_heights(key), key) for key in known)
            starts = [first for first, _, _ in ranges]

            def by_height(cells: list[Any]) -> str | None:
                height = integer(cells[0])
                at = bisect_right(starts, height) - 1
                return ranges[at][2] if at >= 0 and height <= ranges[at][1] else None

            return by_height
        if self._layout.by == "vintage":
            return lambda cells: f"{cells[0]}:{_found(_VINTAGE, cells[1])}"
        documents = {(":".join(key.split(":")[:2]), one.document): key for key, one in known.items()}

        def by_capture(cells: list[Any]) -> str | None:
            day = (_EPOCH + timedelta(milliseconds=integer(cells[2]))).date().isoformat()
            key = f"{cells[0]}:{day}"
            return documents.get((key, _found(_ARTIFACT, cells[1])), key)

        return by_capture


def _heights(key: str) -> tuple[int, int]:
    first, _, last = key.partition("-")
    return int(first), int(last or first)


def _found(pattern: str, text: Any) -> str | None:
    match = re.search(pattern, text) if isinstance(text, str) else None
    return match[1] if match else None


# Files


def csv_rows(pieces: Iterable[bytes]) -> Iterator[list[str | None]]:
    """The lines of a CSV file (RFC 4180, LF): nothing is null, ``""`` is an empty text."""
    rest = b""
    line = 0
    for piece in pieces:
        rest += piece
        at = 0
        while (end := _line_end(rest, at)) >= 0:
            line += 1
            yield _cells(rest[at:end], line)
            at = end + 1
        rest = rest[at:]
        if len(rest) > 1 << 26:
            raise ProofFault(f"line {line + 1} never ends")
    if rest:
        raise ProofFault(f"line {line + 1} has no end")


def _line_end(data: bytes, start: int) -> int:
    end = data.find(b"\n", start)
    quotes = 0
    counted = start
    while end >= 0:
        quotes += data.count(b'"', counted, end)
        if quotes % 2 == 0:
            return end
        counted, end = end, data.find(b"\n", end + 1)
    return -1


_CELL = re.compile(r'(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|$)')


def _cells(data: bytes, line: int) -> list[str | None]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ProofFault(f"line {line} is not UTF-8") from error
    if '"' not in text:
        if "\r" in text:
            raise ProofFault(f"line {line} has a carriage return outside quotes")
        return [cell or None for cell in text.split(",")]
    found: list[str | None] = []
    at = 0
    while True:
        match = _CELL.match(text, at)
        if not match:
            raise ProofFault(f"line {line} has a quote in the wrong place")
        found.append(match[1].replace('""', '"') if match[1] is not None else match[2] or None)
        at = match.end()
        if match[3] == "":
            if at != len(text):
                raise ProofFault(f"line {line} has a quote in the wrong place")
            return found


__all__ = ["Expected", "Layout", "RowDigests", "csv_rows", "layouts"]
