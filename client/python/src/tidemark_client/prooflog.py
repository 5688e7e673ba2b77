"""The formats of the proof log: signed notes, keys and their rotations, leaves, the tree and its tiles.

Written from the service's page on the proof log and the texts that it names, not from the service.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from .errors import ServiceError, TidemarkError
from .extras import need
from .http import Transport

_PROVING = ("proved", "revised")
_KINDS = (*_PROVING, "retracted", "quarantined", "refused", "restored", "rotated")
#: The members of a leaf and their types, in order.
_MEMBERS: Mapping[str, type] = {
    "v": int, "kind": str, "dataset": str, "partition": str, "revision": int, "attempt": int, "synthetic": bool,
    "document": str, "document_commitment": str, "rows": int, "offsets_commitment": str, "rows_hash_commitment": str,
    "events_commitment": str, "rows_commitment": str, "facts_commitment": str, "at": str, "reason": str,
}  # fmt: skip
#: By the name of a fact in answers: the member that commits to it.
_COMMITMENTS = {
    "document_sha256": "document_commitment",
    "offsets": "offsets_commitment",
    "rows_hash": "rows_hash_commitment",
    "events_sha256": "events_commitment",
    "rows_sha256": "rows_commitment",
    "facts": "facts_commitment",
}
Source: TypeAlias = Callable[[str], "bytes | None"]


class ProofFault(TidemarkError):
    """Something that was signed, or claims to be, is not what it must be."""

    code = "CLIENT_PROOF"


def sha256(*parts: bytes) -> bytes:
    """The digest of the parts, one after the other."""
    return hashlib.sha256(b"".join(parts)).digest()


def _decoded(text: str) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ProofFault(f"{text[:40]!r} is not base64") from error
    if base64.b64encode(found).decode() != text:
        raise ProofFault(f"{text[:40]!r} is not canonical base64")
    return found


# Keys and notes


@dataclass(frozen=True)
class Key:
    """A verifier key, and the sizes of the trees that it signs: ``since`` a rotation, ``until`` the next one."""

    name: str
    id: bytes
    public: bytes
    since: int = 0
    until: int | None = None
    #: The rotation that ended it.
    note: str | None = None

    @property
    def timed_id(self) -> bytes:
        """What its signatures with a time begin with."""
        return sha256(self.name.encode(), b"\n\x04", self.public)[:4]

    def signs(self, size: float) -> bool:
        """Whether it is this key's turn at that size of the tree."""
        return self.since <= size and (self.until is None or size <= self.until)

    @property
    def line(self) -> str:
        """The key as one line."""
        return f"{self.name}+{self.id.hex()}+{base64.b64encode(bytes([1]) + self.public).decode()}"

    def verifies(self, text: str, signature: bytes) -> bool:
        """Whether the key signed the text."""
        signing = need("cryptography.hazmat.primitives.asymmetric.ed25519", "Checking a signature", "check")
        failed = need("cryptography.exceptions", "Checking a signature", "check").InvalidSignature
        try:
            signing.Ed25519PublicKey.from_public_bytes(self.public).verify(signature, text.encode())
        except failed:
            return False
        return True


def parse_key(line: str) -> Key:
    """A key of one line ``name+hash+base64``."""
    found = re.fullmatch(r"([^\s+]+)\+([0-9a-f]{8})\+([A-Za-z0-9+/]+=*)", line.strip())
    data = _decoded(found[3]) if found else b""
    if not found or len(data) != 33 or data[0] != 1:
        raise ProofFault("a key is one line name+hash+base64 of an Ed25519 key")
    key_id = sha256(found[1].encode(), b"\n", data)[:4]
    if key_id.hex() != found[2]:
        raise ProofFault(f"the key {found[1]} has the hash {key_id.hex()}, not {found[2]}")
    return Key(found[1], key_id, data[1:])


def keys_in(text: str) -> list[Key]:
    """The trusted key of the first line, and those that the rotations below it lead to.

    A rotation is a note of the key before: a title, the next key, the size above which only that one counts, a time.
    """
    first, _, rest = text.lstrip().partition("\n")
    keys = [parse_key(first)]
    lines = rest.split("\n")
    while True:
        last, found = keys[-1], {}
        for at in range(len(lines) - 5):
            if lines[at] != f"{last.name} key rotation" or lines[at + 4] != "":
                continue
            note = "\n".join(lines[at : at + 6]) + "\n"
            try:
                open_note(note, [last])
                following = parse_key(lines[at + 1])
            except ProofFault:
                continue
            if following.name != last.name or not re.fullmatch(r"0|[1-9][0-9]{0,14}", lines[at + 2]):
                raise ProofFault(f"the rotation of {last.name} leads to {following.name} at {lines[at + 2]!r}")
            found[note] = replace(following, since=int(lines[at + 2]))
        if not found:
            return keys
        if len(found) > 1:
            raise ProofFault(f"the key {last.name}+{last.id.hex()} was rotated twice: one of the two is forged")
        ((note, following),) = found.items()
        if any(one.public == following.public for one in keys) or following.since < last.since:
            raise ProofFault(f"the rotation of {last.name}+{last.id.hex()} leads back")
        keys[-1] = replace(last, until=following.since, note=note)
        keys.append(following)


