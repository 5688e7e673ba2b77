"""Rows of every dataset in every form: the same cells, of the dtypes that are named here."""

from __future__ import annotations

import datetime as dt
import math
import warnings
from pathlib import Path

import pytest
from conftest import DATASETS, tables

import tidemark_client as tm

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

TEXT = str(pd.Series(["x"]).dtype)  # `str` of pandas 3, `object` of pandas 2
TIME = "datetime64[us, UTC]"
METRIC = {"metric_id": TEXT, "source_id": TEXT, "metric_name": TEXT, "metric_unit": TEXT, "metric_value_string": TEXT}
VALUES = {"metric_value_int": "Int64", "metric_value_float": "float64", "metric_value_bool": "boolean"}
TRADE_SECONDS = {
    "aligned_at_utc": TIME,
    **dict.fromkeys(("open_price", "high_price", "low_price", "close_price", "quantity_sum", "quote_volume_sum"), "float64"),
    "trade_count": "int64",
    **dict.fromkeys(("valid_from_utc", "valid_to_utc_exclusive"), TIME),
}
METRIC_SECONDS = {
    "aligned_at_utc": TIME, **METRIC, **VALUES, "dimensions_json": TEXT, "provenance_json": TEXT, "records_in_bucket": "int64",
    "latest_ingested_at_utc": TIME, "valid_from_utc": TIME, "valid_to_utc_exclusive": TIME,
}  # fmt: skip
BLOCK = {"block_height": "int64", "block_hash": TEXT, "block_timestamp": "int64"}
BLOCK_SECONDS = {
    "aligned_at_utc": TIME, "source_id": TEXT, "metric_name": TEXT, "metric_unit": TEXT, "metric_value_float": "float64",
    "valid_from_utc": TIME, "valid_to_utc_exclusive": TIME, "records_in_bucket": "int64", "latest_ingested_at_utc": TIME,
    "provenance_json": TEXT, "dimensions_json": TEXT, "metric_value_string": TEXT, "metric_value_int": "Int64",
    "metric_value_bool": "boolean",
}  # fmt: skip
BITCOIN_SECONDS = {
    "latest_source_chain": TEXT, "latest_ingested_at_utc": TIME, "first_source_offset_or_equivalent": TEXT,
    "last_source_offset_or_equivalent": TEXT, "bucket_sha256": TEXT, "valid_from_utc": TIME, "valid_to_utc_exclusive": TIME,
}  # fmt: skip
#: The dtype of each column of each dataset, in pandas.
DTYPES = {
    "exchange_a_spot_trades": {
        "trade_id": "int64", "timestamp": "int64", "price": "float64", "quantity": "float64", "quote_quantity": "float64",
        "is_buyer_maker": "bool", "is_best_match": "bool", "datetime": TIME,
    },
    "exchange_b_spot_trades": {
        "instrument_name": TEXT, "trade_id": "int64", "side": TEXT, "price": "float64", "size": "float64",
        "quote_quantity": "float64", "timestamp": "int64", "datetime": TIME, "event_id": TEXT,
        "source_offset_or_equivalent": TEXT, "source_event_time_utc": TIME, "ingested_at_utc": TIME,
    },
    "exchange_c_spot_trades": {
        "symbol": TEXT, "trade_id": "int64", "trd_match_id": TEXT, "side": TEXT, "price": "float64", "size": "float64",
        "quote_quantity": "float64", "timestamp": "int64", "datetime": TIME, "tick_direction": TEXT, "gross_value": "float64",
        "home_notional": "float64", "foreign_notional": "float64",
    },
    **dict.fromkeys(
        ("etf_daily_metrics", "macro_series_metrics"),
        {**METRIC, **VALUES, "observed_at_utc": TIME, "dimensions_json": TEXT, "provenance_json": TEXT, "ingested_at_utc": TIME},
    ),
    "bitcoin_block_headers": {
        "height": "int64", "block_hash": TEXT, "prev_hash": TEXT, "merkle_root": TEXT, "version": "int64", "nonce": "int64",
        "difficulty": "float64", "timestamp": "int64", "datetime": TIME, "source_chain": TEXT,
    },
    "bitcoin_block_transactions": {
        **BLOCK, "transaction_index": "int64", "txid": TEXT, "inputs": TEXT, "outputs": TEXT, "values": TEXT, "scripts": TEXT,
        "witness_data": TEXT, "coinbase": "bool", "datetime": TIME, "source_chain": TEXT,
    },
    "bitcoin_mempool_state": {
        "snapshot_at": TIME, "snapshot_at_unix_ms": "int64", "txid": TEXT, "fee_rate_sat_vb": "float64", "vsize": "int64",
        "first_seen_timestamp": "int64", "rbf_flag": "bool", "source_chain": TEXT,
    },
    "bitcoin_block_fee_totals": {**BLOCK, "fee_total_btc": "float64", "datetime": TIME, "source_chain": TEXT},
    "bitcoin_block_subsidy_schedule": {
        **BLOCK, "halving_interval": "int64", "subsidy_sats": "int64", "subsidy_btc": "float64", "datetime": TIME,
        "source_chain": TEXT,
    },
    "bitcoin_network_hashrate_estimate": {
        **BLOCK, "difficulty": "float64", "observed_interval_seconds": "int64", "hashrate_hs": "float64", "datetime": TIME,
        "source_chain": TEXT,
    },
    "bitcoin_circulating_supply": {
        **BLOCK, "circulating_supply_sats": "int64", "circulating_supply_btc": "float64", "datetime": TIME, "source_chain": TEXT,
    },
}  # fmt: skip
SECONDS_DTYPES = {
    **dict.fromkeys(DATASETS[:3], TRADE_SECONDS),
    **dict.fromkeys(DATASETS[3:5], METRIC_SECONDS),
    "bitcoin_block_headers": {
        "aligned_at_utc": TIME, "records_in_bucket": "int64", "latest_height": "int64", "latest_block_hash": TEXT,
        "latest_prev_hash": TEXT, "latest_merkle_root": TEXT, "latest_version": "int64", "latest_nonce": "int64",
        "latest_difficulty": "float64", "latest_timestamp_ms": "int64", **BITCOIN_SECONDS,
    },
    "bitcoin_block_transactions": {
        "aligned_at_utc": TIME, "records_in_bucket": "int64", "tx_count": "int64", "coinbase_tx_count": "int64",
        "total_input_value_btc": "float64", "total_output_value_btc": "float64", "first_block_height": "int64",
        "last_block_height": "int64", "latest_block_timestamp_ms": "int64", "latest_txid": TEXT, **BITCOIN_SECONDS,
    },
    "bitcoin_mempool_state": {
        "aligned_at_utc": TIME, "records_in_bucket": "int64", "tx_count": "int64", "fee_rate_sat_vb_min": "float64",
        "fee_rate_sat_vb_max": "float64", "fee_rate_sat_vb_avg": "float64", "total_vsize": "int64",
        "first_seen_timestamp_min": "int64", "first_seen_timestamp_max": "int64", "rbf_true_count": "int64",
        "latest_snapshot_at_unix_ms": "int64", "latest_txid": TEXT, **BITCOIN_SECONDS,
    },
    **dict.fromkeys(DATASETS[8:], BLOCK_SECONDS),
}  # fmt: skip
POLARS = {"int64": pl.Int64, "Int64": pl.Int64, "float64": pl.Float64, "bool": pl.Boolean, "boolean": pl.Boolean, TEXT: pl.String}


