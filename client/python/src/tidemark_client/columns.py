"""Short words for the columns of a frame, and for filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from .errors import SettingError

#: A column of a frame, as the service takes it, without its name.
Column: TypeAlias = dict[str, Any]
#: ``(field, op, value)``, or the service's own ``{"field": ..., "op": ..., "value": ...}``.
Filter: TypeAlias = "Mapping[str, Any] | tuple[str, str, Any]"

_OPERATORS = {"=": "eq", "==": "eq", "!=": "ne", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
_BLOCKS = {
    "fee_total_btc": "bitcoin_block_fee_totals",
    "subsidy_btc": "bitcoin_block_subsidy_schedule",
    "subsidy_sats": "bitcoin_block_subsidy_schedule",
    "hashrate_hs": "bitcoin_network_hashrate_estimate",
    "circulating_supply_btc": "bitcoin_circulating_supply",
    "circulating_supply_sats": "bitcoin_circulating_supply",
    "height": "bitcoin_block_headers",
    "difficulty": "bitcoin_block_headers",
}


def exchange_key(name: str) -> str:
    """The dataset of an exchange's trades.

    >>> exchange_key("exchange_a")
    'exchange_a_spot_trades'
    """
    return name if name.endswith("_spot_trades") else f"{name}_spot_trades"


def clauses(filters: Iterable[Filter]) -> list[dict[str, Any]]:
    """Filters in the service's form.

    >>> clauses([("price", ">=", 100), ("side", "in", ["buy"])])
    [{'field': 'price', 'op': 'gte', 'value': 100}, {'field': 'side', 'op': 'in', 'value': ['buy']}]
    """
    if isinstance(filters, Mapping) or (isinstance(filters, tuple) and len(filters) == 3 and isinstance(filters[0], str)):
        filters = [filters]
    found = []
    for one in filters:
        if isinstance(one, Mapping):
            found.append(dict(one))
        else:
            name, op, value = one
            found.append({"field": name, "op": _OPERATORS.get(op, op), "value": value})
    return found


def column(
    dataset: str,
    field: str,
    *,
    aggregate: str | None = None,
    filter: Iterable[Filter] | None = None,
    max_age: int | str | None = None,
    instrument: str | None = None,
) -> Column:
    """Any column of a frame.

    ``aggregate`` (trades): ``first``, ``last``, ``min``, ``max``, ``sum``, ``count``, ``vwap``. ``max_age``: seconds, or
    text such as ``"7d"``; older states become null.

    >>> column("exchange_a_spot_trades", "price", aggregate="vwap")
    {'dataset': 'exchange_a_spot_trades', 'field': 'price', 'aggregate': 'vwap'}
    """
    found: Column = {"dataset": dataset, "field": field}
    if instrument is not None:
        found["instrument"] = instrument
    if aggregate is not None:
        found["aggregate"] = aggregate
    if filter is not None:
        found["filter"] = clauses(filter)
    if max_age is not None:
        found["max_age"] = max_age
    return found


def ohlc(exchange: str, *, instrument: str | None = None) -> dict[str, Column]:
    """Columns ``open``, ``high``, ``low``, ``close`` (quote currency) and ``volume`` (base currency) of an exchange.

    In a frame, ``**ohlc("exchange_a")`` gives them these names, and ``"a": ohlc("exchange_a")`` gives ``a_open`` and so on.

    >>> list(ohlc("exchange_a"))
    ['open', 'high', 'low', 'close', 'volume']
    """
    trades = exchange_key(exchange)
    wanted = {"open": "first", "high": "max", "low": "min", "close": "last"}
    found = {name: column(trades, "price", aggregate=how, instrument=instrument) for name, how in wanted.items()}
    return {**found, "volume": column(trades, "quantity", aggregate="sum", instrument=instrument)}


def etf(fund: str, metric: str, *, max_age: int | str | None = None) -> Column:
    """A fund's daily metric, such as ``etf("IBIT", "btc_units")`` in BTC; ``fund`` is a ticker or a ``source_id``.

    >>> etf("IBIT", "btc_units")["dataset"]
    'etf_daily_metrics'
    """
    value = "metric_value_int" if metric in ("holdings_row_count", "wallet_count") else "metric_value_float"
    series = [("source_id", "eq", fund_id(fund)), ("metric_name", "eq", metric)]
    return column("etf_daily_metrics", value, filter=series, max_age=max_age)


def macro(series: str, *, max_age: int | str | None = None) -> Column:
    """A macro series, such as ``macro("CPIAUCSL")``, in the unit that its vintage states.

    >>> macro("UNRATE")["filter"]
    [{'field': 'source_id', 'op': 'eq', 'value': 'macro_unrate'}]
    """
    return column("macro_series_metrics", "metric_value_float", filter=[("source_id", "eq", series_id(series))], max_age=max_age)


def block(field: str, *, max_age: int | str | None = None) -> Column:
    """A value of the newest block, such as ``block("fee_total_btc")``, ``"hashrate_hs"``, ``"height"``, ``"difficulty"``.

    >>> block("fee_total_btc")
    {'dataset': 'bitcoin_block_fee_totals', 'field': 'fee_total_btc'}
    """
    if field not in _BLOCKS:
        raise SettingError(f"block({field!r}): known are {', '.join(_BLOCKS)}; column() takes every other")
    return column(_BLOCKS[field], field, max_age=max_age)


def series_id(series: str) -> str:
    """The ``source_id`` of a macro series."""
    return series if series.startswith("macro_") else f"macro_{series.lower()}"


_FUNDS = {
    "IBIT": "ishares", "BTCO": "invesco", "BITB": "bitwise", "ARKB": "ark", "HODL": "vaneck",
    "EZBC": "franklin", "GBTC": "grayscale", "FBTC": "fidelity", "BRRR": "coinshares", "DEFI": "hashdex",
}  # fmt: skip


def fund_id(fund: str) -> str:
    """The ``source_id`` of a fund.

    >>> fund_id("ibit")
    'etf_ishares_ibit_daily'
    """
    if fund.startswith("etf_"):
        return fund
    if fund.upper() not in _FUNDS:
        raise SettingError(f"The fund {fund!r} is not known: known are {', '.join(_FUNDS)}, and every source_id")
    return f"etf_{_FUNDS[fund.upper()]}_{fund.lower()}_daily"


def flattened(columns: Mapping[str, Column | Mapping[str, Column]]) -> list[dict[str, Any]]:
    """The columns of a frame with their names; those of a group get its name before theirs."""
    found = []
    for name, one in columns.items():
        if "dataset" in one:
            found.append({"name": name, **one})
        else:
            found += [{"name": f"{name}_{part}", **inner} for part, inner in one.items() if isinstance(inner, Mapping)]
    return found