def follow(keys: Sequence[Key], rotations: Iterable[str]) -> list[Key]:
    """The keys, and those that further rotations lead to."""
    return keys_in("\n".join([keys[0].line, *(key.note for key in keys if key.note is not None), *rotations]))


def open_note(note: str, keys: Sequence[Key]) -> tuple[str, list[Key]]:
    """The text of a note, and which of the keys signed it. Lines of other keys are ignored."""
    text, by, _ = _read_note(note, keys)
    return text, by


def _read_note(note: str, keys: Sequence[Key]) -> tuple[str, list[Key], list[tuple[Key, int]]]:
    """Besides, the times that the keys state, in seconds since 1970."""
    text, gap, signatures = note.rpartition("\n\n")
    if not gap or not signatures.endswith("\n"):
        raise ProofFault("a signed note is a text, an empty line, and one signature a line")
    text += "\n"
    by, times, signers = [], [], []
    for line in signatures[:-1].split("\n"):
        found = re.fullmatch(r"\u2014 ([^\s+]+) ([A-Za-z0-9+/]+=*)", line)
        data = _decoded(found[2]) if found else b""
        if not found or len(data) <= 4:
            raise ProofFault("a signature of the note is not of its form")
        signers.append(f"{found[1]}+{data[:4].hex()}")
        for key in keys:
            if (key.name, key.id) == (found[1], data[:4]):
                if not key.verifies(text, data[4:]):
                    raise ProofFault(f"the signature of {key.name} does not belong to the text")
                by.append(key)
            elif (key.name, key.timed_id) == (found[1], data[:4]):
                seconds = int.from_bytes(data[4:12], "big")
                if not key.verifies(f"cosignature/v1\ntime {seconds}\n{text}", data[12:]):
                    raise ProofFault(f"the time that {key.name} states is not signed with the text")
                times.append((key, seconds))
    if not by:
        wanted = " or ".join(f"{key.name}+{key.id.hex()}" for key in keys)
        raise ProofFault(f"the key {wanted} did not sign the note, but {' and '.join(signers)}")
    return text, by, times


def in_force(by: Sequence[Key], size: float) -> Key:
    """The key of those whose turn it was at that size of the tree."""
    for key in by:
        if key.signs(size):
            return key
    key = by[0]
    raise ProofFault(
        f"the key {key.name}+{key.id.hex()} was rotated: it signs {key.since} to {key.until} leaves, and signed {size}"
    )


@dataclass(frozen=True)
class Checkpoint:
    """A signed root."""

    origin: str
    size: int
    root: bytes
    #: When it was signed, in seconds since 1970, where a line says so.
    signed_at: int | None = None


def open_checkpoint(note: str, keys: Sequence[Key]) -> Checkpoint:
    """The checkpoint of a note: origin, size and root in its first three lines."""
    text, by, times = _read_note(note, keys)
    lines = text.split("\n")
    if len(lines) < 4 or not lines[0] or not re.fullmatch(r"0|[1-9][0-9]{0,14}", lines[1]) or len(_decoded(lines[2])) != 32:
        raise ProofFault("a checkpoint has three lines: the origin, the size and the root in base64")
    size = int(lines[1])
    signed_at = max((seconds for key, seconds in times if key.signs(size)), default=None)
    found = Checkpoint(lines[0], size, _decoded(lines[2]), signed_at)
    key = in_force(by, found.size)
    if key.name != found.origin:
        raise ProofFault(f"the checkpoint is of the log {found.origin}, and the key of {key.name}")
    return found


#: The first line of a proof of inclusion as a file: https://c2sp.org/tlog-proof.
TLOG_PROOF = "c2sp.org/tlog-proof@v1\n"


def parse_tlog_proof(text: str) -> tuple[int, list[bytes], str]:
    """Index, hashes and checkpoint of a ``.tlog-proof``."""
    found = re.match(
        r"(?:extra [A-Za-z0-9+/=]*\n)?index (0|[1-9][0-9]{0,14})\n((?:[A-Za-z0-9+/]+=*\n){0,63})\n", text[len(TLOG_PROOF) :]
    )
    hashes = [_decoded(line) for line in found[2].split()] if found else []
    if not found or any(len(one) != 32 for one in hashes):
        raise ProofFault("a tlog-proof has the lines `index N` and hashes in base64, an empty line, and a checkpoint")
    return int(found[1]), hashes, text[len(TLOG_PROOF) + found.end() :]