def same(one: object, other: object) -> bool:
    """Equal cells; a null of pandas is a null."""
    if one is None or one is pd.NA or one is pd.NaT or (isinstance(one, float) and math.isnan(one)):
        return other is None
    return one == other and ("bool" in type(one).__name__) == isinstance(other, bool)


@pytest.mark.parametrize(("dataset", "mode"), tables({(dataset, "native") for dataset in DATASETS}))
def test_every_dataset_is_the_same_in_every_form(td: tm.Client, dataset: str, mode: str, folder: Path) -> None:
    answer = td.query(dataset, n_rows=2000, mode=mode)
    assert answer.row_count == len(answer) > 0 and answer.sources == (dataset,) and answer.mode == mode
    rows = list(answer)
    frame = answer.df(index=False)
    assert {name: str(kind) for name, kind in frame.dtypes.items()} == (DTYPES if mode == "native" else SECONDS_DTYPES)[dataset]
    for found, row in zip(frame.itertuples(index=False), rows, strict=True):
        assert all(same(cell, row[name]) for cell, name in zip(found, row, strict=True)), (found, row)
    polars = answer.pl()
    for name, kind in frame.dtypes.items():
        assert polars.schema[name] == POLARS.get(str(kind), pl.Datetime("us", "UTC")), name
    assert polars.to_dicts() == rows
    table = answer.arrow()
    assert table.to_pylist() == rows and [row for batch in answer.batches() for row in batch.to_pylist()] == rows
    assert pl.read_parquet(answer.to_parquet(folder / "rows.parquet")).to_dicts() == rows
    # The way through text, which a core without extras takes.
    plain = td._answer(
        "/v1/raw/query", td._query(dataset, n_rows=2000, mode=mode), None, list, (dataset,), "application/x-ndjson"
    )
    assert list(plain) == rows and plain.sha256 != answer.sha256
    assert plain.pl().equals(polars)
    # As pandas makes them itself.
    assert not {"Int64", "boolean"} & {str(kind) for kind in answer.df(ints="float").dtypes}


