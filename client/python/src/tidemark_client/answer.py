"""The rows of one answer, whole and checked, in the forms that Python users take."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import io
import json
import os
import re
import struct
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .errors import AlteredAnswerError, IncompleteAnswerError, SettingError, UnknownAnswerError
from .extras import has, need
from .http import Response, check_body

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars
    import pyarrow

ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
#: Answers of more bytes lie in a temporary file.
IN_MEMORY = 128 << 20
_DTYPES = ("int64", "float64", "string", "bool01", "timestamp_utc", "uuid", "json")
#: The column that the index of a pandas frame takes, the first that exists.
_INDEX = ("datetime", "observed_at_utc", "aligned_at_utc", "snapshot_at")
TimeUnit: TypeAlias = Literal["ms", "us", "ns"]


class Row(dict[str, Any]):
    """A row by its columns. ``attrs`` says where it is from, as that of a pandas Series does."""

    attrs: Mapping[str, Any]


@dataclass(frozen=True)
class Field:
    """A column: its name and the service's dtype."""

    name: str
    dtype: str
    nullable: bool = True


@dataclass(frozen=True)
class Head:
    """What an answer says besides its rows."""

    sources: tuple[str, ...] = ()
    mode: str | None = None
    schema: tuple[Field, ...] = ()
    warnings: tuple[Mapping[str, Any], ...] = ()
    rights: str | None = None
    rights_provisional: bool = False
    synthetic: bool = False
    checkpoint: str | None = None
    request_id: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def head_of(response: Response) -> Head:
    """The envelope in the headers of an answer. Raises UnknownAnswerError where this release does not know it."""
    headers = response.headers

    def listed(name: str) -> list[Any]:
        try:
            found = json.loads(headers[name])
        except (KeyError, ValueError) as error:
            raise UnknownAnswerError(f"The answer has no {name} that this client reads") from error
        if not isinstance(found, list):
            raise UnknownAnswerError(f"The answer has another {name} than this client reads")
        return found

    schema = tuple(Field(str(one["name"]), str(one["dtype"])) for one in listed("x-svc-schema"))
    for one in schema:
        if one.dtype not in _DTYPES:
            raise UnknownAnswerError(f"The column {one.name} has the dtype {one.dtype}, which this client does not know")
    note = headers.get("x-svc-checkpoint")
    extra = {
        name: json.loads(headers[header]) if reads else headers[header]
        for name, header, reads in (
            ("columns", "x-svc-columns", True),
            ("grid_seconds", "x-svc-grid-seconds", True),
            ("freshness", "x-svc-freshness", True),
            ("instrument", "x-svc-instrument", False),
            ("as_of", "x-svc-as-of", False),
        )
        if header in headers
    }
    return Head(
        sources=tuple(listed("x-svc-sources")),
        mode=headers.get("x-svc-mode"),
        schema=schema,
        warnings=tuple(listed("x-svc-warnings")),
        rights=headers.get("x-svc-rights-state"),
        rights_provisional=headers.get("x-svc-rights-provisional") == "true",
        synthetic=headers.get("x-svc-synthetic") == "true",
        checkpoint=base64.b64decode(note).decode() if note else None,
        request_id=headers.get("x-request-id"),
        extra=extra,
    )


class Spool:
    """Bytes in memory, or where there are many, in a temporary file that goes with this object."""

    def __init__(self) -> None:
        self._memory: io.BytesIO | None = io.BytesIO()
        self._file: Any = None
        self.path: str | None = None
        self.size = 0

    def write(self, data: bytes) -> None:
        """Adds bytes."""
        self.size += len(data)
        if self._memory is not None and self.size > IN_MEMORY:
            number, self.path = tempfile.mkstemp(prefix="tidemark-", suffix=".arrows")
            weakref.finalize(self, _forget, self.path, os.getpid())
            self._file = os.fdopen(number, "wb")
            self._file.write(self._memory.getbuffer())
            self._memory = None
        (self._memory or self._file).write(data)

    def end(self) -> None:
        """After the last byte."""
        if self._file:
            self._file.close()

    def buffer(self) -> memoryview | None:
        """The bytes, where they are in memory."""
        return self._memory.getbuffer() if self._memory is not None else None

    def tail(self, count: int) -> bytes:
        """The last bytes."""
        if self._memory is not None:
            return bytes(self._memory.getbuffer()[-count:])
        with open(str(self.path), "rb") as file:
            file.seek(max(0, self.size - count))
            return file.read()

    def sha256(self, until: int) -> str:
        """The digest of the first bytes."""
        if self._memory is not None:
            return hashlib.sha256(self._memory.getbuffer()[:until]).hexdigest()
        digest = hashlib.sha256()
        with open(str(self.path), "rb") as file:
            while until > 0 and (data := file.read(min(until, 1 << 20))):
                digest.update(data)
                until -= len(data)
        return digest.hexdigest()


