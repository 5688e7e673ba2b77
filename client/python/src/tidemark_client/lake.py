"""A lake: one Delta table a dataset and mode."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .answer import data_frame, duckdb_connection
from .errors import SettingError
from .extras import need

#: The writer of a lake, as its tables name it.
_WRITER = "tidemark"


@dataclass(frozen=True)
class Lake:
    """The folder that ``./tidemark lake --to FOLDER`` fills."""

    path: Path

    def table(self, dataset: str, mode: str = "native", *, version: int | None = None, as_of_change: int | None = None) -> Any:
        """The ``deltalake.DeltaTable`` at a version, the newest by default. Needs the extra ``lake``.

        ``as_of_change``: the largest version that has no change of a higher number. Its flags are the integers 0 and 1.
        """
        folder = self.path / dataset / mode
        if not (folder / "_delta_log").is_dir():
            raise SettingError(f"{self.path} has no table {dataset}/{mode}")
        deltalake = need("deltalake", "lake()")
        if as_of_change is not None:
            if version is not None:
                raise SettingError("Give version or as_of_change, not both")
            version = _version_at(deltalake, folder, as_of_change)
        try:
            return deltalake.DeltaTable(str(folder), version=version)
        except deltalake.exceptions.DeltaError as error:
            raise SettingError(f"{folder} has no version {version} that can be read: {error}") from error

    def scan(
        self,
        dataset: str,
        mode: str = "native",
        *,
        engine: Literal["polars", "duckdb", "pandas", "arrow"] = "polars",
        instrument: str | Sequence[str] | None = None,
        version: int | None = None,
        as_of_change: int | None = None,
        columns: Sequence[str] | None = None,
        ints: Literal["nullable", "float"] = "nullable",
    ) -> Any:
        """The rows of a table: a polars LazyFrame, a DuckDB relation, a pandas DataFrame or a pyarrow Scanner.

        Besides the dataset's fields a row has ``date`` (funds and macro: ``year``), and a trade ``instrument``. Flags are
        booleans, times UTC in microseconds; pandas has the index and integers of ``Answer.df``. ``instrument``: one or several,
        by default the exchange's default. ``version``: an earlier one; ``as_of_change=N``: what the table held at change N of
        the proof log, the same N for every table.

        >>> lake = td.lake("lake")
        >>> lake.scan("exchange_a_spot_trades").filter(pl.col("date") == pl.col("date").max()).collect().height
        24000
        >>> lake.scan("macro_series_metrics", engine="duckdb", as_of_change=10**9).count("*").fetchone()[0] > 0
        True
        """
        if engine not in ("polars", "duckdb", "pandas", "arrow"):
            raise SettingError(f"The engine is {engine!r}: known are polars, duckdb, pandas and arrow")
        table = self.table(dataset, mode, version=version, as_of_change=as_of_change)
        kinds = {one.name: str(getattr(one.type, "type", one.type)) for one in table.schema().fields}
        unknown = [name for name in columns or () if name not in kinds]
        if unknown:
            raise SettingError(f"{dataset}/{mode} has no column {', '.join(unknown)}; it has {', '.join(kinds)}")
        chosen = list(columns) if columns is not None else list(kinds)
        flags = {name for name in chosen if kinds[name] == "byte"}
        wanted = self._instruments(table, f"{dataset}/{mode}", instrument)
        if engine == "polars":
            pl = need("polars", "scan()")
            frame = pl.scan_delta(table)
            if wanted is not None:
                frame = frame.filter(pl.col("instrument").is_in(wanted))
            return frame.select(pl.col(name).cast(pl.Boolean) if name in flags else pl.col(name) for name in chosen)
        if engine == "pandas":
            need("pandas", "scan()")
        ds = need("pyarrow.dataset", "scan()", "arrow")
        # With the file system of deltalake pyarrow may abort when Python ends ("terminate called").
        fs, folder = need("pyarrow.fs", "scan()", "arrow"), str(self.path.absolute() / dataset / mode)
        data = table.to_pyarrow_dataset(filesystem=fs.SubTreeFileSystem(folder, fs.LocalFileSystem()))
        where = ds.field("instrument").isin(wanted) if wanted is not None else None
        if engine == "duckdb":
            relation = duckdb_connection("scan()").from_arrow(data)
            if wanted is not None:
                relation = relation.filter(f"instrument in ({', '.join(map(_quoted, wanted))})")
            return relation.project(", ".join(f'"{name}"{"::boolean" * (name in flags)} as "{name}"' for name in chosen))
        scanner = data.scanner(
            columns={name: ds.field(name).cast("bool") if name in flags else ds.field(name) for name in chosen}, filter=where
        )
        if engine == "arrow":
            return scanner
        pa = need("pyarrow", "scan()", "arrow")
        nullable = {name for name in chosen if data.schema.field(name).nullable}
        rows = scanner.to_table()
        fields = [one.with_nullable(one.name in nullable) for one in rows.schema]
        return data_frame(rows.cast(pa.schema(fields)), ints=ints)

    def _instruments(self, table: Any, name: str, instrument: str | Sequence[str] | None) -> list[str] | None:
        """The instruments to read; None of a table without any."""
        partitions = table.partitions()
        known = sorted({one["instrument"] for one in partitions if "instrument" in one})
        given = [instrument] if isinstance(instrument, str) else instrument
        if given is not None:
            missing = [one for one in given if one not in known]
            if missing:
                raise SettingError(f"{name} has no instrument {', '.join(missing)}; it has {', '.join(known) or 'none'}")
            return list(given)
        if len(known) < 2:
            return known or None
        return [self._default(table, name, known)]

    def _default(self, table: Any, name: str, known: Sequence[str]) -> str:
        """The default of several instruments: the manifests of its files name none."""
        for one in known:
            file = next(path for path in _files(table) if f"/instrument={one}/" in path)
            digest = hashlib.sha256(file.encode()).hexdigest()[:32]
            try:
                manifest = json.loads((self.path / "_proofs" / name / f"{digest}.json").read_text())
            except (OSError, ValueError):
                continue
            if "instrument" not in manifest:
                return one
        raise SettingError(
            f"{name} has the instruments {', '.join(known)}, and does not say which is the default: pass instrument="
        )


def _files(table: Any) -> list[str]:
    """The active files, below the folder of the table."""
    root = table.table_uri.rstrip("/") + "/"
    return [uri.removeprefix("file://").removeprefix(root.removeprefix("file://")) for uri in table.file_uris()]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _version_at(deltalake: Any, folder: Path, change: int) -> int:
    """The largest version whose ``txn`` is at most ``change``."""
    names = {path.name for path in (folder / "_delta_log").iterdir()}
    commits = sorted(int(name[:20]) for name in names if name[:20].isdecimal() and name[20:] == ".json")
    checkpoints = sorted(int(name[:20]) for name in names if name[20:] == ".checkpoint.parquet")
    # Commits before a checkpoint may be gone, and with them their versions.
    first = 0 if 0 in commits else checkpoints[0] if checkpoints else commits[0]
    table = deltalake.DeltaTable(str(folder))

    def at(version: int) -> int:
        table.load_as_version(version)
        return int(table.transaction_version(_WRITER) or 0)

    low, high = first, table.version()
    if at(high) <= change:
        return int(high)
    if at(low) > change:
        raise SettingError(f"{folder}: the oldest version that is kept, {low}, is of change {at(low)}, which is after {change}")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle) <= change else (low, middle)
    return int(low)
