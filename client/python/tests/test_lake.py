"""Lakes, as tables that another writer of Delta made: one a dataset and mode, with versions."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

import tidemark_client as tm

deltalake = pytest.importorskip("deltalake")
pa = pytest.importorskip("pyarrow")
pl = pytest.importorskip("polars")
TRADES = "exchange_a_spot_trades"


def rows(day: int, count: int) -> pa.Table:
    at = dt.datetime(2024, 1, day, tzinfo=dt.UTC)
    return pa.table(
        {
            "trade_id": pa.array(range(2**53 + 1, 2**53 + 1 + count), pa.int64()),
            "price": [0.1 * one for one in range(count)],
            "datetime": pa.array([at] * count, pa.timestamp("us", "UTC")),
            "date": [at.date()] * count,
        }
    )


@pytest.fixture
def lake(td: tm.Client, tmp_path: Path) -> tm.Lake:
    table = str(tmp_path / TRADES / "native")
    deltalake.write_deltalake(table, rows(1, 3), partition_by=["date"])
    deltalake.write_deltalake(table, rows(2, 4), mode="append")
    return td.lake(tmp_path)


@pytest.mark.parametrize(("version", "count"), [(None, 7), (1, 7), (0, 3)])
def test_each_engine_reads_each_version(lake: tm.Lake, version: int | None, count: int) -> None:
    frame = lake.scan(TRADES, version=version).collect().sort("date", "trade_id")
    assert frame.height == count and frame["trade_id"][0] == 2**53 + 1
    assert frame.schema["datetime"] == pl.Datetime("us", "UTC")
    assert len(lake.scan(TRADES, engine="pandas", version=version)) == count
    assert lake.scan(TRADES, engine="arrow", version=version).count_rows() == count
    relation = lake.scan(TRADES, engine="duckdb", version=version)
    assert relation.aggregate("count(*), max(trade_id)").fetchone() == (count, frame["trade_id"].max())


def test_columns_are_chosen(lake: tm.Lake) -> None:
    assert lake.scan(TRADES, columns=["price"]).collect_schema().names() == ["price"]
    assert list(lake.scan(TRADES, engine="pandas", columns=["price"])) == ["price"]
    assert lake.scan(TRADES, engine="duckdb", columns=["price"]).columns == ["price"]
    assert lake.scan(TRADES, engine="arrow", columns=["price"]).to_table().column_names == ["price"]


def test_what_is_not_there_is_told(lake: tm.Lake) -> None:
    with pytest.raises(tm.SettingError, match="no table"):
        lake.scan(TRADES, "aligned_1s")
    with pytest.raises(tm.SettingError, match="known are polars"):
        lake.scan(TRADES, engine="spark")
