"""Holds exports, lakes, lineage answers, checkpoints and whole logs against the proof log, with nothing but its key.

A second reader of the same formats as the service's own ``./tidemark check``, which shares no code with it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import re
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from .errors import SettingError, TidemarkError
from .extras import need
from .prooflog import (
    TLOG_PROOF,
    Checkpoint,
    Key,
    ProofFault,
    Source,
    Tiles,
    continues,
    differing,
    follow,
    in_force,
    includes,
    is_named,
    is_proving,
    keys_in,
    leaf_hash,
    node_hash,
    open_checkpoint,
    open_note,
    parse_leaf,
    parse_tlog_proof,
    proved_leaf,
    source_of,
)
from .rows import Expected, Layout, RowDigests, csv_rows, layouts
from .times import seconds

#: A manifest has the leaves of at most so many partitions of a dataset.
_MAX_LEAVES = 1000
_PIECE = 1 << 20


@dataclass
class Report:
    """What a check found, in words. Without faults, everything in ``checked`` holds."""

    checked: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing that was checked is wrong."""
        return not self.faults

    def __str__(self) -> str:
        lines = [f"ok         {one}" for one in self.checked]
        lines += [f"unchecked  {one}" for one in self.not_checked]
        lines += [f"FAULT      {one}" for one in self.faults]
        return "\n".join("".join(c if c.isprintable() else f"\\u{{{ord(c):x}}}" for c in line) for line in lines)

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """A fault inside becomes one of the report."""
        try:
            yield
        except (ProofFault, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
            told = error.detail if isinstance(error, TidemarkError) else f"{type(error).__name__}: {error}"
            self.faults.append(f"{what}: {told}")


def check(
    subject: str | os.PathLike[str] | Mapping[str, Any],
    key: str | os.PathLike[str],
    *,
    document: str | os.PathLike[str] | None = None,
    log: str | None = None,
    second: str | os.PathLike[str] | None = None,
    max_age: int | str | timedelta | None = None,
) -> Report:
    """Checks whatever ``subject`` is; needs the extra ``check``, for Parquet also ``arrow``.

    ``subject``: the folder of an export or its manifest, a lineage answer, a checkpoint (with ``log``, the URL or the folder of
    the log, and perhaps a ``second`` one: the newer continues the older), a ``.tlog-proof`` (with its leaf's file as the
    ``second``, or ``log``), or the folder of a mirrored log or of a lake. ``key``: the verifier key of the log, its text or its
    file; below its line may stand the rotations. ``document``: the vendor's file of a lineage answer. ``max_age``: how old the
    newest checkpoint, or that of the log, may be, such as ``"1h"``.

    >>> trades = td.query("exchange_a_spot_trades", n_rows=1)
    >>> tm.check(td.lineage(next(iter(trades)), "exchange_a_spot_trades"), td.proof_key()).ok
    True
    """
    keys = keys_in(_key_text(key))
    oldest = None if max_age is None else time.time() - seconds(max_age)
    if isinstance(subject, Mapping):
        _no_age(oldest)
        return check_lineage(subject, keys, document)
    path = Path(subject)
    if path.is_dir():
        if (path / "checkpoint").is_file() and not (path / "manifest.json").is_file():
            return check_log(str(path), keys, oldest=oldest)
        if (path / "_manifest.json").is_file():
            _no_age(oldest)
            return check_lake(path, keys)
        path = path / "manifest.json"
    text = read_text(path)
    if not text.startswith((TLOG_PROOF, "{")):
        return _check_checkpoints(text, keys, log, read_text(Path(second)) if second else None, oldest)
    _no_age(oldest)
    if text.startswith(TLOG_PROOF):
        return check_tlog_proof(text, keys, Path(second) if second else None, log)
    found = json.loads(text)
    if "payload_raw" in found:
        return check_lineage(found, keys, document)
    name = path.name.removesuffix(".manifest.json")
    beside = [path.with_name(name)] if name != path.name else [path.with_name(str(one["name"])) for one in found.get("files", [])]
    return check_export(text, keys, beside)


def _no_age(oldest: float | None) -> None:
    if oldest is not None:
        raise SettingError("max_age is for checkpoints and logs: nothing else says whether there is a newer one")


def read_text(path: Path) -> str:
    """The text of a file that is not larger than anything that can be checked."""
    if not path.is_file():
        raise SettingError(f"{path} does not exist")
    if path.stat().st_size > 1 << 28:
        raise SettingError(f"{path} is larger than anything that can be checked")
    return path.read_text(encoding="utf-8")


# Exports


def check_export(manifest: str | bytes, keys: Sequence[Key] | str, paths: Sequence[Path]) -> Report:
    """Checks an export: ``manifest`` as it was served, and its files in their order."""
    keys = keys_in(keys) if isinstance(keys, str) else keys
    text = manifest.decode() if isinstance(manifest, bytes) else manifest
    report = Report()
    facts = json.loads(text)
    leaves: dict[str, Mapping[str, Any]] = {}
    with report.attempt("signature of the manifest"):
        report.checked.append(f"the manifest is the one that {manifest_signer(text, facts, keys)} signed")
    whole = False
    with report.attempt("proof log"):
        whole = _check_leaves(report, facts, keys, leaves)
    with report.attempt("files"):
        _check_files(report, facts, paths)
    layout = layouts().get(str(facts.get("dataset")))
    why = _why_no_rows(facts, layout, leaves)
    if why:
        report.not_checked.append(f"rows against leaves ({why}): vouched for only by the signed manifest")
    elif not report.ok:
        report.not_checked.append("the rows: not read, because the manifest or the files are wrong")
    elif layout:
        with report.attempt("rows"):
            _check_rows(report, facts, layout, leaves, paths, whole)
    return report


def manifest_signer(text: str, facts: Mapping[str, Any], keys: Sequence[Key]) -> str:
    """The signature is the last member, over the file without it."""
    match = re.search(r',\n  "signed": ("(?:[^"\\]|\\.)*"|null)\n}\n\Z', text)
    if not match:
        raise ProofFault("the manifest does not end with its signature")
    note = json.loads(match[1])
    if note is None:
        raise ProofFault("the manifest is not signed: the service that wrote it had no key")
    signed, by = open_note(note, keys)
    digest = hashlib.sha256(f"{text[: match.start()]}\n}}\n".encode()).hexdigest()
    checkpoint = (facts.get("proof_log") or {}).get("checkpoint") or facts.get("checkpoint")
    # The note of a lake's table counts by its last change, too.
    sizes = [facts["change"]] if type(facts.get("change")) is int else []
    if checkpoint:
        sizes.append(int(checkpoint.split("\n")[1]))
    # Without either nobody knows when a key that was rotated signed it.
    key = in_force(by, max(sizes, default=float("inf")))
    if signed != f"{key.name} export manifest\nsha256:{digest}\n":
        raise ProofFault("the manifest is not the one that was signed")
    return key.name


def _check_leaves(report: Report, facts: Mapping[str, Any], keys: Sequence[Key], leaves: dict[str, Mapping[str, Any]]) -> bool:
    """Holds the leaves against the checkpoint and the manifest. Returns whether every partition has one."""
    proofs = [{"dataset": facts["dataset"], **facts["proof"]}] if facts.get("proof") else facts.get("proofs") or []
    total = sum(one["partitions"] for one in proofs)
    log = facts.get("proof_log") or {}
    if not log.get("checkpoint"):
        report.not_checked.append("the proof log: it had no checkpoint when the export was written")
        return False
    checkpoint = open_checkpoint(log["checkpoint"], keys)
    report.checked.append(f"the checkpoint of {checkpoint.size} leaves is signed")
    known = layouts()
    listed = {(one["dataset"], part["partition"]): part for one in proofs for part in one["listed"]}
    seen, held = set(), set()
    for entry in log["leaves"]:
        name = (entry["dataset"], entry["partition"])
        seen.add(name)
        if entry["leaf_index"] is None or entry["inclusion"] is None:
            continue
        with report.attempt(" ".join(map(str, name))):
            leaf = proved_leaf(entry, checkpoint)
            if not is_proving(leaf, *name):
                raise ProofFault(f"its leaf is {leaf['kind']} of {leaf['dataset']} {leaf['partition']}")
            if name not in listed:
                raise ProofFault("it is not one of the partitions of the proof")
            part = listed[name]
            stated = {
                fact: part[fact] for fact in ("revision", "rows", "rows_hash", "events_sha256", "document_sha256") if fact in part
            }
            faults = differing(leaf, entry.get("salt"), stated)
            if facts["dataset"] is not None and facts.get("synthetic", leaf["synthetic"]) != leaf["synthetic"]:
                faults.append(f"synthetic is {facts['synthetic']}, and {leaf['synthetic']} in the leaf")
            # The keys of partitions of another instrument than the default begin with it.
            instrument = facts.get("instrument")
            own = name[0] == facts["dataset"] and name[0] in known and known[name[0]].by == "day"
            if own and name[1][:-10] != (f"{instrument}:" if instrument is not None else ""):
                faults.append(f"the instrument is {instrument or 'the default'}, and the leaf is of {name[1]}")
            report.faults += [f"{name[0]} {name[1]}: {fault}" for fault in faults]
            if not faults:
                held.add(name)
                if name[0] == facts["dataset"]:
                    leaves[name[1]] = {**leaf, "salt": entry.get("salt"), "document_sha256": part.get("document_sha256")}
    if total <= len(listed) and len(log["leaves"]) < _MAX_LEAVES:
        report.faults += [
            f"{dataset} {partition}: the partition is proved, and the log has no leaf of it"
            for dataset, partition in listed
            if (dataset, partition) not in seen
        ]
    if held:
        report.checked.append(f"{len(held)} of {total} partitions: leaf in the tree, digests of the manifest equal to it")
    if len(held) < total:
        report.not_checked.append(f"{total - len(held)} partitions: no leaf with a proof in the manifest")
    return bool(len(held) == total)


def _check_files(report: Report, facts: Mapping[str, Any], paths: Sequence[Path]) -> None:
    files = facts["files"]
    if len(files) != len(paths):
        raise ProofFault(f"the manifest has {len(files)} files, and {len(paths)} are given")
    for one, path in zip(files, paths, strict=True):
        if not path.is_file():
            raise ProofFault(f"{path.name} is missing")
        size = path.stat().st_size
        if size != one["bytes"]:
            raise ProofFault(f"{path.name} has {size} bytes, and {one['bytes']} in the manifest")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != one["sha256"]:
            raise ProofFault(f"{path.name} has the sha256 {digest}, and {one['sha256']} in the manifest")
    report.checked.append(f"{len(files)} files have the sha256 of the manifest")


def _why_no_rows(facts: Mapping[str, Any], layout: Layout | None, leaves: Mapping[str, Any]) -> str | None:
    if facts.get("dataset") is None or layout is None:
        return "a frame has rows of its own"
    if facts["mode"] != "native":
        return "aligned rows have no leaves"
    if facts["filters"]:
        return "the export is filtered"
    if facts["as_of"] is not None:
        return "the export is as of a time"
    if facts.get("csv_formulas") is not None:
        return "its texts were escaped for spreadsheets"
    missing = layout.missing([one["name"] for one in facts["schema"]])
    if missing:
        return f"the export lacks the fields {', '.join(missing)}"
    return None if leaves else "no leaf of its partitions is known"


def _check_rows(
    report: Report,
    facts: Mapping[str, Any],
    layout: Layout,
    leaves: Mapping[str, Mapping[str, Any]],
    paths: Sequence[Path],
    whole: bool,
) -> None:
    names = [str(one["name"]) for one in facts["schema"]]
    expected = {partition: Expected(leaf["rows"], leaf["document_sha256"]) for partition, leaf in leaves.items()}
    digests = _digests(facts, RowDigests(layout, expected, names), paths)
    window = _bounds(facts["window"])
    whole_ones = [partition for partition, leaf in leaves.items() if digests.counts.get(partition) == leaf["rows"]]
    found = {partition: digests.digest(partition) for partition in whole_ones}
    unordered = [partition for partition, digest in found.items() if digest is None]
    if unordered:
        again = _digests(facts, RowDigests(layout, expected, names, unordered), paths)
        found.update((partition, again.digest(partition)) for partition in unordered)
    count = sum(digests.counts.values()) + digests.strays
    if count != facts["row_count"]:
        report.faults.append(f"the files hold {count} rows, the manifest says {facts['row_count']}")
    proved = rows = 0
    partial = []
    for partition, leaf in leaves.items():
        held = digests.counts.get(partition, 0)
        if held != leaf["rows"]:
            if held > leaf["rows"] or _is_inside(partition, layout, window):
                report.faults.append(f"{partition}: the files hold {held} rows, the leaf says {leaf['rows']}")
            else:
                partial.append(partition)
            continue
        if held and differing(leaf, leaf["salt"], {"rows_sha256": found[partition]}):
            report.faults.append(f"{partition}: the rows have the sha256 {found[partition]}, which is not that of the leaf")
            continue
        proved, rows = proved + 1, rows + held
    if proved:
        report.checked.append(f"every row of {proved} whole partitions hashed again and equal to its leaf: {rows} rows")
    if partial:
        report.not_checked.append(
            f"the rows of {len(partial)} partitions ({', '.join(partial[:3])}), of which the files hold a part"
        )
    if digests.strays:
        told = f"{digests.strays} rows of none of the partitions of the proof"
        (report.faults if whole else report.not_checked).append(told)
    used = {one for column in layout.columns for one in column.fields} | {name for name, _ in layout.repeats}
    derived = [name for name in names if name not in used]
    if layout.by == "vintage":
        derived.append("last_updated_utc of provenance_json")
    if derived:
        report.not_checked.append(f"the fields {', '.join(derived)}: computed, in no leaf")


def _digests(facts: Mapping[str, Any], digests: RowDigests, paths: Sequence[Path]) -> RowDigests:
    """Feeds the rows of all files."""
    names = [str(one["name"]) for one in facts["schema"]]
    limit, count = int(facts["row_count"]) + 100_000, 0
    for path in paths:
        rows = _parquet_rows(path, names) if facts["format"] == "parquet" else _csv_file_rows(path, names)
        for line, row in enumerate(rows, 1):
            count += 1
            if count > limit:
                raise ProofFault(f"the files hold more than {limit} rows, the manifest says {facts['row_count']}")
            try:
                digests.add(row)
            except ProofFault as error:
                raise ProofFault(f"row {line} of {path.name}: {error.detail}") from error
    return digests


def _csv_file_rows(path: Path, names: Sequence[str]) -> Iterator[Sequence[Any]]:
    with _unpacked(path) as pieces:
        rows = csv_rows(pieces)
        if next(rows, None) != list(names):
            raise ProofFault(f"{path.name} does not have the header of the manifest")
        for line, row in enumerate(rows, 2):
            if len(row) != len(names):
                raise ProofFault(f"line {line} of {path.name} has {len(row)} cells instead of {len(names)}")
            yield row


@contextmanager
def _unpacked(path: Path) -> Iterator[Iterator[bytes]]:
    """The bytes of a file, packed as its name says; whatever follows the first packed stream is a fault."""
    with path.open("rb") as file:
        pieces = iter(lambda: file.read(_PIECE), b"")
        if path.suffix == ".gz":
            yield _unpack(zlib.decompressobj(wbits=31), pieces)
        elif path.suffix == ".zst":
            try:
                from compression import zstd  # type: ignore[import-not-found, unused-ignore]
            except ImportError as error:
                raise SettingError(f"Python unpacks {path.name} since 3.14: unpack it, or export without compression") from error
            yield _unpack(zstd.ZstdDecompressor(), pieces)
        else:
            yield pieces


def _unpack(unpacker: Any, pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        if unpacker.eof:
            raise ProofFault("the packed file goes on after its end")
        yield unpacker.decompress(piece)
    if not unpacker.eof or unpacker.unused_data:
        raise ProofFault("the packed file has no end, or goes on after it")


def _parquet_rows(path: Path, names: Sequence[str]) -> Iterator[Sequence[Any]]:
    parquet = need("pyarrow.parquet", "Checking the rows of Parquet")
    with parquet.ParquetFile(path) as file:
        if file.schema_arrow.names != list(names):
            raise ProofFault(f"{path.name} does not have the columns of the manifest")
        for batch in file.iter_batches():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _bounds(window: Mapping[str, Any]) -> tuple[datetime | None, datetime | None] | None:
    """The bounds of a window of time; None for windows that cut partitions anywhere."""
    if window["kind"] in ("latest", "random"):
        return None
    if window["kind"] != "range":
        raise ProofFault(f"the window has the kind {window['kind']!r}")
    start, end = window.get("start_utc"), window.get("end_utc")
    return datetime.fromisoformat(start) if start else None, datetime.fromisoformat(end) if end else None


def _is_inside(partition: str, layout: Layout, window: tuple[datetime | None, datetime | None] | None) -> bool:
    """Whether all rows of a partition lie in the window, as far as its key tells."""
    if window is None:
        return False
    start, end = window
    if start is None and end is None:
        return True
    if layout.by != "day":
        return False
    shift = timedelta(hours=8 if layout.dataset == "exchange_b_spot_trades" else 0)
    begins = datetime.fromisoformat(partition[-10:]).replace(tzinfo=UTC) - shift
    return (start is None or start <= begins) and (end is None or end >= begins + timedelta(days=1))


# Lakes

_TABLE = re.compile(r"[a-z][a-z0-9_]{0,62}/(?:native|aligned_1s)")
_DATA_FILE = re.compile(
    r"(?:date=[0-9]{4}-[0-9]{2}-[0-9]{2}|year=[0-9]{4})/(?:instrument=[A-Za-z0-9._%-]+/)?[0-9]+-([0-9a-f]{64})\.parquet"
)
_MAX_LOG_BYTES = 1 << 28
_MAX_COMMITS = 1000


def check_lake(folder: str | os.PathLike[str], keys: Sequence[Key] | str) -> Report:
    """Checks the newest version of each table of a lake or of its mirror: its signed note, its Delta log, all of its files."""
    keys = keys_in(keys) if isinstance(keys, str) else keys
    lake = Path(folder)
    report = Report()
    notes: dict[str, dict[str, Any]] = {}
    with report.attempt("_manifest.json"):
        root = json.loads(read_text(lake / "_manifest.json"))
        notes = {note["table"]: note for note in root["tables"]}
        if root["lake_version"] != 2 or list(notes) != sorted(notes) or len(notes) != len(root["tables"]):
            raise ProofFault("it is not of its form: lake_version 2, and tables sorted by their names")
    kept = _kept(lake)
    unsigned = sorted(str(log.parent.relative_to(lake)) for log in lake.glob("*/*/_delta_log"))
    report.faults += [f"{table}: it has no signed note" for table in unsigned if table not in notes]
    for table, note in notes.items():
        with report.attempt(table):
            _check_table(report, lake, note, keys, kept)
    return report


def _kept(lake: Path) -> Callable[[str, str], bool]:
    """Whether a file of a table is in the folder: a mirror may have fewer datasets and instruments than it has logs."""
    mirror = lake / "_mirror.json"
    datasets = json.loads(read_text(mirror))["datasets"] if mirror.is_file() else None

    def is_kept(table: str, name: str) -> bool:
        dataset = table.split("/", maxsplit=1)[0]
        found = re.search(r"/instrument=([^/]+)/", name)
        return datasets is None or dataset in datasets or (found is not None and f"{dataset}:{found[1]}" in datasets)

    return is_kept


def _check_table(
    report: Report, lake: Path, note: Mapping[str, Any], keys: Sequence[Key], kept: Callable[[str, str], bool]
) -> None:
    table, version = str(note["table"]), int(note["version"])
    text = json.dumps(note, indent=2, ensure_ascii=False) + "\n"
    signer = manifest_signer(text, note, keys)
    if note["lake_version"] != 2 or not _TABLE.fullmatch(table):
        raise ProofFault("its note is not of its form")
    if note["checkpoint"] is not None:
        open_checkpoint(note["checkpoint"], keys)
    log = lake / table / "_delta_log"
    newest = max(int(one.name[:20]) for one in log.iterdir() if re.fullmatch(r"\d{20}\.(json|checkpoint\.parquet)", one.name))
    if newest > version:
        raise ProofFault(f"version {newest} of its log has no signed note")
    files, change = _delta_files(log, note)
    listing = []
    for name in sorted(files):
        found = _DATA_FILE.fullmatch(name)
        if not found:
            raise ProofFault(f"it has the file {name:.200}, which no writer of a lake adds")
        listing.append(f"{found[1]}  {name}\n")
    digest = hashlib.sha256("".join(listing).encode()).hexdigest()
    stated = {"files": len(files), "bytes": sum(files.values()), "files_sha256": digest, "change": change}
    for member, value in stated.items():
        if note[member] != value:
            raise ProofFault(f"its log has the {member} {value}, and its note {note[member]}")
    report.checked.append(f"{table}: version {version}, up to change {change}, has the {len(files)} files that {signer} signed")
    told: Counter[tuple[str, str]] = Counter()
    rows = 0
    here = {name: size for name, size in files.items() if kept(table, name)}
    if len(here) < len(files):
        report.not_checked.append(f"{table}: {len(files) - len(here)} files of instruments that this mirror does not keep")
    for name, size in here.items():
        manifest, held = _check_lake_file(lake, table, name, size, keys)
        rows += manifest["row_count"]
        report.faults += [f"{table}: {name}: {fault}" for fault in held.faults]
        told.update(("checked", line) for line in held.checked)
        told.update(("not_checked", line) for line in held.not_checked)
    for (kind, line), times in told.items():
        getattr(report, kind).append(f"{table}: " + (f"{times} times: " if times > 1 else "") + line)
    if len(here) == len(files) and rows != note["rows"]:
        raise ProofFault(f"its files have {rows} rows, and its note {note['rows']}")


def _check_lake_file(lake: Path, table: str, name: str, size: int, keys: Sequence[Key]) -> tuple[Any, Report]:
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    text = read_text(lake / "_proofs" / table / f"{digest}.json")
    manifest = json.loads(text)
    sha256 = name[-72:-8]
    expected = [*table.split("/"), 1, name, sha256, size]
    (only,) = manifest["files"]
    stated = [manifest["dataset"], manifest["mode"], len(manifest["files"]), only["name"], only["sha256"], only["bytes"]]
    if stated != expected:
        raise ProofFault(f"the manifest of {name} is of {stated}, and the log of {expected}")
    return manifest, check_export(text, keys, [lake / table / name])


def _delta_files(log: Path, note: Mapping[str, Any]) -> tuple[dict[str, int], int]:
    """The active files of a version with their sizes, and its change, within the bounds of its note."""
    version, start, left = int(note["version"]), note["log_checkpoint"], int(note["log_bytes"])
    first = 0 if start is None else int(start) + 1
    if left > _MAX_LOG_BYTES or version - first >= _MAX_COMMITS or first > version + 1:
        raise ProofFault("its log is longer than any log of a lake")
    names = [] if start is None else [f"{start:020}.checkpoint.parquet"]
    names += [f"{at:020}.json" for at in range(first, version + 1)]
    files: dict[str, int] = {}
    change = 0
    for name in names:
        size = (log / name).stat().st_size if (log / name).is_file() else -1
        if not 0 <= size <= left:
            raise ProofFault(f"{name} of its log has {size} bytes, and at most {left} are left of its note's log_bytes")
        left -= size
        for action in _actions(log / name):
            if added := action.get("add"):
                files[unquote(added["path"], errors="strict")] = int(added["size"])
            if removed := action.get("remove"):
                files.pop(unquote(removed["path"], errors="strict"), None)
            if (txn := action.get("txn")) and txn["appId"] == "tidemark":
                change = int(txn["version"])
    if left:
        raise ProofFault(f"its log lacks {left} bytes of its note's log_bytes")
    return files, change


def _actions(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".json":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    found: list[dict[str, Any]] = need("pyarrow.parquet", "Checking a lake").read_table(path).to_pylist()
    return found


# Lineage


def check_lineage(answer: Mapping[str, Any], keys: Sequence[Key] | str, document: str | os.PathLike[str] | None = None) -> Report:
    """Checks a lineage answer down to its leaf, and with the vendor's file that it holds the event."""
    keys = keys_in(keys) if isinstance(keys, str) else keys
    report = Report()
    with report.attempt("event"):
        raw = answer["payload_raw"]
        payload = base64.b64decode(raw["base64"], validate=True)
        if hashlib.sha256(payload).hexdigest() != answer["payload_sha256_raw"] or len(payload) != raw["bytes"]:
            raise ProofFault("its bytes do not have the sha256 of the answer")
        if raw["utf8"] is not None and raw["utf8"].encode() != payload:
            raise ProofFault("its text is not its bytes")
        report.checked.append("the bytes of the event have their sha256")
    with report.attempt("leaf"):
        log = answer["proof_log"]
        if log["state"] != "logged" or log["leaf"] is None or answer["checkpoint"] is None or log["inclusion"] is None:
            report.not_checked.append(f"the proof log: the answer has no leaf with a proof ({log['state']})")
        else:
            checkpoint = open_checkpoint(answer["checkpoint"], keys)
            leaf = proved_leaf(log, checkpoint)
            report.checked.append(f"leaf {log['leaf_index']} is in the tree that {checkpoint.origin} signed")
            faults = _lineage_faults(answer, leaf)
            report.faults += faults
            if not faults:
                report.checked.append("partition, document and digests of the answer are those of the leaf")
    report.not_checked.append(f"that the event is the one of offset {answer.get('offset')}: the leaf covers the whole partition")
    if document is None:
        report.not_checked.append("the document: give the vendor's file to find the event in it")
    else:
        with report.attempt("document"):
            _check_document(report, answer, payload, Path(document))
    return report


def _lineage_faults(answer: Mapping[str, Any], leaf: Mapping[str, Any]) -> list[str]:
    proof, document, salt = answer["proof"], answer["document"], answer["proof_log"].get("salt")
    stated = {"revision": proof["revision"], "document_sha256": document["sha256"], "facts": proof["facts"]}
    faults = differing(leaf, salt, stated)
    for side in ("expected", "recount"):
        facts = proof[side]
        counted = {
            "rows": facts["rows"],
            "offsets": f"{facts['first_offset']} {facts['last_offset']}",
            "rows_hash": facts["rows_hash"],
            **({"events_sha256": facts["events_sha256"]} if side == "expected" else {}),
        }
        faults += [f"{side}: {fault}" for fault in differing(leaf, salt, counted)]
    if answer["synthetic"] != leaf["synthetic"]:
        faults.append(f"synthetic is {answer['synthetic']}, and {leaf['synthetic']} in the leaf")
    if not is_named(leaf, document["name"]):
        faults.append(f"the document is {document['name']}, and {leaf['document']} in the leaf")
    if not is_proving(leaf, answer["dataset"], answer["partition"]):
        faults.append(f"the leaf is {leaf['kind']} of {leaf['dataset']} {leaf['partition']}")
    return faults


def _check_document(report: Report, answer: Mapping[str, Any], payload: bytes, path: Path) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != answer["document"]["sha256"]:
        raise ProofFault(f"the file has the sha256 {digest}, and the document {answer['document']['sha256']}")
    name = answer["document"]["name"]
    if not str(answer["dataset"]).endswith("_spot_trades"):
        report.checked.append(f"{name} has the sha256 of the answer")
        report.not_checked.append(f"how the event was read out of {name}")
        return
    with _document(path) as lines:
        if not payload or not any(line.rstrip(b"\r\n") == payload for line in lines):
            raise ProofFault("no line of the document is the event")
    report.checked.append(f"{name} has the sha256 of the answer, and one of its lines is the event")


@contextmanager
def _document(path: Path) -> Iterator[Any]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
            yield io.BufferedReader(file)
    elif path.suffix == ".gz":
        with gzip.open(path) as unpacked:
            yield unpacked
    else:
        with path.open("rb") as plain:
            yield plain


# Checkpoints and logs


def check_consistency(first: str, second: str, keys: Sequence[Key] | str, log: str, *, oldest: float | None = None) -> Report:
    """Whether the newer of two checkpoints continues the older, by the tiles of the log. ``oldest``: seconds since 1970."""
    keys = keys_in(keys) if isinstance(keys, str) else keys
    report = Report()
    with report.attempt("checkpoints"):
        keys = _served(source_of(log), keys)
        old, new = sorted((open_checkpoint(note, keys) for note in (first, second)), key=lambda one: one.size)
        _compare(report, old, new, log)
        _check_age(report, new, oldest)
    return report


def _compare(report: Report, old: Checkpoint, new: Checkpoint, log: str) -> None:
    if old.origin != new.origin:
        raise ProofFault(f"the checkpoints are of two logs, {old.origin} and {new.origin}")
    if old.size == new.size:
        if old.root != new.root:
            raise ProofFault(f"two roots were signed for {old.size} leaves: the log forked")
        report.checked.append(f"both checkpoints are of the same {old.size} leaves")
        return
    if old.size > 0 and not continues(old, new, Tiles(source_of(log), new.size).consistency(old.size)):
        raise ProofFault(f"the tree of {new.size} leaves does not continue that of {old.size}: history was rewritten")
    report.checked.append(f"the tree of {new.size} leaves continues that of {old.size}")


def _check_checkpoints(first: str, keys: Sequence[Key], log: str | None, second: str | None, oldest: float | None) -> Report:
    if second is None:
        if log is None:
            report = Report()
            with report.attempt("checkpoint"):
                head = open_checkpoint(first, keys)
                report.checked.append(f"the checkpoint of {head.size} leaves is signed")
                _check_age(report, head, oldest)
            return report
        source = source_of(log)
        served = source("checkpoint")
        if served is None:
            raise SettingError(f"{log} has no checkpoint")
        report = Report()
        with report.attempt("checkpoints"):
            keys = _served(source, keys)
            old, new = open_checkpoint(first, keys), open_checkpoint(served.decode(), keys)
            if old.size > new.size:
                raise ProofFault(f"the log shrank from {old.size} to {new.size} leaves")
            _compare(report, old, new, log)
            _check_age(report, new, oldest)
        return report
    if log is None:
        raise SettingError("Two checkpoints are compared by the tiles of the log: give log=")
    return check_consistency(first, second, keys, log, oldest=oldest)


#: Seconds by which the clocks of two machines may differ.
_CLOCKS_DIFFER = 300


def _check_age(report: Report, head: Checkpoint, oldest: float | None) -> None:
    """Whether somebody may keep a newer checkpoint back. ``oldest``: in seconds since 1970."""
    if oldest is None:
        return
    told = f"the checkpoint of {head.size} leaves"
    if head.signed_at is None:
        raise ProofFault(f"{told} has no time")
    told += f" was signed at {datetime.fromtimestamp(head.signed_at, UTC).isoformat()}"
    if head.signed_at < oldest:
        raise ProofFault(f"{told}, before {datetime.fromtimestamp(oldest, UTC).isoformat(timespec='seconds')}")
    if head.signed_at > time.time() + _CLOCKS_DIFFER:
        raise ProofFault(f"{told}, which is still to come: the clock there, or here, is wrong")
    report.checked.append(told)


def check_tlog_proof(text: str, keys: Sequence[Key] | str, leaf: Path | None = None, log: str | None = None) -> Report:
    """Checks a proof of inclusion (https://c2sp.org/tlog-proof): its checkpoint, and the leaf of a file or of the log."""
    keys = keys_in(keys) if isinstance(keys, str) else keys
    report = Report()
    with report.attempt("tlog-proof"):
        index, proof, note = parse_tlog_proof(text)
        if log is not None:
            keys = _served(source_of(log), keys)
        head = open_checkpoint(note, keys)
        report.checked.append(f"its checkpoint of {head.size} leaves is signed by {head.origin}")
        if index >= head.size:
            raise ProofFault(f"it is of leaf {index}, and the tree has {head.size}")
        if leaf is not None:
            entry = read_text(leaf).encode()
        elif log is not None:
            entry = Tiles(source_of(log), head.size).entries(index // 256)[index % 256]
        else:
            report.not_checked.append(f"leaf {index}: give its file as the second, or the log")
            return report
        if not includes(leaf_hash(entry), index, proof, head):
            raise ProofFault(f"the leaf is not leaf {index} of the tree of {head.size} leaves that was signed")
        report.checked.append(f"the leaf is leaf {index} of the tree that was signed")
    return report


def check_log(log: str, keys: Sequence[Key] | str, *, oldest: float | None = None) -> Report:
    """Reads every leaf of a log, of a folder or a URL, and makes its tree again. ``oldest``: seconds since 1970."""
    keys = keys_in(keys) if isinstance(keys, str) else keys
    report = Report()
    source = source_of(log)
    with report.attempt("log"):
        note = source("checkpoint")
        if note is None:
            raise ProofFault("it has no checkpoint")
        keys = _served(source, keys)
        head = open_checkpoint(note.decode(), keys)
        tiles = Tiles(source, head.size)
        hashes: list[bytes] = []
        rotations: dict[int, str] = {}
        for tile in range(-(-head.size // 256)):
            for entry in tiles.entries(tile):
                if b'"kind":"rotated"' in entry:  # In no member of another leaf: JSON escapes the quotes.
                    rotations[len(hashes)] = str(parse_leaf(entry.decode())["note"])
                hashes.append(leaf_hash(entry))
        if b"".join(hashes) != tiles.level(0):
            raise ProofFault("the tiles are not made of its leaves")
        level, height = hashes, 0
        while len(level) >= 256:
            for _ in range(8):
                level = [node_hash(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
            height += 1
            if b"".join(level) != tiles.level(height):
                raise ProofFault(f"the tiles of level {height} are not made of its leaves")
        root = tiles.node(0, head.size) if head.size else hashlib.sha256(b"").digest()
        if root != head.root:
            raise ProofFault(f"the {head.size} leaves do not give the root that was signed")
        report.checked.append(f"all {head.size} leaves give the root that was signed")
        _check_rotations(keys, note.decode(), head.size, rotations)
        _check_age(report, head, oldest)
    return report


def _check_rotations(keys: Sequence[Key], note: str, size: int, rotations: Mapping[int, str]) -> None:
    """Each rotation is the leaf whose index it names, and no leaf states another. Those before the trusted key do not count."""
    stated = follow(keys, rotations.values())
    open_checkpoint(note, stated)
    if len(stated) > len(keys):
        raise ProofFault(f"leaf {stated[len(keys) - 1].until} is a rotation that the log does not serve with its rotations")
    for key in keys:
        if key.until is not None and key.until < size and rotations.get(key.until) != key.note:
            raise ProofFault(f"the rotation of {key.name}+{key.id.hex()} is not leaf {key.until}")


def _served(source: Source, keys: Sequence[Key]) -> list[Key]:
    """The keys that the rotations of the log lead to."""
    return follow(keys, [(source("rotations") or b"").decode()])


def _key_text(key: str | os.PathLike[str]) -> str:
    text = str(key)
    if re.match(r"\s*[^\s+]+\+[0-9a-f]{8}\+", text):
        return text
    path = Path(key)
    if not path.is_file():
        raise SettingError("The key is neither a verifier key nor a file with one")
    return path.read_text(encoding="utf-8")