def _forget(path: str, pid: int) -> None:
    if os.getpid() == pid:  # Not in a fork, which ends before its parent.
        Path(path).unlink(missing_ok=True)


def arrow_end(spool: Spool) -> tuple[int, str]:
    """The row count and the digest that the last batch of an Arrow stream states, once the bytes before it match.

    Raises IncompleteAnswerError where the stream was cut, AlteredAnswerError where its bytes are others.
    """
    tail = spool.tail(1 << 14)
    if not tail.endswith(b"\xff\xff\xff\xff\x00\x00\x00\x00"):
        raise IncompleteAnswerError("The Arrow stream broke off: it has no end marker")
    at = len(tail) - 8
    while (at := tail.rfind(b"\xff\xff\xff\xff", 0, at)) >= 0:
        message = tail[at:-8]
        if len(message) == 8 + int.from_bytes(message[4:8], "little") and b"row_count" in message:
            break
    else:
        raise IncompleteAnswerError("The Arrow stream broke off: its last batch does not state a digest")
    digest = re.search(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])", message)
    counts = {int(found) for found in re.findall(rb"(?<=\x00)[0-9]{1,15}(?=\x00)", message)}
    if not digest or len(counts) != 1:
        raise IncompleteAnswerError("The last batch of the Arrow stream states no digest that this client reads")
    found = spool.sha256(spool.size - len(message) - 8)
    if found != digest[0].decode():
        raise AlteredAnswerError(f"The Arrow stream has the sha256 {found}, and it states {digest[0].decode()}")
    return counts.pop(), found