@pytest.mark.parametrize("dataset", DATASETS)
def test_an_empty_answer_is_an_error_or_a_typed_frame(td: tm.Client, dataset: str) -> None:
    with pytest.raises(tm.NoRowsError) as error:
        td.query(dataset, start="1905-01-01", end="1905-01-02")
    assert 'empty="frame"' in str(error.value) and error.value.request_id
    for mode in ("native", "aligned_1s"):
        with pytest.warns(tm.TidemarkWarning, match="WINDOW_EXCEEDS_PROVED_COVERAGE"):
            empty = td.query(dataset, start="1905-01-01", end="1905-01-02", mode=mode, empty="frame")
        assert (empty.row_count, empty.sha256) == (0, None)
        whole = td.query(dataset, n_rows=1, mode=mode)
        assert list(empty.df(index=False).dtypes) == list(whole.df(index=False).dtypes)
        assert empty.pl().schema == whole.pl().schema


def test_trades_have_one_set_of_names(td: tm.Client) -> None:
    names = ["trade_id", "timestamp", "price", "quantity", "is_buyer_maker", "datetime"]
    for exchange in ("exchange_a", "exchange_b", "exchange_c"):
        answer = td.trades(exchange, n_rows=50)
        assert [one.name for one in answer.schema] == names
        own = td.trades(exchange, n_rows=50, unified=False).pl()
        assert own["trade_id"].to_list() == answer.pl()["trade_id"].to_list()
        if "side" in own.columns:
            assert (own["side"] == "sell").to_list() == answer.pl()["is_buyer_maker"].to_list()
    empty = td.trades("exchange_a", start="1905-01-01", end="1905-01-02", empty="frame")
    assert empty.pl().schema == td.trades("exchange_a", n_rows=1).pl().schema


