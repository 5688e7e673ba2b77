"""Holds exports, lineage answers and checkpoints against the proof log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Report:
    """What a check found, in words."""

    checked: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing that was checked is wrong."""
        return not self.faults


def check_export(manifest: Mapping[str, Any], key: str, paths: Sequence[Path]) -> Report:
    """Checks an export."""
    raise NotImplementedError
