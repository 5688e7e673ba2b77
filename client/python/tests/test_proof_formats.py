"""The formats of the proof log, against vectors that the service's own tests use."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import time
from pathlib import Path

import pytest

import tidemark_client as tm
from tidemark_client import prooflog, rows
from tidemark_client.checks import manifest_signer
from tidemark_client.prooflog import Checkpoint, Key, Tiles

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ROOT = Path(__file__).parents[3]
VECTORS = json.loads((ROOT / "test/vectors/proof-log-tree.json").read_text())
NOTES = json.loads((ROOT / "test/vectors/proof-log-notes.json").read_text())


def level(hashes: list[bytes]) -> list[bytes]:
    return [prooflog.node_hash(hashes[at], hashes[at + 1]) for at in range(0, len(hashes) - 1, 2)]


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """The tiles of the vectors' log of 70,000 entries."""
    size = 70_000
    found, hashes = {}, [prooflog.leaf_hash(f"entry {at}".encode()) for at in range(size)]
    for height in range(3):
        for tile in range(-(-len(hashes) // 256)):
            part = hashes[256 * tile : 256 * tile + 256]
            found[f"tile/{height}/{tile:03}" + ("" if len(part) == 256 else f".p/{len(part)}")] = b"".join(part)
        for _ in range(8):
            hashes = level(hashes)
    return found


def test_roots_and_proofs_are_those_of_another_implementation(files: dict[str, bytes]) -> None:
    decode = base64.b64decode
    for size, root in VECTORS["roots"].items():
        if int(size) % 256 == 0 or int(size) == 70_000:
            assert Tiles(files.get, int(size)).node(0, int(size)) == decode(root)
    head = Checkpoint("vectors", 70_000, decode(VECTORS["roots"]["70000"]))
    for index, proof in VECTORS["inclusion"].items():
        path = [decode(one) for one in proof]
        leaf = prooflog.leaf_hash(f"entry {index}".encode())
        assert prooflog.includes(leaf, int(index), path, head)
        for wrong in (
            (leaf, int(index) ^ 1, path),
            (leaf, int(index), path[:-1]),
            (leaf, int(index), [*path, path[0]]),
            (head.root, int(index), path),
        ):
            assert not prooflog.includes(*wrong, head)
    for old, proof in VECTORS["consistency"].items():
        assert Tiles(files.get, 70_000).consistency(int(old)) == [decode(one) for one in proof]
        if old not in VECTORS["roots"]:
            continue
        first = Checkpoint("vectors", int(old), decode(VECTORS["roots"][old]))
        assert prooflog.continues(first, head, [decode(one) for one in proof])
        other = Checkpoint("vectors", int(old), bytes(32))
        assert not prooflog.continues(other, head, [decode(one) for one in proof])
        for wrong in (proof[:-1], [*proof, proof[0]]):
            assert not prooflog.continues(first, head, [decode(one) for one in wrong])


class Signer:
    def __init__(self, name: str, seed: int) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
        public = self._key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        self.id = hashlib.sha256(f"{name}\n".encode() + b"\x01" + public).digest()[:4]
        self.name = name
        self.line = f"{name}+{self.id.hex()}+" + base64.b64encode(b"\x01" + public).decode()

    def lines(self, text: str) -> str:
        return f"\u2014 {self.name} " + base64.b64encode(self.id + self._key.sign(text.encode())).decode() + "\n"

    def sign(self, text: str) -> str:
        return f"{text}\n{self.lines(text)}"

    def rotation(self, following: Signer, size: int) -> str:
        return self.sign(f"{self.name} key rotation\n{following.line}\n{size}\n2026-12-01T00:00:00.000Z\n")

    def checkpoint(self, size: int, origin: str = "") -> str:
        return self.sign(f"{origin or self.name}\n{size}\n{base64.b64encode(bytes(32)).decode()}\n")


OLD, NEW, LAST, STRANGER = Signer("log", 1), Signer("log", 2), Signer("log", 3), Signer("witness", 4)


def test_a_note_opens_with_lines_of_strangers_and_with_no_other_change() -> None:
    keys = prooflog.keys_in(OLD.line)
    note = OLD.checkpoint(7)
    assert prooflog.open_checkpoint(note, keys).size == 7
    text = note[: note.index("\n\n") + 1]
    assert prooflog.open_checkpoint(note + STRANGER.lines(text), keys).size == 7
    assert prooflog.open_checkpoint(OLD.sign(text + "an extension\n"), keys).size == 7
    for wrong in (
        note.replace("\n7\n", "\n8\n"),
        note[:-1],
        note.replace("\u2014", "-"),
        NEW.checkpoint(7),
        OLD.checkpoint(7, "another"),
        OLD.sign("log\n7\n"),
        OLD.sign("log\n07\n" + base64.b64encode(bytes(32)).decode() + "\n"),
        OLD.sign("log\n7\n" + base64.b64encode(bytes(31)).decode() + "\n"),
        "",
    ):
        with pytest.raises(tm.ProofFault):
            prooflog.open_checkpoint(wrong, keys)
    for line in ("", "log", OLD.line.replace(OLD.id.hex(), "00000000"), OLD.line + "A"):
        with pytest.raises(tm.ProofFault):
            prooflog.keys_in(line)


def test_a_key_is_followed_through_its_rotations_and_signs_no_more_after_its_own() -> None:
    keys = prooflog.keys_in(f"{OLD.line}\n{OLD.rotation(NEW, 5)}{NEW.rotation(LAST, 9)}")
    assert [(key.since, key.until) for key in keys] == [(0, 5), (5, 9), (9, None)]
    for signer, size in ((OLD, 5), (NEW, 5), (NEW, 9), (LAST, 9), (LAST, 100)):
        assert prooflog.open_checkpoint(signer.checkpoint(size), keys).size == size
    for signer, size in ((OLD, 6), (NEW, 4), (NEW, 10), (LAST, 8)):
        with pytest.raises(tm.ProofFault, match="was rotated"):
            prooflog.open_checkpoint(signer.checkpoint(size), keys)
    # Both lines, as a log writes them for a while.
    both = NEW.checkpoint(6)
    both += OLD.lines(both[: both.index("\n\n") + 1])
    assert prooflog.open_checkpoint(both, keys).size == 6


def log_of(folder: Path, entries: list[bytes], checkpoint: str, rotations: str) -> str:
    """The folder of a small log."""
    size = len(entries)
    for name, data in (
        (f"tile/0/000.p/{size}", b"".join(map(prooflog.leaf_hash, entries))),
        (f"tile/entries/000.p/{size}", b"".join(struct.pack(">H", len(one)) + one for one in entries)),
        ("checkpoint", checkpoint.encode()),
        ("rotations", rotations.encode()),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return str(folder)


def test_a_rotation_is_the_leaf_that_it_names_and_no_leaf_states_another(tmp_path: Path) -> None:
    def leaf(note: str) -> bytes:
        blank = {**dict.fromkeys(LEAF), "v": 2, "kind": "rotated", "synthetic": False, "at": "2026-11-29T00:00:00.000Z"}
        return leaf_text({**blank, "note": note}).encode()

    def checkpoint(entries: list[bytes], *signers: Signer) -> str:
        hashes = [prooflog.leaf_hash(one) for one in entries]
        root = prooflog.node_hash(prooflog.node_hash(hashes[0], hashes[1]), hashes[2])
        text = f"log\n3\n{base64.b64encode(root).decode()}\n"
        return text + "\n" + "".join(signer.lines(text) for signer in signers)

    note, other = OLD.rotation(NEW, 1), OLD.rotation(LAST, 1)
    first, last = leaf_text(LEAF).encode(), leaf_text({**LEAF, "revision": 2}).encode()
    good, missing, forged = [first, leaf(note), last], [first, first, last], [first, leaf(other), last]
    for at, (entries, signers, rotations, key, ok) in enumerate(
        [
            (good, (NEW, OLD), note, OLD, True),
            (good, (NEW,), note, OLD, True),
            (good, (NEW,), note, NEW, True),
            (good, (OLD,), note, OLD, False),
            (good, (NEW, OLD), "", OLD, False),
            (missing, (NEW, OLD), note, OLD, False),
            (forged, (NEW, OLD), note, OLD, False),
            (forged, (OLD,), "", OLD, False),
        ]
    ):
        report = tm.check(log_of(tmp_path / str(at), entries, checkpoint(entries, *signers), rotations), key.line)
        assert report.ok is ok, (at, str(report))


def test_rotations_that_nobody_may_follow() -> None:
    with pytest.raises(tm.ProofFault, match="rotated twice"):
        prooflog.keys_in(f"{OLD.line}\n{OLD.rotation(NEW, 5)}{OLD.rotation(LAST, 6)}")
    with pytest.raises(tm.ProofFault, match="leads back"):
        prooflog.keys_in(f"{OLD.line}\n{OLD.rotation(NEW, 5)}{NEW.rotation(OLD, 6)}")
    with pytest.raises(tm.ProofFault, match="leads back"):
        prooflog.keys_in(f"{OLD.line}\n{OLD.rotation(NEW, 5)}{NEW.rotation(LAST, 4)}")
    with pytest.raises(tm.ProofFault, match="leads to"):
        prooflog.keys_in(f"{OLD.line}\n{OLD.rotation(STRANGER, 5)}")
    # One that another key signed, or that was cut, leads nowhere.
    for note in (NEW.rotation(LAST, 5), OLD.rotation(NEW, 5)[:-5], OLD.rotation(NEW, 5).replace("\n5\n", "\n6\n")):
        assert len(prooflog.keys_in(f"{OLD.line}\n{note}")) == 1


LEAF = {
    "v": 2, "kind": "proved", "dataset": "exchange_a_spot_trades", "partition": "2024-01-01", "revision": 1, "attempt": 1,
    "synthetic": False, "document": "BTCUSDT-trades-2024-01-01.zip", "document_commitment": None, "rows": 1,
    "offsets_commitment": None, "rows_hash_commitment": None, "events_commitment": None, "rows_commitment": None,
    "facts_commitment": None, "at": "2024-01-02T00:00:00.000Z", "reason": None,
}  # fmt: skip


def leaf_text(leaf: object) -> str:
    return json.dumps(leaf, ensure_ascii=False, separators=(",", ":"))


def test_a_leaf_has_one_text() -> None:
    assert prooflog.parse_leaf(leaf_text(LEAF)) == LEAF
    assert prooflog.parse_leaf(leaf_text({**LEAF, "document": 'é"\n\u2028\x7f'}))["document"] == 'é"\n\u2028\x7f'
    for wrong in (
        leaf_text(LEAF) + "\n", json.dumps(LEAF), leaf_text({**LEAF, "more": 1}), leaf_text(dict(reversed(LEAF.items()))),
        leaf_text({**LEAF, "rows": 1.0}), leaf_text({**LEAF, "rows": True}), leaf_text({**LEAF, "synthetic": None}),
        leaf_text({**LEAF, "v": 3}), leaf_text({**LEAF, "kind": "other"}), leaf_text({**LEAF, "document": "x" * 1100}),
        leaf_text(LEAF).replace('"rows":1', '"rows":1,"rows":1'), "[]", "", '{"v":2}',
    ):  # fmt: skip
        with pytest.raises(tm.ProofFault):
            prooflog.parse_leaf(wrong)


def test_a_commitment_opens_with_its_salt_and_its_value_alone() -> None:
    rows_sha256 = "65af494ab4b8295aa1152ea0cd971a02845c348b37157d20ac7c16d1e0acd488"
    made = "260f184bbcb598fed009b7e72c30317c3ea75d0d09c8171be5da6ced27ad5ec7"  # The page's example.
    assert prooflog.commitment(bytes(range(32)), "rows_commitment", rows_sha256) == made
    salt = "ab" * 32
    leaf = {**LEAF, "rows_hash_commitment": prooflog.commitment(bytes.fromhex(salt), "rows_hash_commitment", "5")}
    assert prooflog.differing(leaf, salt, {"rows": 1, "rows_hash": "5"}) == []
    for other, facts in (
        (salt, {"rows_hash": "6"}),
        ("cd" * 32, {"rows_hash": "5"}),
        (salt, {"rows": 2}),
        (salt, {"events_sha256": "5"}),
    ):
        assert len(prooflog.differing(leaf, other, facts)) == 1
    for none in (None, "", "AB" * 32, "ab" * 31):
        with pytest.raises(tm.ProofFault, match="salt"):
            prooflog.differing(leaf, none, {"rows": 1})


def test_the_example_of_the_page_has_its_digest() -> None:
    layout = rows.layouts()["exchange_a_spot_trades"]
    names = ["trade_id", "timestamp", "price", "quantity", "quote_quantity", "is_buyer_maker", "is_best_match", "datetime"]
    for row in (
        ["1", "1704067200000", "40000.5", "0.25", "10000.125", "1", "0", "2024-01-01T00:00:00.000Z"],
        [1, 1704067200000, 40000.5, 0.25, 10000.125, True, False, "2024-01-01T00:00:00.000Z"],
    ):
        for key in ("2024-01-01", "ETHUSDT:2024-01-01"):
            digests = rows.RowDigests(layout, {key: rows.Expected(1, None)}, names)
            digests.add(row)
            assert digests.digest(key) == "65af494ab4b8295aa1152ea0cd971a02845c348b37157d20ac7c16d1e0acd488"
    page = (ROOT / "docs/proof-log.md").read_text()
    assert (Path(rows.__file__).parent / "rows.md").read_text() in page and len(rows.layouts()) == 12


ROW = ["1", "1704067200000", "40000.5", "0.25", "10000.125", "1", "0", "2024-01-01T00:00:00.000Z"]


@pytest.mark.parametrize(
    ("at", "cell"),
    [
        *((0, cell) for cell in ("", "1.0", " 1", "0x1", "9223372036854775808", "\u00b2", True, 1.5)),
        *((2, cell) for cell in ("", "nan", "inf", "1e999", "0x1", " 1", "1_0", "\u0661", True, float("nan"))),
        *((5, cell) for cell in ("", "2", "yes", " 1")),
        *(
            (7, cell)
            for cell in (
                "2024-01-01T00:00:00Z",
                "2024-01-01T00:00:00.001Z",
                "2024-01-01 00:00:00.000Z",
                "1704067200000",
                "x",
                None,
            )
        ),
        *((1, cell) for cell in ("2024-02-30T00:00:00.000Z", "2024-01-01T24:00:00.000Z")),
    ],
)
def test_a_cell_that_is_none_is_refused(at: int, cell: object) -> None:
    names = ["trade_id", "timestamp", "price", "quantity", "quote_quantity", "is_buyer_maker", "is_best_match", "datetime"]
    digests = rows.RowDigests(rows.layouts()["exchange_a_spot_trades"], {"2024-01-01": rows.Expected(1, None)}, names)
    row: list[object] = list(ROW)
    row[at] = cell
    # A null is no text of COPY that the column could have, but its own bytes: then the digest differs.
    try:
        digests.add([None if one == "" else one for one in row])
    except tm.ProofFault:
        return
    assert cell == "" and digests.digest("2024-01-01") != "65af494ab4b8295aa1152ea0cd971a02845c348b37157d20ac7c16d1e0acd488"


def test_csv_is_read_as_it_was_written() -> None:
    text = b'a,"b ""c"", d","e\nf",\n"",,x,"y"\n'
    wanted = [["a", 'b "c", d', "e\nf", None], ["", None, "x", "y"]]
    for cut in range(len(text) + 1):
        assert list(rows.csv_rows([text[:cut], text[cut:]])) == wanted
    for wrong in (b"a,b", b'"a"b,c\n', b'a"b",c\n', b'"a,b\n', b"a\r\n", b"\xff\n"):
        with pytest.raises(tm.ProofFault):
            list(rows.csv_rows([wrong]))


def test_keys_of_two_sizes() -> None:
    key = Key("log", b"1234", bytes(32), since=5, until=9)
    assert prooflog.in_force([key], 9) is key
    with pytest.raises(tm.ProofFault):
        prooflog.in_force([key], float("inf"))


@pytest.mark.parametrize("case", NOTES["notes"], ids=lambda case: case["name"])
def test_a_checkpoint_of_the_shared_vectors(case: dict[str, object]) -> None:
    def opened() -> Checkpoint:
        return prooflog.open_checkpoint(case["note"], prooflog.keys_in(case["key"]))

    if case.get("refused"):
        with pytest.raises(tm.ProofFault):
            opened()
    else:
        assert opened().signed_at == case["signed_at"]


@pytest.mark.parametrize("case", NOTES["proofs"], ids=lambda case: case["name"])
def test_a_tlog_proof_of_the_shared_vectors(case: dict[str, object], folder: Path) -> None:
    (folder / "a.tlog-proof").write_text(case["proof"])
    (folder / "leaf").write_text(case["leaf"])
    assert tm.check("a.tlog-proof", NOTES["log"], second="leaf").ok == case["accepted"]
    assert tm.check("a.tlog-proof", NOTES["log"]).ok or not case["accepted"]


def test_a_checkpoint_may_be_too_old(folder: Path) -> None:
    at = NOTES["notes"][0]["signed_at"]
    (folder / "checkpoint.note").write_text(NOTES["notes"][0]["note"])
    (folder / "untimed.note").write_text(NOTES["notes"][1]["note"])
    age = int(time.time()) - at

    def faults(path: str, max_age: object) -> str:
        return str(tm.check(path, NOTES["log"], max_age=max_age).faults)

    assert faults("checkpoint.note", age + 600) == faults("untimed.note", None) == "[]"
    assert "was signed at 2026-11-29T15:31:11+00:00, before" in faults("checkpoint.note", age - 600)
    assert "has no time" in faults("untimed.note", "1h")
    with pytest.raises(tm.SettingError, match="max_age is for checkpoints and logs"):
        tm.check({}, NOTES["log"], max_age="1h")


def test_a_note_of_a_table_counts_by_its_checkpoint_and_its_change() -> None:
    keys = prooflog.keys_in(OLD.line + "\n" + OLD.rotation(NEW, 10))

    def signed(**facts: object) -> str:
        digest = hashlib.sha256((json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode()).hexdigest()
        note = OLD.sign(f"log export manifest\nsha256:{digest}\n")
        whole = json.dumps({**facts, "signed": note}, indent=2, ensure_ascii=False) + "\n"
        return manifest_signer(whole, json.loads(whole), keys)

    assert signed(change=10, checkpoint=OLD.checkpoint(10)) == signed(change=10) == "log"
    for facts in (
        {"change": 11},
        {"change": 9, "checkpoint": OLD.checkpoint(11)},
        {"change": 11, "checkpoint": OLD.checkpoint(9)},
        {"rows": 1},
    ):
        with pytest.raises(tm.ProofFault, match="was rotated"):
            signed(**facts)
