#!/usr/bin/env python3
"""A backtest's data: hourly prices and volume beside fund holdings, a rate and the hashrate, each row as it was known at its end."""
import os

import polars as pl
import requests

URL = os.environ.get("TIDEMARK_URL", "http://127.0.0.1:8080")
HEADERS = {"X-API-Key": os.environ.get("SVC_INTERNAL_API_KEY", ""), "Accept": "application/vnd.apache.arrow.stream"}


def series(source, metric):
    return [{"field": "source_id", "op": "eq", "value": source}, {"field": "metric_name", "op": "eq", "value": metric}]


columns = [
    {"name": "close", "dataset": "exchange_a_spot_trades", "field": "price"},
    {"name": "volume", "dataset": "exchange_a_spot_trades", "field": "quantity", "aggregate": "sum"},
    {"name": "held", "dataset": "etf_daily_metrics", "field": "metric_value_float", "filter": series("etf_ishares_ibit_daily", "btc_units")},
    {"name": "rate", "dataset": "macro_series_metrics", "field": "metric_value_float", "filter": series("macro_fedfunds", "effective_federal_funds_rate")},
    {"name": "hashrate", "dataset": "bitcoin_network_hashrate_estimate", "field": "hashrate_hs"},
]
answer = requests.post(f"{URL}/v1/frame", headers=HEADERS, json={"columns": columns, "grid": "1h", "n_rows": 72, "as_of": "row"})
if answer.status_code != 200:
    raise SystemExit(f"{answer.json()['code']}: {answer.json()['detail']}")
frame = pl.read_ipc_stream(answer.content)
print(frame.tail(5))
print(frame.height, "hours;", "return", frame["close"].pct_change().drop_nulls().sum())
