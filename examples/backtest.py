#!/usr/bin/env python3
"""A backtest's data: prices and volume beside a rate and a block's fees, each hour as it was known at its end."""
import os
import sys

import polars as pl
import requests

URL = os.environ.get("TIDEMARK_URL", "http://127.0.0.1:8080")
HEADERS = {"X-API-Key": os.environ.get("TIDEMARK_KEY", ""), "Accept": "application/vnd.apache.arrow.stream"}
FUNDS = {"field": "source_id", "op": "eq", "value": "macro_fedfunds"}
columns = [
    {"name": "close", "dataset": "exchange_a_spot_trades", "field": "price"},
    {"name": "volume", "dataset": "exchange_a_spot_trades", "field": "quantity", "aggregate": "sum"},
    {"name": "rate", "dataset": "macro_series_metrics", "field": "metric_value_float", "filter": FUNDS},
    {"name": "fees", "dataset": "bitcoin_block_fee_totals", "field": "fee_total_btc"},
]
body = {"columns": columns, "grid": "1h", "n_rows": 72, "as_of": "row"}
answer = requests.post(f"{URL}/v1/frame", headers=HEADERS, json=body, timeout=300)
if not answer.ok:
    problem = answer.json()
    sys.exit(f"{problem['code']}: {problem['detail']}")
frame = pl.read_ipc_stream(answer.content)
print(frame.tail(), frame.height, "hours")
