"""What needs no service."""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import threading
from pathlib import Path

import pytest

import tidemark_client as tm
from tidemark_client import answer, columns, errors
from tidemark_client.client import _offset, _settings, _widened
from tidemark_client.extras import need
from tidemark_client.http import Transport
from tidemark_client.times import iso, moment, seconds


def test_times_are_utc_and_cut_up_to_a_millisecond() -> None:
    assert iso(dt.date(2024, 5, 4)) == "2024-05-04T00:00:00.000Z"
    assert iso(dt.datetime(1, 1, 1)) == "0001-01-01T00:00:00.000Z"
    assert iso(dt.datetime(2024, 5, 4, 2, tzinfo=dt.timezone(dt.timedelta(hours=2)))) == "2024-05-04T00:00:00.000Z"
    # `t >= start` and `t < end` of rows in milliseconds are the same with the next whole one.
    assert iso("2024-05-04T00:00:00.0000001Z") == "2024-05-04T00:00:00.001Z"
    assert iso("2024-05-04 00:00:00.5") == "2024-05-04T00:00:00.500Z"


def test_times_of_numpy_and_pandas() -> None:
    np, pd = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    assert iso(np.datetime64("2024-05-04")) == "2024-05-04T00:00:00.000Z"
    assert iso(np.datetime64("2024-05-04T00:00:00.123456789")) == "2024-05-04T00:00:00.124Z"
    assert iso(pd.Timestamp("2024-05-04", tz="Europe/Berlin")) == "2024-05-03T22:00:00.000Z"
    assert iso(pd.Timestamp("2024-05-04 00:00:00.000000001")) == "2024-05-04T00:00:00.001Z"
    for none in (pd.NaT, np.datetime64("NaT")):
        with pytest.raises(tm.SettingError):
            iso(none)


@pytest.mark.parametrize("value", [5, 1.5, None, "yesterday", "2024-13-01", [2024]])
def test_what_is_no_time_is_refused(value: object) -> None:
    with pytest.raises(tm.SettingError):
        moment(value)


def test_intervals() -> None:
    assert [seconds(size) for size in ("90s", "5m", "4h", "1d", "1w", 7, dt.timedelta(hours=1))] == [
        90, 300, 14_400, 86_400, 604_800, 7, 3600,
    ]  # fmt: skip
    for size in ("1M", "h", dt.timedelta(milliseconds=1)):
        with pytest.raises(tm.SettingError):
            seconds(size)


def test_columns_have_short_words() -> None:
    flat = columns.flattened({**tm.ohlc("exchange_a"), "b": tm.ohlc("exchange_b"), "cpi": tm.macro("CPIAUCSL")})
    assert [one["name"] for one in flat] == [
        *("open", "high", "low", "close", "volume", "b_open", "b_high", "b_low", "b_close", "b_volume", "cpi"),
    ]
    assert tm.etf("gbtc", "btc_units")["filter"][0]["value"] == "etf_grayscale_gbtc_daily"
    assert "instrument" not in tm.ohlc("exchange_a")["open"]
    assert tm.ohlc("exchange_a", instrument="ETHUSDT")["open"]["instrument"] == "ETHUSDT"
    for wrong in (lambda: tm.etf("NOPE", "x"), lambda: tm.block("nope")):
        with pytest.raises(tm.SettingError, match="known are"):
            wrong()


def test_filters_are_tuples_or_the_services_own() -> None:
    assert columns.clauses(("price", ">", 1)) == [{"field": "price", "op": "gt", "value": 1}]
    own = {"field": "side", "op": "in", "value": ["buy"]}
    assert columns.clauses([own, ("a", "eq", None)]) == [own, {"field": "a", "op": "eq", "value": None}]


def test_a_problem_is_an_error_with_its_members() -> None:
    faults = [{"pointer": "/n_rows", "message": "must be an integer"}, {"pointer": "", "message": "is\x1b[2J odd"}]
    problem = {"code": "QUERY_CONTRACT_ERROR", "status": 409, "detail": "Two \x07faults.", "request_id": "r-1", "errors": faults}
    error = errors.service_error(problem)
    assert isinstance(error, tm.ContractError)
    assert (error.code, error.detail, error.pointer, error.request_id) == (
        "QUERY_CONTRACT_ERROR", "Two \x07faults.", "/n_rows", "r-1",
    )  # fmt: skip
    assert (
        str(error)
        == "QUERY_CONTRACT_ERROR: Two \\u{7}faults.\n  /n_rows must be an integer\n  (body) is\\u{1b}[2J odd\n  request r-1"
    )
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.pointer) == (tm.ContractError, str(error), "/n_rows")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("AUTH_INVALID_API_KEY", 409, tm.KeyRefusedError),
        ("AUTH_DATASET_NOT_COVERED", 409, tm.KeyRefusedError),
        ("AUTH_KEYS_UNAVAILABLE", 503, tm.UnavailableError),
        ("AUTH_CONCURRENCY_LIMITED", 429, tm.UnavailableError),
        ("RATE_LIMITED", 429, tm.UnavailableError),
        ("HISTORICAL_CONTRACT_ERROR", 409, tm.ContractError),
        ("QUERY_RIGHTS_RESOLUTION_ERROR", 503, tm.UnavailableError),
        ("QUERY_RIGHTS_MISSING_STATE", 409, tm.RightsError),
        ("QUERY_SERVING_SHADOW_MODE", 409, tm.RightsError),
        ("EXPORT_AUTH_TOKEN_UNSUPPORTED", 409, tm.RightsError),
        ("STRICT_MODE_WARNING_FAILURE", 409, tm.StrictWarningError),
        ("HISTORICAL_NO_DATA", 404, tm.NoRowsError),
        ("QUERY_TIMEOUT", 503, tm.UnavailableError),
        ("DATASET_NOT_FOUND", 404, tm.ServiceError),
    ],
)
def test_codes_have_classes(code: str, status: int, kind: type[Exception]) -> None:
    assert type(errors.service_error({"code": code, "status": status, "detail": ""})) is kind