# Leaves


def parse_leaf(text: str) -> dict[str, Any]:
    """The members of a leaf, whose text must be its canonical bytes."""
    if len(text.encode("utf-8", "surrogatepass")) > 1024:
        raise ProofFault("a leaf has at most 1,024 bytes")
    try:
        leaf = json.loads(text)
        again = json.dumps(leaf, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise ProofFault("a leaf is not JSON") from error
    if not isinstance(leaf, dict) or leaf.get("v") != 2 or leaf.get("kind") not in _KINDS:
        raise ProofFault("a leaf has a version or a kind that this release does not know")
    members = {**_MEMBERS, **({"note": str} if leaf["kind"] == "rotated" else {})}
    if list(leaf) != list(members) or again != text:
        raise ProofFault("a leaf does not have its canonical bytes")
    for name, kind in members.items():
        value = leaf[name]
        may_be_null = name not in ("v", "kind", "synthetic", "at", "note")
        if not (value is None and may_be_null) and type(value) is not kind:
            raise ProofFault(f"a leaf has no {name} of its type")
    return leaf


def proved_leaf(entry: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
    """The leaf of an answer, once it is in the tree of the checkpoint."""
    text, index, inclusion = entry.get("leaf"), entry.get("leaf_index"), entry.get("inclusion")
    if not isinstance(text, str) or type(index) is not int or not isinstance(inclusion, list):
        raise ProofFault("the answer has no leaf with its index and its proof")
    leaf = parse_leaf(text)
    proof = [_decoded(one) for one in inclusion]
    if any(len(one) != 32 for one in proof) or not includes(leaf_hash(text.encode()), index, proof, checkpoint):
        raise ProofFault(f"leaf {index} is not in the tree of {checkpoint.size} leaves that was signed")
    return leaf


def differing(leaf: Mapping[str, Any], salt: object, facts: Mapping[str, Any]) -> list[str]:
    """In which facts an answer differs from the leaf, which states revision and rows and commits to the others."""
    if not isinstance(salt, str) or not re.fullmatch(r"[0-9a-f]{64}", salt):
        raise ProofFault(
            "the answer has no salt of 64 hexadecimal digits, without which nobody can tell what the leaf commits to"
        )
    faults = []
    for name, value in facts.items():
        if name in ("revision", "rows"):
            if type(value) is not type(leaf[name]) or value != leaf[name]:
                faults.append(f"{name} is {value}, and {leaf[name]} in the leaf")
        elif leaf[_COMMITMENTS[name]] != commitment(bytes.fromhex(salt), _COMMITMENTS[name], value):
            faults.append(f"{name} {value} is not what the leaf commits to")
    return faults


def commitment(salt: bytes, member: str, value: object) -> str | None:
    """What a member of a leaf says of a value: HMAC-SHA256 with the salt over ``member LF value``."""
    if value is None:
        return None
    return hmac.new(salt, f"{member}\n{value}".encode(), "sha256").hexdigest()


def is_proving(leaf: Mapping[str, Any], dataset: object, partition: object) -> bool:
    """Whether the leaf proves this partition."""
    return (leaf["dataset"], leaf["partition"]) == (dataset, partition) and str(leaf["kind"]) in _PROVING


def is_named(leaf: Mapping[str, Any], name: str) -> bool:
    """Whether the leaf is of the document: of a long name it has the first 120 characters, or none."""
    return leaf["document"] in ("", name.encode("utf-16-le")[:240].decode("utf-16-le", "replace"))


# The tree


def leaf_hash(leaf: bytes) -> bytes:
    """RFC 6962."""
    return sha256(b"\x00", leaf)


def node_hash(left: bytes, right: bytes) -> bytes:
    """RFC 6962."""
    return sha256(b"\x01", left, right)


def includes(leaf: bytes, index: int, proof: Sequence[bytes], checkpoint: Checkpoint) -> bool:
    """RFC 9162, 2.1.3.2."""
    if not 0 <= index < checkpoint.size:
        return False
    at, last, found = index, checkpoint.size - 1, leaf
    for beside in proof:
        if last == 0:
            return False
        if at & 1 or at == last:
            found = node_hash(beside, found)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            found = node_hash(found, beside)
        at, last = at >> 1, last >> 1
    return last == 0 and found == checkpoint.root


def continues(old: Checkpoint, new: Checkpoint, proof: Sequence[bytes]) -> bool:
    """RFC 9162, 2.1.4.2, for two sizes that differ, the older not empty."""
    path = list(proof)
    if old.size & (old.size - 1) == 0:
        path.insert(0, old.root)
    if not path:
        return False
    at, last = old.size - 1, new.size - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    first = second = path[0]
    for one in path[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            first, second = node_hash(one, first), node_hash(one, second)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            second = node_hash(second, one)
        at, last = at >> 1, last >> 1
    return last == 0 and first == old.root and second == new.root


def _split(size: int) -> int:
    return 1 << ((size - 1).bit_length() - 1)


class Tiles:
    """The tiles of a log of a size, from its folder or its URL."""

    def __init__(self, source: Source, size: int) -> None:
        self._source = source
        self.size = size
        self._tile = lru_cache(maxsize=128)(self._read_tile)

    def consistency(self, old: int) -> list[bytes]:
        """RFC 6962, 2.1.2: what shows that this tree begins with that of ``old`` leaves."""

        def proof(start: int, end: int, whole: bool) -> list[bytes]:
            if old == end:
                return [] if whole else [self.node(start, end)]
            middle = start + _split(end - start)
            if old <= middle:
                return [*proof(start, middle, whole), self.node(middle, end)]
            return [*proof(middle, end, False), self.node(start, middle)]

        return proof(0, self.size, True)

    def node(self, start: int, end: int) -> bytes:
        """The hash over the leaves [start, end)."""
        size = end - start
        if size & (size - 1):
            middle = start + _split(size)
            return node_hash(self.node(start, middle), self.node(middle, end))
        level, height = divmod(size.bit_length() - 1, 8)
        first, count = start >> (8 * level), 1 << height
        tile = self._tile(level, first // 256)
        hashes = [tile[32 * at : 32 * at + 32] for at in range(first % 256, first % 256 + count)]
        if any(len(one) != 32 for one in hashes):
            raise ProofFault(f"tile {first // 256} of level {level} is too short")
        while len(hashes) > 1:
            hashes = [node_hash(hashes[at], hashes[at + 1]) for at in range(0, len(hashes), 2)]
        return hashes[0]

    def _read_tile(self, level: int, index: int) -> bytes:
        width = min(256, (self.size >> (8 * level)) - 256 * index)
        data, got = self._read(f"tile/{level}/", index, width)
        if len(data) != 32 * got:
            raise ProofFault(f"tile {index} of level {level} has {len(data)} bytes instead of {32 * got}")
        return data[: 32 * width]

    def level(self, level: int) -> bytes:
        """All hashes of a level."""
        count = self.size >> (8 * level)
        return b"".join(self._tile(level, tile) for tile in range(-(-count // 256)))

    def entries(self, index: int) -> list[bytes]:
        """The leaves of a tile."""
        width = min(256, self.size - 256 * index)
        data, got = self._read("tile/entries/", index, width)
        found: list[bytes] = []
        at = 0
        for _ in range(got):
            length = int.from_bytes(data[at : at + 2], "big")
            entry = data[at + 2 : at + 2 + length]
            if len(data) < at + 2 or len(entry) != length:
                raise ProofFault(f"tile {index} of entries ends in entry {len(found)} of {got}")
            found.append(entry)
            at += 2 + length
        if at != len(data):
            raise ProofFault(f"tile {index} of entries goes on after the last one")
        return found[:width]

    def _read(self, prefix: str, index: int, width: int) -> tuple[bytes, int]:
        groups = [f"{index % 1000:03}"]
        while index := index // 1000:
            groups.insert(0, f"x{index % 1000:03}")
        path = prefix + "/".join(groups)
        if width < 256:
            data = self._source(f"{path}.p/{width}")
            if data is not None:
                return data, width
        # A log may delete an incomplete tile when the tile is complete.
        data = self._source(path)
        if data is None:
            raise ProofFault(f"the log has no {path}")
        return data, 256


def source_of(log: str) -> Source:
    """Reads files of a log: of a service by its URL, or of a folder. A file is at most 32 MiB."""
    limit = 1 << 25
    if not log.startswith(("http://", "https://")):
        folder = Path(log)

        def from_folder(path: str) -> bytes | None:
            file = folder / path
            if not file.is_file():
                return None
            with file.open("rb") as opened:
                data = opened.read(limit + 1)
            if len(data) > limit:
                raise ProofFault(f"{file} is larger than any file of a log")
            return data

        return from_folder
    transport = Transport(log, None)

    def from_service(path: str) -> bytes | None:
        try:
            return transport.send("GET", f"/v1/proofs/{path}").read(limit)
        except ServiceError as error:
            if error.status == 404:
                return None
            raise

    return from_service
