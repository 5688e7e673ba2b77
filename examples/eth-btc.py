#!/usr/bin/env python3
"""The price of ETH in BTC: two instruments of exchange A, joined by the hour."""
import sys

import tidemark_client as tm

A = "exchange_a_spot_trades"
try:
    td = tm.Client()
    for one in td.instruments(A):
        print(f"{one['instrument']}: {one['rows']} trades")
    columns = {"btc": tm.column(A, "price"), "eth": tm.column(A, "price", instrument="ETHUSDT")}
    frame = td.frame(columns, grid="1h", n_rows=24).pl()
except tm.TidemarkError as error:
    sys.exit(str(error))
for datetime, btc, eth in frame.select("datetime", "btc", "eth").iter_rows():
    # An hour without trades has no price.
    ratio = "-" if btc is None or eth is None else f"{eth / btc:.6f}"
    print(datetime, btc, eth, ratio)
