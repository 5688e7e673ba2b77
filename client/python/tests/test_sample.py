"""What needs the pipeline behind the rows: exports, lineage, changes, the proof log."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DATASETS, Proxy, Upstream
from test_manners import alter_values, cut

import tidemark_client as tm

pl = pytest.importorskip("polars")
pytest.importorskip("cryptography")
pytestmark = pytest.mark.sample
TRADES = "exchange_a_spot_trades"


@pytest.fixture(scope="module")
def key(td: tm.Client) -> str:
    return td.proof_key()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("dataset", DATASETS)
def test_every_dataset_is_exported_and_proved_row_by_row(
    td: tm.Client, key: str, folder: Path, dataset: str, suffix: str
) -> None:
    made = td.export(dataset, f"rows{suffix}")
    assert made.paths == (Path(f"rows{suffix}"),) and made.row_count > 0
    report = made.check(key)
    assert report.faults == [] and any(one.startswith("every row of") for one in report.checked), str(report)
    if suffix == ".parquet" and not dataset.endswith("_trades"):
        wanted = td.query(dataset).pl(time_unit="ms")
        found = pl.read_parquet(made.paths[0])
        assert found.cast(wanted.schema).equals(wanted)
    assert sorted(os.listdir(folder)) == [f"rows{suffix}", f"rows{suffix}.manifest.json"]


def test_a_folder_is_what_the_services_own_check_takes(td: tm.Client, key: str, folder: Path) -> None:
    made = td.export(TRADES, folder / "export", format="csv", compression="gzip", n_rows=500)
    assert sorted(path.name for path in (folder / "export").iterdir()) == [
        "exchange_a_spot_trades.native.latest-500.csv.gz",
        "manifest.json",
    ]
    assert tm.check(folder / "export", key).ok and made.check(key).ok
    frame = td.export({**tm.ohlc("exchange_a"), "rate": tm.macro("FEDFUNDS")}, "frame.csv", grid="1h", as_of="row", n_rows=48)
    assert frame.row_count == 48 and frame.check(key).ok
    month = td.export("macro_series_metrics", "month.csv", month_year=(11, 2025))
    assert month.row_count > 0


def test_a_download_resumes_and_a_wrong_one_is_none(proxy: Proxy, folder: Path) -> None:
    td = proxy.client()
    submitted = td.exports.submit({"dataset": TRADES, "format": "csv", "n_rows": 20_000})
    status = td.exports.wait(submitted["export_id"])
    (file,) = status["artifact"]["files"]
    proxy.faults = [cut(0.5), cut(0.5), cut(0.5)]
    path = td.exports.download(file, "rows.csv")
    asked = [one["range"] for one in proxy.requests if "range" in one]
    assert len(asked) == 4 and asked[0] == "bytes=0-" and len(set(asked)) == 4
    assert hashlib.sha256(path.read_bytes()).hexdigest() == file["checksum_sha256"]
    # What an earlier process left is continued.
    part = folder / f".more.csv.{file['checksum_sha256'][:16]}.part"
    part.write_bytes(path.read_bytes()[:1000])
    td.exports.download(file, "more.csv")
    assert proxy.requests[-1]["range"] == "bytes=1000-" and (folder / "more.csv").read_bytes() == path.read_bytes()
    proxy.faults = [alter_values]
    with pytest.raises(tm.AlteredAnswerError, match="sha256"):
        td.exports.download(file, "rows.csv")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == file["checksum_sha256"]

    def another(answer: Upstream) -> None:
        answer.headers = [(n, '"other"' if n.lower() == "etag" else v) for n, v in answer.headers]

    proxy.faults = [another]
    with pytest.raises(tm.AlteredAnswerError, match="was replaced"):
        td.exports.download(file, "other.csv")
    proxy.faults = [cut(0.0)] * 3
    with pytest.raises(tm.IncompleteAnswerError):
        td.exports.download(file, "other.csv")
    assert sorted(name for name in os.listdir(folder) if not name.startswith(".")) == ["more.csv", "rows.csv"]


def test_exports_one_by_one(td: tm.Client) -> None:
    one = td.exports.submit({"dataset": TRADES, "format": "csv", "n_rows": 10}, idempotency_key="a-key")
    assert (
        td.exports.submit({"dataset": TRADES, "format": "csv", "n_rows": 10}, idempotency_key="a-key")["export_id"]
        == one["export_id"]
    )
    td.exports.wait(one["export_id"])
    assert one["export_id"] in [found["export_id"] for found in td.exports.list(dataset=TRADES)]
    with pytest.raises(tm.ServiceError):
        td.exports.cancel(one["export_id"])
    with pytest.raises(tm.ContractError):
        td.export(TRADES, "x.parquet", n_rows=0)


def unsigned(lineage: dict) -> dict:
    """Without the checkpoint, which the log signs anew every few minutes."""
    return {name: value for name, value in lineage.items() if name != "checkpoint"}


def test_a_row_leads_to_its_bytes(td: tm.Client, key: str) -> None:
    for dataset in DATASETS:
        answer = td.query(dataset, n_rows=3)
        lineage = td.lineage(list(answer)[1])
        assert lineage["dataset"] == dataset and tm.check(lineage, key).ok
        assert unsigned(td.lineage(answer.pl().row(1, named=True), dataset)) == unsigned(lineage)
        if has_pandas():
            assert unsigned(td.lineage(answer.df(index=False).iloc[1])) == unsigned(lineage)
            assert unsigned(td.lineage(list(answer.df(index=False).itertuples())[1], dataset)) == unsigned(lineage)
    with pytest.raises(tm.SettingError, match="dataset="):
        td.lineage(7)
    assert td.lineage(7, TRADES)["offset"] == "7"


def has_pandas() -> bool:
    try:
        import pandas  # noqa: F401
    except ImportError:
        return False
    return True


def test_changes_are_numbered_without_a_hole(td: tm.Client) -> None:
    every = list(td.changes())
    assert [one["number"] for one in every] == list(range(1, len(every) + 1))
    assert list(td.changes(since=len(every) - 2)) == every[-2:]
    assert {one["dataset"] for one in td.changes(dataset=TRADES)} == {TRADES}
    with pytest.raises(tm.ServiceError):
        next(td.changes(since=10**9))


def test_the_command_checks_what_lies_in_files(td: tm.Client, key: str, folder: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "tidemark_client", "check", *arguments], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    (folder / "log.key").write_text(key)
    td.export(TRADES, "export", format="csv", n_rows=100)
    assert run("export", "--key", "log.key")[0] == 0
    answer = td.lineage(1, TRADES)
    (folder / "lineage.json").write_text(json.dumps(answer))
    code, said = run("lineage.json", "--key", "log.key")
    assert code == 0 and "leaf " in said
    (folder / "lineage.json").write_text(json.dumps({**answer, "synthetic": not answer["synthetic"]}))
    assert run("lineage.json", "--key", "log.key")[0] == 1
    checkpoint = td.query(TRADES, n_rows=1).checkpoint
    (folder / "checkpoint.note").write_text(checkpoint)
    code, said = run("checkpoint.note", "--key", "log.key", "--log", td.url)
    assert code == 0 and "leaves" in said
    assert run("nowhere", "--key", "log.key")[0] == 2
    assert run("lineage.json", "--key", "no key")[0] == 2


def test_one_proved_number_needs_no_service(td: tm.Client, key: str, folder: Path) -> None:
    (folder / "lineage.json").write_text(json.dumps(td.lineage(1, TRADES)))
    report = tm.check("lineage.json", key)
    assert report.ok and "the bytes of the event have their sha256" in report.checked
    assert "not" not in str(report.faults)


INSTRUMENTS = ["BTCUSDT", "ETHUSDT", "SOLUSDT"]


def test_the_instruments_of_an_exchange_are_told(td: tm.Client) -> None:
    assert {one["instrument"] for one in td.instruments(TRADES)} == set(INSTRUMENTS)
    assert {one["dataset"] for one in td.instruments()} == {name for name in DATASETS if name.endswith("_spot_trades")}
    with pytest.raises(tm.ContractError, match="did you mean ETHUSDT") as error:
        td.trades("exchange_a", n_rows=1, instrument="ETHUSD")
    assert error.value.pointer == "/instrument"


@pytest.mark.parametrize("instrument", INSTRUMENTS[1:])
def test_every_method_takes_an_instrument(td: tm.Client, key: str, folder: Path, instrument: str) -> None:
    own = {"instrument": instrument}
    whole = td.query(TRADES, **own)
    (known,) = (one for one in td.instruments(TRADES) if one["instrument"] == instrument)
    assert whole.row_count == known["rows"] and whole.instrument == instrument in repr(whole)
    assert td.query(TRADES, n_rows=1).instrument is None
    rows = whole.pl()
    prices = rows["price"]
    assert prices.max() < td.query(TRADES, n_rows=1000).pl()["price"].min()
    # An open window ends with what is proved of the instrument.
    for window in ({"start": "2020-01-01"}, {"end": "2030-01-01"}):
        assert td.query(TRADES, **window, **own).row_count == whole.row_count
    for unified in (True, False):
        found = td.trades("exchange_a", unified=unified, **own)
        assert found.instrument == instrument and found.pl()["price"].equals(prices)
    bars = td.klines("exchange_a", "1d", **own).pl()
    assert (bars["high"].max(), bars["no_of_trades"].sum()) == (prices.max(), whole.row_count)
    columns = {"own": tm.ohlc("exchange_a", **own), "n": tm.column(TRADES, "trade_id", aggregate="count", **own)}
    for frame in (
        td.frame({**columns, "btc": tm.ohlc("exchange_a")}, grid="1d"),
        td.frame(columns, grid="1d", start="2020-01-01", as_of="row"),
    ):
        cells = frame.pl().filter(pl.col("n") > 0)
        assert cells["own_close"].to_list() == bars["close"].to_list() and cells["n"].sum() == whole.row_count
    coverage = td.coverage(TRADES, **own)
    assert coverage["instrument"] == instrument and coverage["totals"]["proved"]["rows"] == whole.row_count
    assert td.estimate(TRADES, **own)["rows"] == whole.row_count
    assert td.save("rows.csv", TRADES, **own).read_bytes().count(b"\n") == whole.row_count + 1
    for name in ("export.csv", "export.parquet"):
        made = td.export(TRADES, name, **own)
        report = made.check(key)
        assert made.row_count == whole.row_count and report.ok, str(report)
        assert any(one.startswith("every row of 7 whole partitions") for one in report.checked), str(report)
    row = rows.row(-1, named=True)
    lineage = td.lineage(row, TRADES, **own)
    assert lineage["partition"].startswith(f"{instrument}:") and tm.check(lineage, key).ok
    assert td.lineage(list(whole)[-1]) == lineage
    if has_pandas():  # Its frames remember where they are from.
        assert td.lineage(whole.df(index=False).iloc[-1]) == lineage
    changes = [one for one in td.changes(dataset=TRADES) if one.get("instrument") == instrument]
    assert {one["partition"] for one in changes} == {one["partition"] for one in coverage["partitions"]}


def test_batches_take_the_memory_of_one(td: tm.Client, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setattr("tidemark_client.answer.IN_MEMORY", 1 << 20)
    answer = td.query(TRADES)
    whole, before, most = answer.arrow().nbytes, pa.total_allocated_bytes(), 0
    rows = 0
    for batch in answer.batches():
        rows += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert rows == answer.row_count and whole > 8_000_000 and most < whole / 8


def test_a_mirror_of_one_instrument_has_fewer_files_than_its_log(key: str, folder: Path) -> None:
    if "TIDEMARK_LAKE" not in os.environ:
        pytest.skip("no lake is written")
    shutil.copytree(Path(os.environ["TIDEMARK_LAKE"]), "lake")
    lake = Path("lake")
    for other in [one for one in (*lake.iterdir(), *(lake / "_proofs").iterdir()) if one.name in DATASETS]:
        if other.name != TRADES:
            shutil.rmtree(other)
    root = json.loads((lake / "_manifest.json").read_text())
    root["tables"] = [note for note in root["tables"] if note["table"].startswith(TRADES)]
    (lake / "_manifest.json").write_text(json.dumps(root))
    assert tm.check(lake, key).ok
    for path in lake.glob(f"{TRADES}/*/date=*/instrument=BTCUSDT/*.parquet"):
        path.unlink()
    assert any("is missing" in one for one in tm.check(lake, key).faults)
    (lake / "_mirror.json").write_text(json.dumps({"datasets": [f"{TRADES}:ETHUSDT", f"{TRADES}:SOLUSDT"]}))
    report = tm.check(lake, key)
    assert report.ok and any("files of instruments that this mirror does not keep" in one for one in report.not_checked)