def test_windows_are_half_open_to_the_millisecond(td: tm.Client) -> None:
    whole = td.trades("exchange_b", n_rows=40).pl()
    times = whole["datetime"].unique().sort().to_list()
    start, end = times[3], times[-3]
    expected = whole.filter((pl.col("datetime") >= start) & (pl.col("datetime") < end))
    for bounds in ((start, end), (start.isoformat(), pd.Timestamp(end)), (start - dt.timedelta(microseconds=999), end)):
        assert td.trades("exchange_b", start=bounds[0], end=bounds[1]).pl().equals(expected), bounds
        own = td.query("exchange_b_spot_trades", start=bounds[0], end=bounds[1])
        assert own.pl()["trade_id"].to_list() == expected["trade_id"].to_list()
    for one in ({"start": start}, {"end": end}):
        found = td.query("exchange_b_spot_trades", **one).pl()["datetime"]
        assert (found.min() >= start) if "start" in one else (found.max() < end)
    with pytest.raises(tm.SettingError, match="not both"):
        td.trades("exchange_b", start=start, n_rows=5)
    with pytest.raises(tm.SettingError, match="not after start"):
        td.trades("exchange_b", start=end, end=start)


def test_without_a_window_all_that_is_proved(td: tm.Client) -> None:
    proved = next(one for one in td.datasets() if one["key"] == "exchange_c_spot_trades")["availability"]
    assert td.trades("exchange_c").row_count == td.query("exchange_c_spot_trades").row_count == proved["rows"]


def test_klines_are_stamped_with_their_start_or_when_they_were_known(td: tm.Client) -> None:
    left = td.klines("exchange_a", "1h", n_rows=5)
    right = td.klines("exchange_a", dt.timedelta(hours=1), n_rows=5, label="right")
    hour = dt.timedelta(hours=1)
    assert [row["datetime"] + hour for row in left] == [row["datetime"] for row in right]
    assert right.pl()["datetime"].to_list() == right.df().index.to_pydatetime().tolist() == [row["datetime"] for row in right]
    assert left.pl().drop("datetime").equals(right.pl().drop("datetime"))
    at = left.pl()["datetime"].to_list()
    between = td.klines("exchange_a", "1h", start=at[1] - dt.timedelta(minutes=30), end=at[3] + dt.timedelta(minutes=90)).pl()
    assert set(between["datetime"]) <= set(pl.datetime_range(at[1], at[3], "1h", eager=True))
    assert (between["datetime"] + hour).max() <= at[3] + dt.timedelta(minutes=90)
    for mode in ("native", "aligned_1s"):
        empty = td.klines("exchange_a", "1h", start="1905-01-01", end="1905-01-02", mode=mode, empty="frame")
        assert empty.pl().schema == td.klines("exchange_a", "1h", n_rows=1, mode=mode).pl().schema


def test_bars_join_what_pandas_and_polars_make(td: tm.Client) -> None:
    bars = td.klines("exchange_a", "1h", n_rows=10, label="right")
    end = bars.df().index.max()
    mine = pd.DataFrame({"at": pd.date_range(end=end, periods=5, freq="1h", tz="UTC").as_unit("us"), "signal": range(5)})
    joined = pd.merge_asof(mine, bars.df(), left_on="at", right_index=True)
    assert joined["close"].notna().any() and len(joined) == 5
    if int(pd.__version__.split(".")[0]) >= 3:  # pandas 2 makes nanoseconds.
        assert pd.date_range("2024-01-01", periods=2, tz="UTC").dtype == bars.df().index.dtype
    signals = pl.DataFrame({"datetime": [end.to_pydatetime()], "signal": [1]})
    assert signals.join_asof(bars.pl(), on="datetime")["close"][0] == bars.pl()["close"][-1]
    nano = bars.df(time_unit="ns")
    assert nano.index.dtype == "datetime64[ns, UTC]"


