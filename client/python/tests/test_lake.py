"""Lakes: those that the service's command writes, and tables of another writer of Delta with several versions and instruments."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
from pathlib import Path

import pytest
from conftest import tables

import tidemark_client as tm

deltalake = pytest.importorskip("deltalake")
pa = pytest.importorskip("pyarrow")
pl = pytest.importorskip("polars")
TRADES = "exchange_a_spot_trades"
ENGINES = ("polars", "duckdb", "pandas", "arrow")


def collected(lake: tm.Lake, engine: str, dataset: str, mode: str = "native", **options: object) -> pl.DataFrame:
    found = lake.scan(dataset, mode, engine=engine, **options)
    match engine:
        case "polars":
            return found.collect()
        case "duckdb":
            return found.pl()
        case "arrow":
            return pl.from_arrow(found.to_table())
    return pl.from_pandas(found.reset_index(drop=found.index.name is None))


# A real one


@pytest.fixture(scope="module")
def lake(td: tm.Client) -> tm.Lake:
    if "TIDEMARK_LAKE" not in os.environ:
        pytest.skip("no lake is written")
    return td.lake(os.environ["TIDEMARK_LAKE"])


#: A dataset of each kind of partition.
KINDS = (TRADES, "etf_daily_metrics", "bitcoin_block_headers", "bitcoin_mempool_state")


@pytest.mark.parametrize(("dataset", "mode"), tables({(dataset, "native") for dataset in KINDS}))
def test_every_engine_has_the_cells_and_types_of_the_service(td: tm.Client, lake: tm.Lake, dataset: str, mode: str) -> None:
    answer = td.query(dataset, mode=mode, start="1900-01-01", end="2100-01-01")
    wanted = answer.pl()
    keys = wanted.columns
    for engine in ENGINES:
        found = collected(lake, engine, dataset, mode)
        assert set(found.columns) - set(keys) <= {"date", "year", "instrument"}
        assert found.select(keys).schema == wanted.schema, engine
        assert found.select(keys).sort(keys).equals(wanted.sort(keys)), engine
    frame = answer.df()
    own = lake.scan(dataset, mode, engine="pandas")
    assert own[list(frame)].dtypes.to_dict() == frame.dtypes.to_dict()
    assert (own.index.name, own.index.dtype) == (frame.index.name, frame.index.dtype)


def test_a_lake_has_nothing_from_before_its_first_change(lake: tm.Lake) -> None:
    newest = lake.table(TRADES)
    change = newest.transaction_version("tidemark")
    for at in (change, change + 10**6):
        assert lake.table(TRADES, as_of_change=at).version() == newest.version()
    with pytest.raises(tm.SettingError, match=f"the oldest version that is kept, 0, is of change {change}, which is after"):
        lake.scan(TRADES, as_of_change=change - 1)


# Of another writer


def rows(day: int, count: int, instrument: str) -> pa.Table:
    at = dt.datetime(2024, 1, day, tzinfo=dt.UTC)
    return pa.table(
        {
            "trade_id": pa.array(range(2**53 + 1, 2**53 + 1 + count), pa.int64()),
            "price": [0.1 * one for one in range(count)],
            "is_buyer_maker": pa.array([one % 2 for one in range(count)], pa.int8()),
            "datetime": pa.array([at] * count, pa.timestamp("us", "UTC")),
            "date": [at.date()] * count,
            "instrument": [instrument] * count,
        }
    )


def write(folder: Path, change: int, table: pa.Table) -> None:
    """A version as of a change. The files of the instrument ``A`` are told as those of the default."""
    path = folder / TRADES / "native"
    properties = deltalake.CommitProperties(app_transactions=[deltalake.Transaction("tidemark", change)])
    deltalake.write_deltalake(str(path), table, mode="append", partition_by=["date", "instrument"], commit_properties=properties)
    proofs = folder / "_proofs" / TRADES / "native"
    proofs.mkdir(parents=True, exist_ok=True)
    for file in path.glob("date=*/instrument=*/*.parquet"):
        name = str(file.relative_to(path))
        manifest = {} if "=A/" in name else {"instrument": "B"}
        (proofs / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json").write_text(json.dumps(manifest))


@pytest.fixture
def versions(td: tm.Client, tmp_path: Path) -> tm.Lake:
    write(tmp_path, 10, rows(1, 3, "A"))
    write(tmp_path, 20, rows(2, 4, "A"))
    write(tmp_path, 30, rows(2, 5, "B"))
    return td.lake(tmp_path)


@pytest.mark.parametrize("engine", ENGINES)
def test_versions_and_instruments_are_chosen(versions: tm.Lake, engine: str) -> None:
    def count(**options: object) -> int:
        return collected(versions, engine, TRADES, **options).height

    assert [count(version=at) for at in (0, 1, 2)] == [3, 7, 7]
    assert [count(as_of_change=at) for at in (10, 19, 20, 29, 30, 10**9)] == [3, 3, 7, 7, 7, 7]
    # Without an instrument it is the default, which has files of its own.
    assert [count(), count(instrument="A"), count(instrument="B"), count(instrument=["A", "B"])] == [7, 7, 5, 12]
    assert count(instrument="B", as_of_change=30) == 5
    found = collected(versions, engine, TRADES, instrument=["B"], columns=["is_buyer_maker", "datetime"])
    assert found.schema == {"is_buyer_maker": pl.Boolean, "datetime": pl.Datetime("us", "UTC")} or engine == "pandas"
    assert sorted(found["is_buyer_maker"]) == [False, False, False, True, True]
    assert collected(versions, engine, TRADES)["trade_id"].min() == 2**53 + 1


def test_versions_survive_a_checkpoint_and_what_it_removes(versions: tm.Lake) -> None:
    table = versions.table(TRADES)
    table.create_checkpoint()
    for number in (0, 1):
        (versions.path / TRADES / "native" / "_delta_log" / f"{number:020}.json").unlink()
    assert versions.scan(TRADES, as_of_change=30).collect().height == 7
    with pytest.raises(tm.SettingError, match="the oldest version that is kept, 2, is of change 30, which is after 20"):
        versions.scan(TRADES, as_of_change=20)
    with pytest.raises(tm.SettingError, match="has no version 1 that can be read"):
        versions.scan(TRADES, version=1)


def test_what_is_not_there_is_told(versions: tm.Lake) -> None:
    for options, words in [
        ({"mode": "aligned_1s"}, "has no table"),
        ({"engine": "spark"}, "known are polars"),
        ({"instrument": "C"}, "has no instrument C; it has A, B"),
        ({"columns": ["prize"]}, "has no column prize; it has trade_id, price"),
        ({"version": 1, "as_of_change": 20}, "not both"),
        ({"as_of_change": 9}, "is of change 10, which is after 9"),
    ]:
        with pytest.raises(tm.SettingError, match=words):
            versions.scan(TRADES, **options)
    for manifest in (versions.path / "_proofs").rglob("*.json"):
        manifest.unlink()
    with pytest.raises(tm.SettingError, match="has the instruments A, B, and does not say which is the default"):
        versions.scan(TRADES)
