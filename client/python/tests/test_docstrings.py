"""The examples of the docstrings, as they stand there."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import warnings
from pathlib import Path

import pytest

import tidemark_client as tm

for needed in ("pandas", "polars", "pyarrow", "cryptography", "deltalake"):
    pytest.importorskip(needed)

MODULES = [
    importlib.import_module(f"tidemark_client.{one.name}") for one in pkgutil.iter_modules(tm.__path__) if one.name != "__main__"
]
EXAMPLES = [one for module in (tm, *MODULES) for one in doctest.DocTestFinder().find(module) if one.examples]


@pytest.mark.sample
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.name.removeprefix("tidemark_client."))
def test_an_example_does_what_it_says(example: doctest.DocTest, td: tm.Client, folder: Path) -> None:
    if "td.lake(" in str(example.docstring):
        if "TIDEMARK_LAKE" not in os.environ:
            pytest.skip("no lake is written")
        os.symlink(os.environ["TIDEMARK_LAKE"], folder / "lake")
    example.globs.update(tm=tm, td=td, pl=importlib.import_module("polars"))
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tm.TidemarkWarning)
        doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=said.append, clear_globs=False)
    assert said == []


def test_every_public_thing_has_a_docstring_and_methods_an_example() -> None:
    for name in tm.__all__:
        if name != "__version__":
            assert getattr(tm, name).__doc__, name
    plain = {"close", "url", "lake", "version", "proof_key"}
    methods = {name for name in vars(tm.Client) if not name.startswith("_")} - plain
    assert methods <= {one.name.split(".")[-1] for one in EXAMPLES}