@pytest.mark.parametrize("shape", ["backtesting", "vectorbt", "bt", "zipline", "ccxt"])
def test_bars_have_the_shapes_of_backtesting_libraries(td: tm.Client, shape: str) -> None:
    bars = td.klines("exchange_a", "1h", n_rows=6, fields=["datetime", "open", "high", "low", "close", "volume"])
    made = tm.ohlcv(bars, shape)
    first = next(iter(bars))
    if shape == "ccxt":
        assert made[0] == [
            int(first["datetime"].timestamp() * 1000),
            *(first[n] for n in ("open", "high", "low", "close", "volume")),
        ]
    else:
        names = {"backtesting": ["Open", "High", "Low", "Close", "Volume"], "bt": ["close"]}
        assert list(made) == names.get(shape, ["open", "high", "low", "close", "volume"])
        assert made.index.tz is None if shape == "zipline" else str(made.index.tz) == "UTC"
    with pytest.raises(tm.SettingError, match="no column"):
        tm.ohlcv(td.trades("exchange_a", n_rows=1))


def test_a_frame_knows_its_digest(td: tm.Client) -> None:
    columns = {
        **tm.ohlc("exchange_a"),
        "b": tm.ohlc("exchange_b"),
        "height": tm.block("height"),
        "fees": tm.block("fee_total_btc"),
        "rate": tm.macro("FEDFUNDS"),
        "count": tm.column("exchange_c_spot_trades", "trade_id", aggregate="count"),
    }
    frame = td.frame(columns, "1h", as_of="row", n_rows=48)
    assert frame.rows_sha256 == frame.verify() and frame.mode is None
    names = [one.name for one in frame.schema]
    assert names[:3] == ["datetime", "known_at_utc", "open"] and "b_close" in names
    pandas = frame.df()
    assert str(pandas["height"].dtype) == "Int64" and str(pandas["known_at_utc"].dtype) == TIME
    assert (pandas["known_at_utc"] > pandas.index).all()
    assert [column["name"] for column in frame.extra["columns"]] == names[2:]
    # The same rows without look-ahead have the same digest.
    assert td.frame(columns, 3600, as_of="row", n_rows=48).rows_sha256 == frame.rows_sha256
    frame.rows_sha256 = "0" * 64
    with pytest.raises(tm.AlteredAnswerError):
        frame.verify()


def test_funds_are_long_or_wide(td: tm.Client) -> None:
    long = td.etf().df(index=False)
    wide = td.etf(wide=True).df(index=False)
    assert len(wide) == len(long[["observed_at_utc", "source_id"]].drop_duplicates())
    names = set(long["metric_name"]) - {"observed_at_utc"}
    assert set(wide.columns) == {"observed_at_utc", "source_id", "fund"} | names
    last = long.sort_values("ingested_at_utc", kind="stable").groupby(["observed_at_utc", "source_id", "metric_name"]).last()
    for (at, fund, name), row in last.iterrows():
        if name == "observed_at_utc" or pd.isna(row["metric_value_float"]):
            continue
        cell = wide[(wide["observed_at_utc"] == at) & (wide["source_id"] == fund)][name].iloc[0]
        assert float(cell) == row["metric_value_float"]