def test_what_lacks_its_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(tm.MissingExtraError, match=r"pip install 'tidemark-client\[polars\]'"):
        monkeypatch.setitem(__import__("sys").modules, "polars", None)
        need("polars", "pl()")


def test_url_and_key_come_from_arguments_environment_or_state_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    for name in ("TIDEMARK_URL", "TIDEMARK_KEY", "SVC_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(tm.SettingError, match="TIDEMARK_URL and TIDEMARK_KEY"):
        tm.Client()
    state = folder / ".tidemark"
    state.mkdir()
    digest = hashlib.sha256(b"secret").hexdigest()
    (state / "up.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "keySha256": digest}))
    (state / "secrets.json").write_text(json.dumps({"apiKey": "secret"}))
    below = folder / "notebooks"
    below.mkdir()
    monkeypatch.chdir(below)
    assert _settings(None, None) == ("http://127.0.0.1:1", "secret")
    # The key of that service goes to no other.
    with pytest.raises(tm.SettingError, match="no TIDEMARK_KEY"):
        _settings("http://other", None)
    (state / "secrets.json").write_text(json.dumps({"apiKey": "of another start"}))
    with pytest.raises(tm.SettingError, match="runs with a key"):
        tm.Client()
    monkeypatch.setenv("TIDEMARK_URL", "http://there/prefix/")
    monkeypatch.setenv("TIDEMARK_KEY", "mine")
    client = tm.Client()
    assert client.url == "http://there/prefix"
    assert "mine" not in repr(client) and "mine" not in repr(vars(client))


@pytest.mark.parametrize("url", ["ftp://a", "nowhere", "http://", "http://u:p@a", "http://a?x=1"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(tm.SettingError):
        Transport(url, "key")


@pytest.mark.parametrize("key", ["", " x", "a\nb", "x "])
def test_a_key_that_is_no_header_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(tm.SettingError) as found:
        Transport("http://a", key)
    assert repr(key)[1:-1] not in str(found.value) or len(key.strip()) < 2


def test_proxies_and_certificates_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert Transport("http://a", "k")._proxy is None
    monkeypatch.setenv("HTTP_PROXY", "http://user:pass@proxy:3128")
    assert Transport("http://a", "k")._proxy.hostname == "proxy"
    assert Transport("http://a", "k")._proxy_headers == {"Proxy-Authorization": "Basic dXNlcjpwYXNz"}
    assert Transport("http://a", "k", proxy="")._proxy is None
    monkeypatch.setenv("NO_PROXY", "a")
    assert Transport("http://a", "k")._proxy is None
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/no/such/file.pem")
    with pytest.raises(tm.SettingError, match=r"/no/such/file\.pem"):
        Transport("https://a", "k")


def test_a_file_is_there_whole_or_not_at_all(folder: Path) -> None:
    def fails(part: Path) -> None:
        part.write_text("half")
        raise ValueError

    (folder / "x").write_text("before")
    with pytest.raises(ValueError):
        answer.written("x", fails)
    assert (folder / "x").read_text() == "before"
    answer.written("x", lambda part: part.write_text("after"))
    assert ((folder / "x").read_text(), os.listdir(folder)) == ("after", ["x"])


def test_many_bytes_lie_in_a_file_that_goes_with_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "IN_MEMORY", 10)
    spool = answer.Spool()
    for _ in range(5):
        spool.write(b"abcd")
    spool.end()
    path = Path(spool.path)
    assert (spool.buffer(), spool.tail(6), path.read_bytes()) == (None, b"cdabcd", b"abcd" * 5)
    child = os.fork()
    if child == 0:  # A fork ends without taking the file along.
        del spool
        os._exit(0)
    os.waitpid(child, 0)
    assert path.exists()
    del spool
    assert not path.exists()


def test_rows_know_their_offset() -> None:
    assert _offset("exchange_c_spot_trades", {"trade_id": 7, "timestamp": 1_704_067_200_000}) == ("7", "2024-01-01")
    assert _offset("bitcoin_block_transactions", {"block_height": 5, "transaction_index": 0, "txid": "4a"}) == ("5:0:4a", None)
    assert _offset("bitcoin_mempool_state", {"snapshot_at_unix_ms": 1, "txid": "4a"}) == ("1:4a", None)
    assert _offset("bitcoin_block_headers", {"height": 180}) == ("180", None)
    assert _offset("etf_daily_metrics", {"metric_id": "ab"}) == ("ab", None)
    assert _offset("exchange_a_spot_trades", 12) == ("12", None)
    with pytest.raises(tm.SettingError, match="needs the column trade_id"):
        _offset("exchange_a_spot_trades", {"price": 1.0})


def _metric(day: int, name: str, unit: str | None, **values: object) -> dict[str, object]:
    blank = dict.fromkeys(("metric_value_string", "metric_value_int", "metric_value_float", "metric_value_bool"))
    at = dt.datetime(2024, 1, day, tzinfo=dt.UTC)
    return {
        "source_id": "etf_ishares_ibit_daily",
        "observed_at_utc": at,
        "metric_name": name,
        "metric_unit": unit,
        **blank,
        **values,
    }


def test_a_wide_frame_has_the_last_capture_and_typed_columns() -> None:
    rows = [
        _metric(1, "btc_units", "BTC", metric_value_float=1.0, metric_value_string="1.0"),
        _metric(1, "btc_units", "BTC", metric_value_float=2.0, metric_value_string="2.0"),
        _metric(2, "btc_units", "BTC"),
        _metric(2, "wallet_count", "COUNT", metric_value_int=3, metric_value_float=3.0, metric_value_string="3"),
        _metric(2, "issuer", None, metric_value_string="<b>x</b>"),
        _metric(2, "observed_at_utc", None, metric_value_string="2024-01-02"),
    ]
    fields, found = _widened(rows)
    assert [(one.name, one.dtype) for one in fields[3:]] == [
        ("btc_units", "float64"),
        ("issuer", "string"),
        ("wallet_count", "int64"),
    ]
    assert [(one["btc_units"], one["issuer"], one["wallet_count"]) for one in found] == [(2.0, None, None), (None, "<b>x</b>", 3)]
    assert {one["fund"] for one in found} == {"IBIT"}
    # What was asked for is a column, of no rows as well.
    assert [one.name for one in _widened([], ["btc_units"])[0][3:]] == ["btc_units"]
    assert [row["total"] for row in _widened(rows, ["total"])[1]] == [None, None]


def test_integers_past_2_to_53_nulls_and_texts_stay_as_they_are() -> None:
    big = 2**63 - 1
    schema = (
        answer.Field("id", "int64"), answer.Field("flag", "bool01"), answer.Field("text", "string"),
        answer.Field("at", "timestamp_utc"), answer.Field("value", "float64"),
    )  # fmt: skip
    at = dt.datetime(2024, 1, 1, 0, 0, 0, 1000, tzinfo=dt.UTC)
    rows = [
        {"id": big, "flag": True, "text": "007", "at": at, "value": 0.1},
        {"id": None, "flag": None, "text": None, "at": None, "value": None},
        {"id": -big, "flag": False, "text": "", "at": at, "value": 5e-324},
    ]
    made = answer.Answer(answer.Head(sources=("x",), schema=schema), rows=rows)
    assert list(made) == rows
    if need_or_none("polars"):
        assert made.pl().to_dicts() == rows
    if need_or_none("pyarrow"):
        assert made.arrow().to_pylist() == rows
    if need_or_none("pandas") and need_or_none("pyarrow"):
        frame = made.df()
        assert [str(kind) for kind in frame.dtypes[["id", "flag"]]] == ["Int64", "boolean"]
        assert [frame["id"][0], frame["id"][2]] == [big, -big] and frame["id"].isna()[1]
        assert frame["at"].dtype == "datetime64[us, UTC]" and frame["text"][2] == ""


def need_or_none(module: str) -> object:
    try:
        return __import__(module)
    except ImportError:
        return None


def test_a_notebook_shows_words_of_vendors_as_words() -> None:
    warning = {"code": "X", "message": "<script>", "details": {}}
    head = answer.Head(sources=("x",), schema=(answer.Field("<i>", "string"),), warnings=(warning,))
    shown = answer.Answer(head, rows=[{"<i>": "<img src=x onerror=alert(1)>"}])._repr_html_()
    assert "<img" not in shown and "<script" not in shown and "<i>" not in shown
    assert "&lt;img src=x" in shown


def test_one_client_serves_many_threads_without_sharing_a_connection() -> None:
    transport = Transport("http://127.0.0.1:9", "k", max_attempts=1, timeout=0.5)
    found: list[BaseException] = []

    def ask() -> None:
        try:
            transport.json("GET", "/")
        except tm.ConnectError as error:
            found.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 8
