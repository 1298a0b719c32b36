"""The documented keys of a command's JSON, against its real answer."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def follows_its_contract(command: str, answer: Any) -> None:
    """Check that an answer has the keys that the page on scripts lists, and no others.

    What is below a key that is null or empty in one of the two is in the other alone.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        json_keys = importlib.import_module("json_keys")
    listed = json_keys.stored(command)[1]
    found, wanted = ({row[0].strip("`") for row in json_keys.keys_of(x)} for x in (answer, listed))
    assert unlisted(found, wanted) == set(), f"{command}: not on the page"
    assert unlisted(wanted, found) == set(), f"{command}: on the page alone"


def unlisted(keys: set[str], others: set[str]) -> set[str]:
    """Return the keys that others lack, without those below one that others have empty."""
    empty = {key for key in others if not any(x.startswith((f"{key}.", f"{key}[")) for x in others)}
    below = tuple(f"{key}{sign}" for key in empty for sign in (".", "["))
    return {key for key in keys - others if not key.startswith(below)}
