"""A lake: one Delta table a dataset and mode."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .errors import SettingError
from .extras import need


@dataclass(frozen=True)
class Lake:
    """The folder that ``./tidemark lake --to FOLDER`` fills."""

    path: Path

    def table(self, dataset: str, mode: str = "native", version: int | None = None) -> Any:
        """The ``deltalake.DeltaTable``. Needs the extra ``lake``."""
        folder = self.path / dataset / mode
        if not (folder / "_delta_log").is_dir():
            raise SettingError(f"{self.path} has no table {dataset}/{mode}")
        return need("deltalake", "lake()").DeltaTable(str(folder), version=version)

    def scan(
        self,
        dataset: str,
        mode: str = "native",
        *,
        engine: Literal["polars", "duckdb", "pandas", "arrow"] = "polars",
        version: int | None = None,
        columns: list[str] | None = None,
    ) -> Any:
        """The rows of a table: a polars LazyFrame, a DuckDB relation, a pandas DataFrame or a pyarrow Dataset.

        ``version``: an earlier one; version numbers, not times, are what a lake promises.
        """
        table = self.table(dataset, mode, version)
        if engine == "polars":
            frame = need("polars", "scan()").scan_delta(table)
            return frame.select(columns) if columns else frame
        if engine == "pandas":
            need("pandas", "scan()")
            return table.to_pandas(columns=columns)
        data = table.to_pyarrow_dataset()
        if engine == "arrow":
            return data.scanner(columns=columns) if columns else data
        if engine == "duckdb":
            duckdb = need("duckdb", "scan()")
            relation = duckdb.connect().from_arrow(data)
            return relation.select(*columns) if columns else relation
        raise SettingError(f"The engine is {engine!r}: known are polars, duckdb, pandas and arrow")
