"""Releases of other programs, downloaded and unpacked, without what they depend on."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.missing import missing
from tests.patience import patience

SECONDS = 120


def folder_of(request: pytest.FixtureRequest, name: str) -> Path:
    """Where a wheel is kept from one run of the tests to the next."""
    kept = getattr(request.config, "cache", None)  # None where its plugin is off
    if kept:
        return Path(kept.mkdir(name))
    factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    return factory.mktemp(name)


def fetch(folder: Path, name: str, version: str, *options: str) -> Path:
    """A wheel's content in a folder, downloaded when it is not there; a source's where that is all.

    `options` are of ``pip download``, for a wheel of another Python.
    """
    content = folder / f"{name}-{version}"
    if content.exists():
        return content
    words = ["-m", "pip", "download", f"{name}=={version}", "--no-deps", "--dest", str(folder)]
    try:
        subprocess.run(
            [sys.executable, *words, *options],
            check=True, capture_output=True, timeout=patience(SECONDS), text=True,
        )  # fmt: skip
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        missing(f"{name} {version} cannot be downloaded: {error}")
    for wheel in folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(content)
        return content
    # A source has one folder of this name.
    with tarfile.open(folder / f"{name}-{version}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return content