def test_macro_has_the_newest_vintage_or_all(td: tm.Client) -> None:
    every = td.macro(vintages=True)
    newest = td.macro()
    assert every.row_count == td.query("macro_series_metrics").row_count
    table = every.pl()
    assert newest.row_count == table.n_unique(["source_id", "observed_at_utc"])
    last = table.sort("vintage").group_by("source_id", "observed_at_utc").last()
    pairs = {(row["source_id"], row["observed_at_utc"]): row["vintage"] for row in newest}
    assert pairs == {(row["source_id"], row["observed_at_utc"]): row["vintage"] for row in last.to_dicts()}
    known = sorted(set(table["known_at_utc"]))
    then = td.macro(as_of=known[len(known) // 2], vintages=True).pl()
    assert then["known_at_utc"].max() <= known[len(known) // 2]
    assert then.height == table.filter(pl.col("known_at_utc") <= known[len(known) // 2]).height


def test_blocks_have_short_words(td: tm.Client) -> None:
    for what in ("headers", "transactions", "mempool", "fees", "subsidy", "hashrate", "supply"):
        assert td.blocks(what, n_rows=2).row_count == 2
    with pytest.raises(tm.SettingError, match="known are headers"):
        td.blocks("uncles")


def test_numbers_and_times_of_numpy_are_sent(td: tm.Client) -> None:
    np = pytest.importorskip("numpy")
    answer = td.query("exchange_a_spot_trades", n_rows=np.int64(5), filters=[("price", ">", np.float64(0))])
    assert answer.row_count == 5
    wanted = answer.pl()["trade_id"].to_numpy()
    assert td.query("exchange_a_spot_trades", filters=[("trade_id", "in", wanted)]).row_count == 5
    at = answer.pl()["datetime"][2]
    assert td.query("exchange_a_spot_trades", filters=[("datetime", "=", at)]).row_count >= 1


def test_duckdb_reads_an_answer(td: tm.Client) -> None:
    pytest.importorskip("duckdb")
    answer = td.trades("exchange_a", n_rows=100)
    relation = answer.duckdb()
    assert relation.types == ["BIGINT", "BIGINT", "DOUBLE", "DOUBLE", "BOOLEAN", "TIMESTAMP WITH TIME ZONE"]
    assert relation.aggregate("count(*), sum(quantity)").fetchone() == (100, pytest.approx(answer.pl()["quantity"].sum()))


def test_warnings_are_of_a_class_and_name_the_callers_line(td: tm.Client) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        td.trades("exchange_a", n_rows=1)
    (one,) = found
    assert (one.category, one.message.code, one.filename) == (tm.TidemarkWarning, "WINDOW_LATEST_ROWS_MUTABLE", __file__)
    assert one.message.details == {"n_latest_rows": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "WINDOW_LATEST_ROWS_MUTABLE", tm.TidemarkWarning)
        answer = td.trades("exchange_a", n_rows=1)
    assert [warning["code"] for warning in answer.warnings] == ["WINDOW_LATEST_ROWS_MUTABLE"]
    with pytest.raises(tm.StrictWarningError) as error:
        td.trades("exchange_a", n_rows=1, strict=True)
    assert error.value.warnings[0]["code"] == "WINDOW_LATEST_ROWS_MUTABLE"


def test_what_there_is(td: tm.Client) -> None:
    assert [one["key"] for one in td.datasets()] == DATASETS
    assert [one["name"] for one in td.fields("exchange_a_spot_trades", "aligned_1s")][:2] == ["aligned_at_utc", "open_price"]
    with pytest.raises(tm.SettingError, match="no dataset 'trades'"):
        td.fields("trades")
    for dataset in DATASETS:
        coverage = td.coverage(dataset)
        assert len({one["partition"] for one in coverage["partitions"]}) == len(coverage["partitions"]) > 0
    assert td.estimate("exchange_a_spot_trades", n_rows=3)["rows"] == 3
    assert repr(td) == f"<tidemark_client.Client {td.url}>"


@pytest.mark.parametrize("dataset", DATASETS)
def test_each_day_has_a_condition(td: tm.Client, dataset: str) -> None:
    days = td.conditions(dataset, "1970-01-01", "1970-01-03", silences=True)
    assert [one["day"] for one in days] == ["1970-01-01", "1970-01-02", "1970-01-03"]
    assert {one["condition"] for one in days} <= {"available", "degraded", "pending", "missing"}


def test_a_contract_error_says_where(td: tm.Client) -> None:
    with pytest.raises(tm.ContractError) as error:
        td.query("exchange_a_spot_trades", fields=["pric"], n_rows=1)
    assert (error.value.code, error.value.pointer) == ("QUERY_CONTRACT_ERROR", "/fields/0")
    assert "did you mean price" in str(error.value) and error.value.request_id in str(error.value)
    with pytest.raises(tm.KeyRefusedError, match="TIDEMARK_KEY"):
        tm.Client(td.url, "wrong").datasets()
