"""Rows of every dataset in both modes, through each form of the Python client, as lines of JSON."""

import json
import math
import warnings
from datetime import datetime

import pandas as pd

import tidemark_client as tm

warnings.simplefilter("ignore", tm.TidemarkWarning)
WINDOW = {"start": "1960-01-01", "end": "2030-01-02"}


def cell(value):
    """As JSON of the service has it."""
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, datetime):
        assert value.microsecond % 1000 == 0, value
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if "bool" in type(value).__name__:
        return int(value)
    return value.item() if hasattr(value, "item") else value


with tm.Client() as td:
    for dataset in td.datasets():
        key = dataset["key"]
        for mode in ("native", "aligned_1s"):
            unified = mode == "native" and key.endswith("_trades")
            answer = td.trades(key, **WINDOW) if unified else td.query(key, mode=mode, **WINDOW)
            names = [one.name for one in answer.schema]
            forms = {
                "rows": list(answer),
                "polars": answer.pl().to_dicts(),
                "arrow": answer.arrow().to_pylist(),
                "pandas": [dict(zip(names, row, strict=True)) for row in answer.df(index=False).itertuples(index=False)],
            }
            for form, rows in forms.items():
                told = [{name: cell(value) for name, value in row.items()} for row in rows]
                print(json.dumps({"dataset": key, "mode": mode, "form": form, "rows": told}))
