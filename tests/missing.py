"""What a test needs and the machine lacks."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Skip the test on a user's machine; where CI is set everything must be there."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
