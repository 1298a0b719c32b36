"""What commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import sys
from typing import Any


def print_json(data: Any) -> None:
    """Print plain data as JSON."""
    print(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def note(text: str) -> None:
    """Say something that is not the result."""
    print(text, file=sys.stderr)
