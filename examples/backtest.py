#!/usr/bin/env python3
"""A backtest's data: prices and volume beside a rate and a block's fees, each hour as it was known at its end."""
import sys

import tidemark_client as tm

columns = {
    "close": tm.column("exchange_a_spot_trades", "price"),
    "volume": tm.column("exchange_a_spot_trades", "quantity", aggregate="sum"),
    "rate": tm.macro("FEDFUNDS"),
    "fees": tm.block("fee_total_btc"),
}
try:
    frame = tm.Client().frame(columns, grid="1h", n_rows=72, as_of="row").pl()
except tm.TidemarkError as error:
    sys.exit(str(error))
print(frame.tail(), frame.height, "hours")