class Answer:
    """Rows that arrived whole and have the digest that the service states.

    Ask for the form that you use: ``df()``, ``pl()``, ``arrow()``, ``duckdb()``, ``to_parquet(path)``, ``batches()``, or
    iterate over rows as dicts. Integers are exact, flags are booleans, times are UTC in microseconds, nulls stay nulls.
    """

    def __init__(
        self,
        head: Head,
        *,
        spool: Spool | None = None,
        rows: Sequence[Mapping[str, Any]] = (),
        row_count: int | None = None,
        sha256: str | None = None,
        rows_sha256: str | None = None,
    ) -> None:
        self._head = head
        self._spool = spool
        self._rows = rows
        self._shift: timedelta | None = None
        self.row_count: int = len(rows) if row_count is None else row_count
        #: sha256 of the bytes that the service sent; None of an empty answer that was none.
        self.sha256 = sha256
        #: Of a frame: the digest of its cells, the same for as long as nothing that they depend on changes.
        self.rows_sha256 = rows_sha256

    @property
    def sources(self) -> tuple[str, ...]:
        """The datasets."""
        return self._head.sources

    @property
    def instrument(self) -> str | None:
        """The instrument, unless it is the default."""
        return self._head.extra.get("instrument")

    @property
    def mode(self) -> str | None:
        """``native`` or ``aligned_1s``; None of a frame."""
        return self._head.mode

    @property
    def schema(self) -> tuple[Field, ...]:
        """The columns, in order."""
        return self._head.schema

    @property
    def warnings(self) -> tuple[Mapping[str, Any], ...]:
        """The service's warnings: ``code``, ``message``, ``details``."""
        return self._head.warnings

    @property
    def rights(self) -> str | None:
        """The right under which the rows are served."""
        return self._head.rights

    @property
    def rights_provisional(self) -> bool:
        """Whether that right is temporary."""
        return self._head.rights_provisional

    @property
    def synthetic(self) -> bool:
        """Whether the rows are part of the sample."""
        return self._head.synthetic

    @property
    def checkpoint(self) -> str | None:
        """The signed checkpoint of the proof log that the rows were read under."""
        return self._head.checkpoint

    @property
    def request_id(self) -> str | None:
        """The id of the request in the service's log."""
        return self._head.request_id

    @property
    def extra(self) -> Mapping[str, Any]:
        """Of a frame ``columns``, ``grid_seconds`` and ``as_of``; of aligned rows ``freshness``."""
        return self._head.extra

    def __len__(self) -> int:
        return self.row_count

    def __iter__(self) -> Iterator[Row]:
        """Rows as dicts: times as datetimes, flags as booleans."""
        attrs = self._attrs
        for cells in self._cells():
            row = Row(cells)
            row.attrs = attrs
            yield row

    def _cells(self) -> Iterator[Mapping[str, Any]]:
        if self._spool is None:
            yield from self._shifted_rows()
        elif has("pyarrow"):
            for batch in self.batches():
                yield from batch.to_pylist()
        else:
            yield from self.pl().iter_rows(named=True)

    @property
    def _attrs(self) -> dict[str, Any]:
        """What ``lineage(row)`` reads."""
        own = {"tidemark_instrument": self.instrument} if self.instrument is not None else {}
        return {"tidemark_sources": list(self.sources), **own}

    def arrow(self, time_unit: TimeUnit = "us") -> pyarrow.Table:
        """A pyarrow Table. Needs the extra ``arrow``."""
        pa = need("pyarrow", "arrow()")
        if self._spool is None:
            types = _arrow_types(pa, time_unit)
            columns = {one.name: [row[one.name] for row in self._shifted_rows()] for one in self.schema}
            fields = [pa.field(one.name, types[one.dtype], one.nullable) for one in self.schema]
            table = pa.table(columns, schema=pa.schema(fields))
        else:
            with self._open(pa) as reader:
                table = self._cast(pa, reader.read_all(), time_unit)
        self._count(table.num_rows)
        found: pyarrow.Table = table
        return found

    def batches(self, time_unit: TimeUnit = "us") -> Iterator[pyarrow.RecordBatch]:
        """Record batches one after another, in the memory of one. Needs the extra ``arrow``."""
        pa = need("pyarrow", "batches()")
        if self._spool is None:
            yield from self.arrow(time_unit).to_batches()
            return
        with self._open(pa) as reader:
            for batch in reader:
                if batch.num_rows:
                    yield from self._cast(pa, pa.Table.from_batches([batch]), time_unit).to_batches()

    def df(
        self,
        time_unit: TimeUnit = "us",
        ints: Literal["nullable", "float"] = "nullable",
        index: str | bool | None = None,
    ) -> pandas.DataFrame:
        """A pandas DataFrame, its index the rows' time in UTC. Needs the extra ``pandas``.

        ``ints="nullable"``: integers and flags that may be null are ``Int64`` and ``boolean``; ``"float"``: floats and
        objects, as pandas makes them itself. ``index``: another column, or False for none.
        """
        need("pandas", "df()")
        need("pyarrow", "df()", "pandas")
        frame = data_frame(self.arrow(time_unit), ints=ints, index=index)
        frame.attrs.update(self._attrs)
        found: pandas.DataFrame = frame
        return found

    def pl(self, time_unit: TimeUnit = "us") -> polars.DataFrame:
        """A polars DataFrame. Needs the extra ``polars``."""
        pl = need("polars", "pl()")
        types = {
            "int64": pl.Int64,
            "float64": pl.Float64,
            "bool01": pl.Boolean,
            "timestamp_utc": pl.Datetime(time_unit, "UTC"),
        }
        if self._spool is None:
            columns = {one.name: [row[one.name] for row in self._shifted_rows()] for one in self.schema}
            frame = pl.DataFrame(columns, schema={one.name: types.get(one.dtype, pl.String) for one in self.schema})
        else:
            held = self._spool.buffer()
            frame = pl.read_ipc_stream(io.BytesIO(held) if held is not None else self._spool.path)
            casts = [pl.col(one.name).cast(types[one.dtype]) for one in self.schema if one.dtype in ("bool01", "timestamp_utc")]
            frame = frame.with_columns(casts)
            if self._shift is not None:
                frame = frame.with_columns(pl.col("datetime") + self._shift)
        self._count(frame.height)
        found: polars.DataFrame = frame
        return found

    def duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """A DuckDB relation over the rows. Needs the extra ``duckdb``.

        Times are ``TIMESTAMP WITH TIME ZONE``, shown in the zone of the connection: UTC, unless you give your own.
        """
        return (connection or duckdb_connection("duckdb()")).from_arrow(self.arrow())

    def to_parquet(
        self, path: str | os.PathLike[str], compression: Literal["zstd", "snappy", "gzip"] = "zstd", time_unit: TimeUnit = "us"
    ) -> Path:
        """Writes a Parquet file, in the memory of one batch. Needs the extra ``arrow`` or ``polars``.

        The file appears under its name when it is complete.
        """
        if not has("pyarrow") and has("polars"):
            return written(path, lambda part: self.pl(time_unit).write_parquet(part, compression=compression))
        pa, parquet = need("pyarrow", "to_parquet()"), need("pyarrow.parquet", "to_parquet()")

        def write(part: Path) -> None:
            empty = self._cast(pa, self._empty(pa), time_unit) if self._spool else self.arrow(time_unit)
            with parquet.ParquetWriter(part, empty.schema, compression=compression) as writer:
                for batch in self.batches(time_unit):
                    writer.write_batch(batch)

        return written(path, write)

    def verify(self) -> str:
        """Computes a frame's ``rows_sha256`` anew from its cells, and returns it. Raises AlteredAnswerError."""
        if self.rows_sha256 is None:
            raise SettingError("Only frames have a digest of their cells")
        digest = hashlib.sha256()
        encoders = [_CELLS[one.dtype] for one in self.schema]
        for row in self:
            digest.update(
                b"".join(
                    b"\xff\xff\xff\xff" if cell is None else encode(cell)
                    for encode, cell in zip(encoders, row.values(), strict=True)
                )
            )
        if digest.hexdigest() != self.rows_sha256:
            raise AlteredAnswerError(f"The cells have the sha256 {digest.hexdigest()}, and the frame states {self.rows_sha256}")
        return digest.hexdigest()

    def __repr__(self) -> str:
        where = " ".join(filter(None, [", ".join(self.sources), self.instrument, f"({self.mode})" if self.mode else ""]))
        marks = "".join([" synthetic" * self.synthetic, f" {len(self.warnings)} warnings" * bool(self.warnings)])
        return f"<Answer {where}: {self.row_count} rows, {len(self.schema)} columns{marks}>"

    def _repr_html_(self) -> str:
        """For notebooks. Words of vendors are escaped."""

        def cells(kind: str, values: Iterable[object]) -> str:
            return "".join(f"<{kind}>{html.escape(_shown(value))}</{kind}>" for value in values)

        rows = "".join(f"<tr>{cells('td', row.values())}</tr>" for row in islice(self, 10))
        notes = "".join(
            f"<li>{html.escape(str(one.get('code')))}: {html.escape(str(one.get('message')))}</li>" for one in self.warnings
        )
        return (
            f"<p><code>{html.escape(repr(self))}</code></p><ul>{notes}</ul>"
            f"<table><thead><tr>{cells('th', (one.name for one in self.schema))}</tr></thead><tbody>{rows}</tbody></table>"
        )

    def _open(self, pa: Any) -> Any:
        assert self._spool is not None
        held = self._spool.buffer()
        return pa.ipc.open_stream(pa.py_buffer(held) if held is not None else pa.OSFile(self._spool.path))

    def _empty(self, pa: Any) -> Any:
        with self._open(pa) as reader:
            return reader.schema.empty_table()

    def _cast(self, pa: Any, table: Any, time_unit: TimeUnit) -> Any:
        types = _arrow_types(pa, time_unit)
        for place, one in enumerate(self.schema):
            if one.dtype not in ("bool01", "timestamp_utc"):
                continue
            column = table.column(place).cast(types[one.dtype])
            if self._shift is not None and one.name == "datetime":
                column = need("pyarrow.compute", "arrow()").add(column, pa.scalar(self._shift, pa.duration(time_unit)))
            table = table.set_column(place, table.schema.field(place).with_type(types[one.dtype]), column)
        return table

    def _count(self, rows: int) -> None:
        if rows != self.row_count:
            raise AlteredAnswerError(f"The answer has {rows} rows, and the service states {self.row_count}")

    def _shifted_rows(self) -> Iterable[Mapping[str, Any]]:
        return self._rows if self._shift is None else (self._shifted(row) for row in self._rows)

    def _shifted(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        return row if self._shift is None else {**row, "datetime": row["datetime"] + self._shift}

    def labelled(self, shift: timedelta) -> Answer:
        """Klines whose time is the end of their bucket."""
        self._shift = shift
        return self

    def derived(self, schema: Sequence[Field], rows: Sequence[Mapping[str, Any]]) -> Answer:
        """Another arrangement of the same rows."""
        return Answer(replace(self._head, schema=tuple(schema)), rows=rows, sha256=self.sha256)


def data_frame(table: Any, *, ints: Literal["nullable", "float"] = "nullable", index: str | bool | None = None) -> Any:
    """A pyarrow Table as a pandas DataFrame, as ``Answer.df`` says."""
    pd = need("pandas", "df()")
    kinds = {"int64": pd.Int64Dtype(), "int32": pd.Int32Dtype(), "bool": pd.BooleanDtype()}
    nullable = [one for one in table.schema if one.nullable] if ints == "nullable" else []
    own = {one.name: kinds[str(one.type)] for one in nullable if str(one.type) in kinds}
    # Columns of the others become numpy arrays; those of `own` would become floats there.
    frame = table.drop_columns(list(own)).replace_schema_metadata(None).to_pandas()
    for place, name in enumerate(table.schema.names):
        if name in own:
            frame.insert(place, name, table[name].to_pandas(types_mapper=kinds_of(own[name])).array)
    if not len(table.schema.names) - len(own):
        frame.index = pd.RangeIndex(table.num_rows)
    if index is None:
        index = next((name for name in _INDEX if name in frame.columns), False)
    return frame.set_index(index) if index is not False else frame


def duckdb_connection(what: str) -> Any:
    """A connection of DuckDB that shows times in UTC."""
    engine = need("duckdb", what)
    made = engine.connect()
    with contextlib.suppress(engine.Error):  # Without its extension `icu` DuckDB has no zones.
        made.execute("SET TimeZone = 'UTC'")
    return made


def kinds_of(kind: Any) -> Callable[[Any], Any]:
    """For pyarrow: every column becomes this dtype of pandas."""
    return lambda _: kind


def read_answer(response: Response, pieces: Iterator[bytes]) -> Answer:
    """Reads an answer to its end and checks it."""
    head = head_of(response)
    if response.headers.get("content-type", "").startswith(ARROW):
        spool = Spool()
        for piece in pieces:
            spool.write(piece)
        spool.end()
        count, digest = response.stated("x-svc-row-count"), response.sha256
        if response.stated("x-svc-sha256") is not None and count is not None:
            check_body(response)
            rows = int(count)
        else:
            rows, digest = arrow_end(spool)
        return Answer(head, spool=spool, row_count=rows, sha256=digest, rows_sha256=response.stated("x-svc-rows-sha256"))
    body = b"".join(pieces)
    parsers = [(one.name, _PARSERS[one.dtype]) for one in head.schema if one.dtype in _PARSERS]
    found = [json.loads(line) for line in body.splitlines()]
    check_body(response, len(found))
    for row in found:
        for name, parse in parsers:
            if row[name] is not None:
                row[name] = parse(row[name])
    return Answer(head, rows=found, sha256=response.sha256, rows_sha256=response.stated("x-svc-rows-sha256"))


def written(path: str | os.PathLike[str], write: Callable[[Path], object]) -> Path:
    """Writes under a temporary name beside the path, and renames: a file under its own name is complete."""
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.urandom(4).hex()}.part")
    try:
        write(part)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    return target


def _parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


_PARSERS: Mapping[str, Callable[[Any], Any]] = {"timestamp_utc": _parse_time, "bool01": bool, "float64": float}


def _of_integer(value: int) -> bytes:
    return b"\x00\x00\x00\x08" + value.to_bytes(8, "big", signed=True)


def _of_double(value: float) -> bytes:
    return struct.pack(">id", 8, value)


def _of_time(value: datetime) -> bytes:
    return _of_integer((value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1))


#: How `rows_sha256` writes a cell.
_CELLS: Mapping[str, Callable[[Any], bytes]] = {
    "int64": _of_integer,
    "float64": _of_double,
    "bool01": lambda value: b"\x00\x00\x00\x01" + bytes([value]),
    "timestamp_utc": _of_time,
}


def _arrow_types(pa: Any, time_unit: TimeUnit) -> dict[str, Any]:
    kinds = {
        "int64": pa.int64(),
        "float64": pa.float64(),
        "bool01": pa.bool_(),
        "timestamp_utc": pa.timestamp(time_unit, "UTC"),
    }
    return {dtype: kinds.get(dtype, pa.string()) for dtype in _DTYPES}


def _shown(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "")
    text = "" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
