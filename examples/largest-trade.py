#!/usr/bin/env python3
"""Finds the largest trade of the last proved day, and the line of the vendor's file that it is."""
import json
import os
import sys
from datetime import datetime, timedelta
from decimal import Decimal
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import Request, urlopen

URL = os.environ.get("TIDEMARK_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("TIDEMARK_KEY", "")
DATASET = "exchange_a_spot_trades"


def ask(path, body=None, accept="application/json"):
    """The answer, to be read. GET without a body, POST with one."""
    data = None if body is None else json.dumps(body).encode()
    return urlopen(Request(URL + path, data, {"X-API-Key": KEY, "Accept": accept}), timeout=300)


def rows_of(path, **request):
    """Rows one by one as they arrive: memory stays flat, and a broken answer raises. Numbers keep all their digits."""
    with ask(path, request, "application/x-ndjson") as answer:
        for line in answer:
            yield json.loads(line, parse_float=Decimal)


def last_day(end):
    """The end of what is proved is exclusive: the last day is the one a millisecond before it."""
    return str((datetime.strptime(end, "%Y-%m-%dT%H:%M:%S.%fZ") - timedelta(milliseconds=1)).date())


def main():
    # Which datasets there are, and what is proved of them.
    days = {}
    for dataset in json.load(ask("/v1/datasets"))["datasets"]:
        key, available = dataset["key"], dataset["availability"]
        if dataset["rights"]["refused_with"] is not None:
            print(f"{key}: refused with {dataset['rights']['refused_with']}")
            continue
        if available["rows"] == 0:
            print(f"{key}: nothing proved")
            continue
        days[key] = last_day(available["proved_through_utc"])
        print(f"{key}: {available['rows']} rows from {available['proved_from_utc'][:10]} to {days[key]}")
    if DATASET not in days:
        sys.exit(f"no proved rows of {DATASET} are served")
    day = days[DATASET]

    # The day's rows.
    count, largest = 0, None
    fields = ["trade_id", "price", "quantity"]
    for trade in rows_of("/v1/historical/exchange_a/spot/trades", start_date=day, end_date=day, fields=fields):
        count += 1
        if largest is None or trade["quantity"] > largest["quantity"]:
            largest = trade
    print(f"{day}: {count} trades; the largest, {largest['trade_id']}, is {largest['quantity']} at {largest['price']}")

    # From the row to its event: the bytes that the vendor published.
    event = json.load(ask(f"/v1/lineage/{DATASET}/{largest['trade_id']}"))
    print(f"{event['document']['name']}, sha256 {event['document']['sha256']}, has the line")
    print(event["payload_raw"]["utf8"])


try:
    main()
except HTTPError as error:
    problem = json.load(error)
    sys.exit(f"{problem['code']}: {problem['detail']}")
except (HTTPException, OSError) as error:
    sys.exit(f"{type(error).__name__}: {error}")
