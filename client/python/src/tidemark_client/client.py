"""The client: one object for all that a service answers."""

from __future__ import annotations

import hashlib
import json
import os
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import quote, urlencode

from .answer import ARROW, NDJSON, Answer, Field, Head, read_answer, written
from .columns import Column, Filter, clauses, exchange_key, flattened, fund_id, series_id
from .errors import (
    IncompleteAnswerError,
    NoRowsError,
    ServiceError,
    SettingError,
    TidemarkError,
    UnknownAnswerError,
    warn,
)
from .exports import Export, Exports
from .extras import Progress, has
from .http import VERSION, Response, Transport, check_body
from .lake import Lake
from .times import Time, is_midnight, iso, moment, seconds

Mode: TypeAlias = Literal["native", "aligned_1s"]
Empty: TypeAlias = Literal["raise", "frame"]
Size: TypeAlias = "int | str | timedelta"
#: A dataset, and its instrument unless that is the default.
_Series: TypeAlias = "tuple[str, str | None]"

_BLOCKS = {
    "headers": "bitcoin_block_headers",
    "transactions": "bitcoin_block_transactions",
    "mempool": "bitcoin_mempool_state",
    "fees": "bitcoin_block_fee_totals",
    "subsidy": "bitcoin_block_subsidy_schedule",
    "hashrate": "bitcoin_network_hashrate_estimate",
    "supply": "bitcoin_circulating_supply",
}
_TRADES = {
    "trade_id": "int64",
    "timestamp": "int64",
    "price": "float64",
    "quantity": "float64",
    "is_buyer_maker": "bool01",
    "datetime": "timestamp_utc",
}
_KLINES = [
    *("datetime", "open", "high", "low", "close", "mean", "std", "median", "iqr", "volume", "maker_ratio", "no_of_trades"),
    *("open_liquidity", "high_liquidity", "low_liquidity", "close_liquidity", "liquidity_sum", "maker_volume", "maker_liquidity"),
]
_ALIGNED_KLINES = ["datetime", "open", "high", "low", "close", "volume", "no_of_trades", "liquidity_sum"]
_MEDIA = {".csv": "text/csv", ".ndjson": NDJSON, ".jsonl": NDJSON, ".arrows": ARROW}


class Client:
    """A service, by its URL and key.

    Both come from the arguments, else from ``TIDEMARK_URL`` and ``TIDEMARK_KEY``, else from the state folder ``.tidemark``
    here or above. Windows are half-open, ``start <= time < end``; times without a zone are UTC; without a window you get all
    that is proved. Usable from several threads, after a fork, and as a context manager.

    ``timeout``: seconds to connect and of silence, one number or two. ``max_attempts`` and ``max_retry_wait`` (seconds) bound
    the retries. ``ca``: a file of certificates, or an SSLContext; ``proxy``: a URL, or ``""`` for none; by default the
    environment decides. ``progress``: True or False instead of where a terminal or notebook shows it. ``empty="frame"``: an
    empty frame where no row matches.

    >>> import tidemark_client as tm
    >>> with tm.Client() as td:
    ...     trades = td.trades("exchange_a", n_rows=3)
    >>> trades.row_count
    3

    Methods raise ``TidemarkError`` (its subclasses say why), and give the service's warnings as ``TidemarkWarning``.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout: float | tuple[float, float] = (10.0, 120.0),
        max_attempts: int = 5,
        max_retry_wait: float = 30.0,
        ca: str | ssl.SSLContext | None = None,
        proxy: str | None = None,
        backend_token: str | None = None,
        progress: bool | None = None,
        empty: Empty = "raise",
    ) -> None:
        url, key = _settings(url, key)
        self._http = Transport(
            url,
            key,
            backend_token=backend_token,
            timeout=timeout,
            max_attempts=max_attempts,
            max_retry_wait=max_retry_wait,
            ca=ca,
            proxy=proxy,
        )
        self._progress = progress
        self._empty = empty
        #: Exports one by one; ``export`` does it all in one call.
        self.exports = Exports(self._http, progress)

    @property
    def url(self) -> str:
        """The address of the service."""
        return self._http.url

    def __repr__(self) -> str:
        return f"<tidemark_client.Client {self.url}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes idle connections."""
        self._http.close()

    # Rows

    def trades(
        self,
        exchange: str,
        *,
        start: Time | None = None,
        end: Time | None = None,
        n_rows: int | None = None,
        n_random: int | None = None,
        random_seed: int | None = None,
        fields: Sequence[str] | None = None,
        filters: Iterable[Filter] | None = None,
        unified: bool = True,
        instrument: str | None = None,
        strict: bool = False,
        silences: Literal["warn"] | None = None,
        empty: Empty | None = None,
    ) -> Answer:
        """Trades of ``"exchange_a"``, ``"exchange_b"`` or ``"exchange_c"``.

        Columns: ``trade_id``, ``timestamp`` (ms since 1970), ``price`` (quote), ``quantity`` (base), ``is_buyer_maker`` (the
        taker sold), ``datetime``; with ``unified=False`` the exchange's own. ``n_rows``: the last ones.
        ``silences="warn"``: ``warnings`` names times above a minute without a trade.

        >>> list(td.trades("exchange_b", n_rows=2).pl().columns)
        ['trade_id', 'timestamp', 'price', 'quantity', 'is_buyer_maker', 'datetime']
        """
        dataset = exchange_key(exchange)
        common: dict[str, Any] = {
            "fields": fields,
            "filters": filters,
            "strict": strict,
            "silences": silences,
            "empty": empty,
            "instrument": instrument,
        }
        window: dict[str, Any] = {"start": start, "end": end, "n_rows": n_rows, "n_random": n_random, "random_seed": random_seed}
        if not unified:
            return self.query(dataset, **window, **common)
        body = self._days(**window, fields=fields, filters=filters, strict=strict, silences=silences, instrument=instrument)
        types = _TRADES
        return self._answer(
            f"/v1/historical/{_exchange(dataset)}/spot/trades",
            body,
            empty,
            lambda: [Field(name, types.get(name, "float64"), False) for name in fields or types],
            (dataset,),
        )

    def klines(
        self,
        exchange: str,
        size: Size = "1m",
        *,
        start: Time | None = None,
        end: Time | None = None,
        n_rows: int | None = None,
        n_random: int | None = None,
        random_seed: int | None = None,
        fields: Sequence[str] | None = None,
        filters: Iterable[Filter] | None = None,
        label: Literal["left", "right"] = "left",
        mode: Mode = "native",
        instrument: str | None = None,
        strict: bool = False,
        silences: Literal["warn"] | None = None,
        empty: Empty | None = None,
    ) -> Answer:
        """Klines of a ``size`` such as ``"1h"``, 90 (seconds) or a timedelta.

        Columns: ``datetime``, ``open``, ``high``, ``low``, ``close`` (quote), ``volume`` (base), ``no_of_trades`` and more.
        ``label="left"``: ``datetime`` is the start of the bucket; ``"right"``: its end, when the bar was known. Bounds that are
        no midnight select the buckets that lie between them whole. ``filters`` compare starts.

        >>> td.klines("exchange_a", "1h", n_rows=2, fields=["datetime", "close"]).pl().shape
        (2, 2)
        """
        dataset = exchange_key(exchange)
        length = seconds(size)
        body = self._days(
            start=start,
            end=end,
            n_rows=n_rows,
            n_random=n_random,
            random_seed=random_seed,
            fields=fields,
            filters=filters,
            strict=strict,
            silences=silences,
            instrument=instrument,
            bucket=timedelta(seconds=length),
        )
        names = fields or (_KLINES if mode == "native" else _ALIGNED_KLINES)
        types = {"datetime": "timestamp_utc", "no_of_trades": "int64"}
        answer = self._answer(
            f"/v1/historical/{_exchange(dataset)}/spot/klines",
            {**body, "kline_size": length, **({} if mode == "native" else {"mode": mode})},
            empty,
            lambda: [Field(name, types.get(name, "float64"), False) for name in names],
            (dataset,),
        )
        return answer.labelled(timedelta(seconds=length)) if label == "right" else answer

    def frame(
        self,
        columns: Mapping[str, Column | Mapping[str, Column]],
        grid: Size,
        *,
        start: Time | None = None,
        end: Time | None = None,
        n_rows: int | None = None,
        as_of: Time | Literal["row"] | None = None,
        fill: Literal["null", "previous"] | None = None,
        strict: bool = False,
        silences: Literal["warn"] | None = None,
        empty: Empty | None = None,
    ) -> Answer:
        """Many series on one clock: one row for each bucket of ``grid``.

        ``columns``: a name and what it holds, by ``ohlc``, ``etf``, ``macro``, ``block`` or ``column``. ``as_of="row"``: each
        row has only what was known at its end, ``known_at_utc``; a time: only what was known then. ``fill="previous"``
        repeats the values of trades. ``datetime`` is the start of the bucket.

        >>> frame = td.frame({**tm.ohlc("exchange_a"), "held": tm.etf("IBIT", "btc_units")}, grid="1h", as_of="row", n_rows=24)
        >>> frame.row_count, frame.verify() == frame.rows_sha256
        (24, True)
        """
        body = {"columns": flattened(columns), "grid": seconds(grid), **_present(n_rows=n_rows, fill=fill, silences=silences)}
        if as_of is not None:
            body["as_of"] = as_of if isinstance(as_of, str) and as_of == "row" else iso(as_of, "as_of")
        if strict:
            body["strict"] = True
        series = _series_of(body["columns"])
        window = self._window(start, end, n_rows, series)
        if not window and n_rows is None:
            window = self._proved([one for one in series if one[0].endswith("_spot_trades")] or series)
        datasets = tuple(dict.fromkeys(dataset for dataset, _ in series))
        return self._answer("/v1/frame", {**body, **window}, empty, lambda: self._frame_schema(body), datasets)

    def etf(
        self,
        *,
        start: Time | None = None,
        end: Time | None = None,
        funds: str | Sequence[str] | None = None,
        metrics: str | Sequence[str] | None = None,
        as_of: Time | None = None,
        wide: bool = False,
        strict: bool = False,
        empty: Empty | None = None,
    ) -> Answer:
        """The daily figures of bitcoin funds, one row a metric of a fund's day.

        ``wide=True``: one row a fund and day, one column a metric (``btc_units`` in BTC, ``*_usd`` in USD, ``*_pct`` in
        percent), of the capture that was ingested last. ``observed_at_utc`` is midnight of the as-of day, which is before
        it was published: in a backtest use ``frame(as_of="row")``. ``as_of``: as known then.

        >>> wide = td.etf(wide=True, funds="IBIT", metrics=["btc_units"])
        >>> [one.name for one in wide.schema]
        ['observed_at_utc', 'source_id', 'fund', 'btc_units']
        """
        filters = _listed("source_id", funds, fund_id) + _listed("metric_name", metrics, str)
        kwargs: dict[str, Any] = {
            "start": start,
            "end": end,
            "filters": filters,
            "as_of": as_of,
            "strict": strict,
            "empty": empty,
        }
        if not wide:
            return self.query("etf_daily_metrics", **kwargs)
        long = self._rows_of("etf_daily_metrics", **kwargs)
        asked = [metrics] if isinstance(metrics, str) else metrics or ()
        return long.derived(*_widened(sorted(long, key=lambda row: row["ingested_at_utc"]), set(asked) - {"observed_at_utc"}))

    def macro(
        self,
        *,
        start: Time | None = None,
        end: Time | None = None,
        series: str | Sequence[str] | None = None,
        as_of: Time | None = None,
        vintages: bool = False,
        strict: bool = False,
        empty: Empty | None = None,
    ) -> Answer:
        """Macro series: the newest value of each date, or with ``vintages=True`` every value that was ever published.

        Besides the service's columns: ``series`` (``"CPIAUCSL"``), ``vintage`` (the day that published the value) and
        ``known_at_utc`` (from when it was known: 06:00 UTC of the next day). ``as_of``: as known then.

        >>> cpi = td.macro(series="CPIAUCSL", vintages=True)
        >>> cpi.row_count >= td.macro(series="CPIAUCSL").row_count
        True
        """
        filters = _listed("source_id", series, series_id)
        found = self._rows_of(
            "macro_series_metrics", start=start, end=end, filters=filters, as_of=as_of, strict=strict, empty=empty
        )
        added = (
            Field("series", "string", False),
            Field("vintage", "string", False),
            Field("known_at_utc", "timestamp_utc", False),
        )
        newest: dict[object, Mapping[str, Any]] = {}
        for place, row in enumerate(sorted(found, key=_vintage_order)):
            origin = json.loads(row["provenance_json"])
            vintage = str(origin["realtime_start"])
            known = moment(vintage) + timedelta(days=1, hours=6)
            key = place if vintages else (row["source_id"], row["observed_at_utc"])
            newest[key] = {"series": str(origin["series_id"]), "vintage": vintage, "known_at_utc": known, **row}
        rows = sorted(newest.values(), key=_vintage_order)
        return found.derived((*added, *found.schema), rows)

    def blocks(
        self,
        what: str = "headers",
        *,
        start: Time | None = None,
        end: Time | None = None,
        n_rows: int | None = None,
        fields: Sequence[str] | None = None,
        filters: Iterable[Filter] | None = None,
        mode: Mode = "native",
        strict: bool = False,
        empty: Empty | None = None,
    ) -> Answer:
        """Bitcoin: ``headers``, ``transactions``, ``mempool``, ``fees``, ``subsidy``, ``hashrate`` or ``supply``.

        >>> td.blocks("fees", n_rows=5, fields=["block_height", "fee_total_btc"]).row_count
        5
        """
        if what not in _BLOCKS:
            raise SettingError(f"blocks({what!r}): known are {', '.join(_BLOCKS)}")
        return self.query(
            _BLOCKS[what],
            start=start,
            end=end,
            n_rows=n_rows,
            fields=fields,
            filters=filters,
            mode=mode,
            strict=strict,
            empty=empty,
        )

    def query(self, dataset: str, *, empty: Empty | None = None, **request: Any) -> Answer:
        """Rows of any dataset, as the service has them.

        ``start``, ``end``, ``n_rows``, ``n_random``, ``random_seed``, ``mode``, ``fields``, ``filters``, ``as_of``,
        ``strict``, ``silences``, ``view_id``, ``view_version``, ``instrument``. A filter is ``(field, op, value)``.

        >>> large = td.query("exchange_a_spot_trades", filters=[("quantity", ">=", 0.1)], n_rows=5)
        >>> large.row_count
        5
        """
        body = self._query(dataset, **request)
        fields, mode = request.get("fields"), request.get("mode") or "native"
        return self._answer("/v1/raw/query", body, empty, lambda: self._schema(dataset, mode, fields), (dataset,))

    def save(self, path: str | os.PathLike[str], dataset: str, **request: Any) -> Path:
        """Writes the answer to a query as it is to ``path``: ``.csv``, ``.ndjson`` or ``.arrows``, in constant memory.

        Takes what ``query`` takes, and ``csv_formulas="escape"``. The file appears under its name when it is whole and has the
        digest that the service states.

        >>> td.save("trades.csv", "exchange_a_spot_trades", n_rows=1000).name
        'trades.csv'
        """
        suffix = Path(path).suffix
        if suffix not in _MEDIA:
            raise SettingError(f"{path}: the name must end in {', '.join(_MEDIA)}; to_parquet() and export() write Parquet")
        extra = _present(csv_formulas=request.pop("csv_formulas", None))
        body = {**self._query(dataset, **request), **extra}

        def write(part: Path) -> None:
            def read(response: Response, pieces: Iterator[bytes]) -> None:
                with part.open("wb") as file:
                    for piece in pieces:
                        file.write(piece)
                check_body(response)
                warn(json.loads(response.headers.get("x-svc-warnings", "[]")))

            self._read("/v1/raw/query", body, _MEDIA[suffix], read, str(path))

        return written(path, write)

    # What there is

    def datasets(self) -> list[dict[str, Any]]:
        """Every dataset: ``key``, ``modes``, ``series``, ``rights``, ``availability`` and more.

        >>> len(td.datasets())
        12
        """
        found: list[dict[str, Any]] = self._http.json("GET", "/v1/datasets")["datasets"]
        return found

    def fields(self, dataset: str, mode: Mode = "native") -> list[dict[str, Any]]:
        """The fields of a dataset: ``name``, ``dtype``, ``nullable``, ``unit``, ``doc``, ``known``, ``aggregates``.

        >>> td.fields("exchange_a_spot_trades")[0]["name"]
        'trade_id'
        """
        found: list[dict[str, Any]] = self._dataset(dataset)["modes"][mode]["fields"]
        return found

    def instruments(self, dataset: str | None = None) -> list[dict[str, Any]]:
        """Every instrument that is configured or was ever proved: ``dataset``, ``instrument``, ``base``, ``quote``, ``rows``.

        >>> sorted(one["instrument"] for one in td.instruments("exchange_a_spot_trades"))
        ['BTCUSDT', 'ETHUSDT', 'SOLUSDT']
        """
        query = f"?{urlencode({'dataset': dataset})}" if dataset else ""
        found: list[dict[str, Any]] = self._http.json("GET", f"/v1/instruments{query}")["instruments"]
        return found

    def revisions(self, dataset: str, *, instrument: str | None = None) -> list[dict[str, Any]]:
        """Every revision of a dataset, from and to which change it was served, and what its vendor changed since.

        >>> td.revisions("exchange_a_spot_trades")[0]["state"]
        'served'
        """
        found: list[dict[str, Any]] = []
        query = _present(dataset=dataset, instrument=instrument)
        while True:
            page = self._http.json("GET", f"/v1/revisions?{urlencode(query)}")
            found += page["revisions"]
            if page["next_cursor"] is None:
                return found
            query = {**query, "cursor": page["next_cursor"]}

    def conditions(
        self, dataset: str, start: Time, end: Time, *, instrument: str | None = None, silences: bool = False
    ) -> list[dict[str, Any]]:
        """What each day from ``start`` to ``end``, both included, is worth; with ``silences`` each silence of it.

        >>> [one["condition"] for one in td.conditions("exchange_a_spot_trades", "1970-01-01", "1970-01-02")]
        ['missing', 'missing']
        """
        query = _present(
            **{"dataset": dataset, "from": iso(start, "start")[:10], "to": iso(end, "end")[:10]},
            instrument=instrument,
            silences="list" if silences else None,
        )
        found: list[dict[str, Any]] = self._http.json("GET", f"/v1/conditions?{urlencode(query)}")["conditions"]
        return found

    def coverage(
        self,
        dataset: str,
        *,
        start: Time | None = None,
        end: Time | None = None,
        state: str | None = None,
        instrument: str | None = None,
    ) -> dict[str, Any]:
        """What is proved of a dataset, its gaps, and its partitions in the window, each with its leaf in the proof log.

        >>> td.coverage("exchange_a_spot_trades")["totals"]["proved"]["rows"] > 0
        True
        """
        query = _present(
            **{
                "from": iso(start, "start") if start is not None else None,
                "to": iso(end, "end") if end is not None else None,
            },
            state=state,
            instrument=instrument,
            limit=1000,
        )
        path = f"/v1/coverage/{quote(dataset, safe='')}?"
        whole: dict[str, Any] = self._http.json("GET", path + urlencode(query))
        cursor = whole.get("next_cursor")
        while cursor is not None:
            page = self._http.json("GET", path + urlencode({**query, "cursor": cursor}))
            whole["partitions"] += page["partitions"]
            cursor = page.get("next_cursor")
        whole.pop("next_cursor", None)
        return whole

    def estimate(self, dataset: str, **request: Any) -> dict[str, Any]:
        """What a query would answer: ``rows``, ``bytes``, ``time``, ``would_answer``. Takes what ``query`` takes.

        >>> td.estimate("exchange_a_spot_trades", n_rows=10)["rows"]
        10
        """
        found: dict[str, Any] = self._http.json("POST", "/v1/raw/estimate", self._query(dataset, **request))
        return found

    def changes(self, since: int = 0, *, dataset: str | None = None) -> Iterator[dict[str, Any]]:
        """Every change of what is proved after the number ``since``, in order: ``number``, ``kind``, ``dataset``, ``partition``.

        >>> next(td.changes(since=0))["number"]
        1
        """
        while True:
            query = urlencode(_present(since=since, dataset=dataset))
            page = self._http.json("GET", f"/v1/changes?{query}")
            yield from page["changes"]
            if page["next"] == since:
                return
            since = page["next"]

    def lineage(self, row: Any, dataset: str | None = None, *, instrument: str | None = None) -> dict[str, Any]:
        """The vendor's bytes behind a row, their document, its proof and its leaf in the proof log.

        ``row``: a row of a native answer: what iterating gives, a pandas Series or named tuple, a dict, or an offset such as a
        trade id. ``dataset`` and ``instrument``: needed for offsets, named tuples and other dicts, which do not say them.

        >>> answer = td.lineage(next(iter(td.query("exchange_a_spot_trades", n_rows=1))))
        >>> answer["proof"]["expected"]["rows"] == answer["proof"]["recount"]["rows"]
        True
        """
        attributes = getattr(row, "attrs", {})
        held = attributes.get("tidemark_sources", [])
        if dataset is None:
            if len(held) != 1:
                raise SettingError("lineage(): this row does not say its dataset: pass dataset=")
            dataset = str(held[0])
        instrument = instrument or attributes.get("tidemark_instrument")
        offset, day = _offset(dataset, row)
        path = f"/v1/lineage/{quote(dataset, safe='')}/{quote(offset, safe=':')}"
        query = _present(instrument=instrument)
        try:
            return self._lineage(path, query)
        except ServiceError as error:
            if error.code != "LINEAGE_OFFSET_AMBIGUOUS" or day is None:
                raise
        # Ids of exchange C begin again each day.
        return self._lineage(path, {**query, "date": day})

    def export(self, dataset: str | Mapping[str, Any], path: str | os.PathLike[str], **request: Any) -> Export:
        """Makes an export, waits for it and downloads it: ``path`` is a file, or a folder for files and ``manifest.json``.

        ``format`` (``"parquet"``, ``"csv"``) and ``compression`` follow the file's name, or are given. Takes what ``query``
        takes, and ``month_year=(1, 2024)``; a mapping of columns makes a frame, with ``grid``. Interrupted downloads resume;
        a file appears when its sha256 is right.

        >>> made = td.export("exchange_a_spot_trades", "week.parquet", n_rows=1000)
        >>> made.row_count, made.paths[0].name
        (1000, 'week.parquet')
        """
        target = Path(path)
        format_, compression = _format_of(target)
        format_ = request.pop("format", None) or format_
        compression = request.pop("compression", None) or compression
        extra = _present(
            format=format_, compression=compression, month_year=request.pop("month_year", None),
            csv_formulas=request.pop("csv_formulas", None),
        )  # fmt: skip
        key = request.pop("idempotency_key", None)
        if isinstance(dataset, Mapping):
            body = {"columns": flattened(dataset), "grid": seconds(request.pop("grid")), **_present(**request)}
            start, end = body.pop("start", None), body.pop("end", None)
            body.update(self._window(start, end, body.get("n_rows"), _series_of(body["columns"])))
            if body.get("as_of") not in (None, "row"):
                body["as_of"] = iso(body["as_of"], "as_of")
        else:
            body = self._query(dataset, **request)
            body["dataset"] = body.pop("sources")[0]
            if not {"time_range", "n_rows", "n_random"} & body.keys() and "month_year" not in extra:
                body.update(self._proved([(dataset, body.get("instrument"))]))
        submitted = self.exports.submit({**body, **extra}, idempotency_key=key)
        warn(submitted.get("warnings") or [])
        return self.exports.fetch(self.exports.wait(submitted["export_id"]), target)

    def lake(self, path: str | os.PathLike[str]) -> Lake:
        """A lake that ``./tidemark lake`` wrote."""
        return Lake(Path(path))

    def proof_key(self) -> str:
        """The verifier key of the service's proof log, and below it the rotations. Trust it once, and keep it."""
        key = self._http.send("GET", "/v1/proofs/key").read().decode()
        try:
            return key + self._http.send("GET", "/v1/proofs/rotations").read().decode()
        except ServiceError as error:
            if error.status != 404:
                raise
            return key

    def version(self) -> str:
        """The release of the service."""
        return str(self._http.json("GET", "/openapi.json")["info"]["version"])

    # How

    def _lineage(self, path: str, query: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._http.json("GET", path + (f"?{urlencode(query)}" if query else ""))
        return found

    def _read(
        self,
        path: str,
        body: Mapping[str, Any],
        accept: str,
        read: Callable[[Response, Iterator[bytes]], Any],
        what: str,
    ) -> Any:
        """Reads an answer; one that breaks off is asked for once more."""
        for may_retry in (True, False):
            response = self._http.send("POST", path, body, {"Accept": accept})
            try:
                with Progress(self._progress, what, "B") as bar:
                    return read(response, bar.over(response.pieces()))
            except IncompleteAnswerError:
                if not may_retry:
                    raise
            except UnknownAnswerError as error:
                raise UnknownAnswerError(f"{error.detail} (client {VERSION}, service {self._version_or_unknown()})") from error
            finally:
                response.close()
        raise AssertionError("unreachable")  # pragma: no cover

    def _version_or_unknown(self) -> str:
        try:
            return self.version()
        except (TidemarkError, LookupError, TypeError):
            return "of unknown release"

    def _answer(
        self,
        path: str,
        body: Mapping[str, Any],
        empty: Empty | None,
        schema: Callable[[], Sequence[Field]],
        sources: tuple[str, ...],
        accept: str | None = None,
    ) -> Answer:
        accept = accept or (ARROW if has("pyarrow") or has("polars") else NDJSON)
        try:
            found: Answer = self._read(path, body, accept, read_answer, sources[0])
        except NoRowsError as error:
            if (empty or self._empty) != "frame":
                raise
            warn(error.warnings)
            mode = None if path == "/v1/frame" else str(body.get("mode", "native"))
            head = Head(sources=sources, mode=mode, schema=tuple(schema()), warnings=tuple(error.warnings))
            return Answer(head)
        warn(found.warnings)
        return found

    def _rows_of(self, dataset: str, *, empty: Empty | None, **request: Any) -> Answer:
        """An answer that is rearranged row by row."""
        body = self._query(dataset, **request)
        return self._answer("/v1/raw/query", body, empty, lambda: self._schema(dataset, "native", None), (dataset,), NDJSON)

    def _query(
        self,
        dataset: str,
        *,
        start: Time | None = None,
        end: Time | None = None,
        n_rows: int | None = None,
        n_random: int | None = None,
        random_seed: int | None = None,
        mode: Mode | None = None,
        fields: Sequence[str] | None = None,
        filters: Iterable[Filter] | None = None,
        as_of: Time | None = None,
        strict: bool = False,
        silences: Literal["warn"] | None = None,
        view_id: str | None = None,
        view_version: int | None = None,
        instrument: str | None = None,
    ) -> dict[str, Any]:
        return {
            "sources": [dataset],
            **self._window(start, end, n_rows if n_rows is not None else n_random, [(dataset, instrument)]),
            **_present(
                n_rows=n_rows,
                n_random=n_random,
                random_seed=random_seed,
                mode=mode,
                fields=list(fields) if fields is not None else None,
                filters=clauses(filters) or None if filters is not None else None,
                as_of=iso(as_of, "as_of") if as_of is not None else None,
                strict=strict or None,
                silences=silences,
                view_id=view_id,
                view_version=view_version,
                instrument=instrument,
            ),
        }

    def _days(
        self,
        *,
        start: Time | None,
        end: Time | None,
        n_rows: int | None,
        n_random: int | None,
        random_seed: int | None,
        fields: Sequence[str] | None,
        filters: Iterable[Filter] | None,
        strict: bool,
        silences: Literal["warn"] | None,
        instrument: str | None,
        bucket: timedelta = timedelta(0),
    ) -> dict[str, Any]:
        """The body of a historical route, which takes whole days: other bounds become filters."""
        found = clauses(filters) if filters is not None else []
        body: dict[str, Any] = {}
        _one_window(start, end, n_rows if n_rows is not None else n_random)
        if start is not None:
            begin = moment(start, "start")
            body["start_date"] = iso(begin)[:10]
            if not is_midnight(begin):
                found.append({"field": "datetime", "op": "gte", "value": iso(begin)})
        if end is not None:
            stop = moment(end, "end")
            if start is not None and stop <= moment(start, "start"):
                raise SettingError(f"end is {iso(stop)}, which is not after start, {iso(start)}")
            body["end_date"] = iso(stop - timedelta(milliseconds=1))[:10]
            if not is_midnight(stop):
                op = {"op": "lte", "value": iso(stop - bucket)} if bucket else {"op": "lt", "value": iso(stop)}
                found.append({"field": "datetime", **op})
        return {
            **body,
            **_present(
                n_latest_rows=n_rows,
                n_random_rows=n_random,
                random_seed=random_seed,
                fields=list(fields) if fields is not None else None,
                filters=found or None,
                strict=strict or None,
                silences=silences,
                instrument=instrument,
            ),
        }

    def _window(self, start: Time | None, end: Time | None, count: int | None, series: Sequence[_Series]) -> dict[str, Any]:
        _one_window(start, end, count)
        if start is None and end is None:
            return {}
        if start is not None and end is not None:
            return {"time_range": [iso(start, "start"), iso(end, "end")]}
        proved = self._proved(series)["time_range"]
        return {
            "time_range": [
                iso(start, "start") if start is not None else proved[0],
                iso(end, "end") if end is not None else proved[1],
            ]
        }

    def _proved(self, series: Sequence[_Series]) -> dict[str, Any]:
        """The window of all that is proved."""
        known = {one["key"]: one["availability"] or {} for one in self.datasets()}
        bounds: list[Mapping[str, Any]] = [known.get(dataset, {}) for dataset, instrument in series if instrument is None]
        for dataset, instrument in series:
            if instrument is not None:
                query = urlencode({"instrument": instrument, "limit": 1})
                coverage = self._http.json("GET", f"/v1/coverage/{quote(dataset, safe='')}?{query}")
                bounds += coverage["proved"]
        starts = [str(one[name]) for one in bounds for name in ("proved_from_utc", "start_utc") if one.get(name)]
        ends = [str(one[name]) for one in bounds for name in ("proved_through_utc", "as_of_utc", "through_utc") if one.get(name)]
        if not starts or not ends:
            told = ", ".join(" ".join(filter(None, one)) for one in series)
            raise SettingError(f"Nothing of {told} is proved (yet): give start= and end=")
        return {"time_range": [min(starts), max(ends)]}

    def _dataset(self, key: str) -> dict[str, Any]:
        found = {str(one["key"]): one for one in self.datasets()}
        if key not in found:
            raise SettingError(f"The service has no dataset {key!r}; it has {', '.join(found)}")
        return found[key]

    def _schema(self, dataset: str, mode: str, fields: Sequence[str] | None) -> list[Field]:
        known = {one["name"]: one for one in self._dataset(dataset)["modes"][mode]["fields"]}
        return [Field(name, str(known[name]["dtype"]), bool(known[name]["nullable"])) for name in fields or known]

    def _frame_schema(self, body: Mapping[str, Any]) -> list[Field]:
        known = {
            (data["key"], one["name"]): one
            for data in self.datasets()
            for mode in data["modes"].values()
            for one in mode["fields"]
        }
        times = ["datetime"] + (["known_at_utc"] if body.get("as_of") == "row" else [])
        found = [Field(name, "timestamp_utc", False) for name in times]
        for one in body["columns"]:
            dtype = str(known.get((one["dataset"], one["field"]), {}).get("dtype", "float64"))
            found.append(Field(one["name"], "int64" if one.get("aggregate") == "count" else dtype))
        return found


def _settings(url: str | None, key: str | None) -> tuple[str, str]:
    url = url or os.environ.get("TIDEMARK_URL")
    key = key or os.environ.get("TIDEMARK_KEY")
    if url and key:
        return url, key
    own = os.environ.get("SVC_STATE_DIR")
    folders = [Path(own)] if own else [folder / ".tidemark" for folder in (Path.cwd(), *Path.cwd().parents)]
    for folder in folders:
        try:
            running = json.loads((folder / "up.json").read_text())
            secret = str(json.loads((folder / "secrets.json").read_text())["apiKey"])
        except (OSError, ValueError, KeyError):
            continue
        if url and url.rstrip("/") != str(running["url"]).rstrip("/"):
            continue  # The key of one service is not sent to another.
        if not key and hashlib.sha256(secret.encode()).hexdigest() != running.get("keySha256"):
            raise SettingError(f"The service of {folder} runs with a key that is set elsewhere: pass key=, or set TIDEMARK_KEY")
        return url or str(running["url"]), key or secret
    missing = " and ".join(name for name, value in (("TIDEMARK_URL", url), ("TIDEMARK_KEY", key)) if not value)
    raise SettingError(
        f"Where is the service? There is no {missing}, and no service of this folder runs",
        hint='Pass url= and key=, or run `eval "$(./tidemark env)"` first.',
    )


def _one_window(start: Time | None, end: Time | None, count: int | None) -> None:
    if count is not None and (start is not None or end is not None):
        raise SettingError("Give start and end, or a number of rows, not both")


def _present(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def _exchange(dataset: str) -> str:
    return quote(dataset.removesuffix("_spot_trades"), safe="")


def _series_of(columns: Iterable[Column]) -> list[_Series]:
    """The series of the columns of a frame, each once."""
    return list(dict.fromkeys((str(one["dataset"]), one.get("instrument")) for one in columns))


def _listed(field: str, values: str | Sequence[str] | None, of: Callable[[str], str]) -> list[dict[str, Any]]:
    if values is None:
        return []
    if isinstance(values, str):
        return [{"field": field, "op": "eq", "value": of(values)}]
    return [{"field": field, "op": "in", "value": [of(one) for one in values]}]


def _vintage_order(row: Mapping[str, Any]) -> tuple[str, datetime, str]:
    return row["source_id"], row["observed_at_utc"], json.loads(row["provenance_json"])["realtime_start"]


def _widened(rows: Sequence[Mapping[str, Any]], asked: Iterable[str] = ()) -> tuple[list[Field], list[dict[str, Any]]]:
    """One row a fund and day, and a column of each metric that was found or asked for.

    Of several captures of a day, the value of the last row counts.
    """
    kinds: dict[str, str] = {}
    wide: dict[tuple[datetime, str], dict[str, Any]] = {}
    order = ("bool01", "int64", "float64", "string")
    for row in rows:
        name = row["metric_name"]
        if name == "observed_at_utc":  # The day once more, which every row has.
            continue
        values = {
            "int64": row["metric_value_int"],
            "float64": row["metric_value_float"],
            "bool01": row["metric_value_bool"],
        }
        kind = next((dtype for dtype, value in values.items() if value is not None), None)
        # A number that the document leaves empty has a unit and no value.
        if kind is None and row["metric_unit"] is None:
            kind = "string"
        if kind is not None:
            kinds[name] = max(kinds.get(name, kind), kind, key=order.index)
        key = (row["observed_at_utc"], row["source_id"])
        fund = row["source_id"].split("_")[2].upper()
        one = wide.setdefault(key, {"observed_at_utc": key[0], "source_id": key[1], "fund": fund})
        one[name] = row
    names = sorted({*asked, *(name for one in wide.values() for name in one if isinstance(one[name], Mapping))})
    keys = [
        Field("observed_at_utc", "timestamp_utc", False),
        Field("source_id", "string", False),
        Field("fund", "string", False),
    ]
    members = {
        "bool01": "metric_value_bool",
        "int64": "metric_value_int",
        "float64": "metric_value_float",
        "string": "metric_value_string",
    }
    for one in wide.values():
        for name in names:
            one[name] = one[name][members[kinds.get(name, "float64")]] if name in one else None
    found = [{name: wide[key][name] for name in (*(one.name for one in keys), *names)} for key in sorted(wide)]
    return [*keys, *(Field(name, kinds.get(name, "float64")) for name in names)], found


def _offset(dataset: str, row: Any) -> tuple[str, str | None]:
    """The offset of a row, and the day that tells rows of one offset apart."""
    if hasattr(row, "_asdict"):
        row = row._asdict()
    if isinstance(row, (str, int)) or not hasattr(row, "keys"):
        return str(row), None
    cells = {str(name): row[name] for name in row.keys()}  # noqa: SIM118 - a Series iterates over its values
    try:
        if dataset.endswith("_spot_trades"):
            stamp = cells.get("timestamp")
            day = iso(datetime.fromtimestamp(int(stamp) / 1000, UTC))[:10] if stamp is not None else None
            return str(int(cells["trade_id"])), day
        if dataset == "bitcoin_block_transactions":
            return f"{int(cells['block_height'])}:{int(cells['transaction_index'])}:{cells['txid']}", None
        if dataset == "bitcoin_mempool_state":
            return f"{int(cells['snapshot_at_unix_ms'])}:{cells['txid']}", None
        if "metric_id" in cells:
            return str(cells["metric_id"]), None
        return str(int(cells["height"] if dataset == "bitcoin_block_headers" else cells["block_height"])), None
    except KeyError as error:
        raise SettingError(f"lineage(): a row of {dataset} needs the column {error.args[0]}") from error


def _format_of(path: Path) -> tuple[str, str | None]:
    packed = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    suffix = Path(path.stem).suffix if packed else path.suffix
    return ("csv", packed) if suffix == ".csv" else ("parquet", None)
