"""What a host of the project reads agrees with the project, and the version stands in one place."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import debubble as db
from debubble.cli.serve import serve
from debubble.playground import limits
from tests import packages

ROOT = Path(__file__).parents[1]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def loaded(name: str) -> Any:
    return yaml.safe_load(read(name))


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", read("Makefile"), re.M)
    assert found is not None
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in found[1].splitlines()]


def test_the_version_stands_in_one_place() -> None:
    assert packages.PROJECT["dynamic"] == ["version"]
    tracked = subprocess.run(
        ["git", "grep", "-lF", f'version = "{db.__version__}"'],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    assert [name for name in tracked if not name.startswith("tests/")] == []
    assert f'__version__ = "{db.__version__}"' in read("src/debubble/_version.py")
    assert "version" not in loaded("CITATION.cff")


def test_licence_and_authors_agree() -> None:
    project, citation = packages.PROJECT, loaded("CITATION.cff")
    assert project["license"] == citation["license"] == "Apache-2.0"
    assert project["authors"] == citation["authors"] == [{"name": "debubble developers"}]
    text = read("LICENSE")
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert "urls" not in project
    assert {"cff-version", "message", "title", "type"} <= set(citation)


def test_every_python_that_is_named_is_tested() -> None:
    jobs = loaded(".github/workflows/ci.yml")["jobs"]
    named = [line.split(" :: ")[2] for line in packages.PROJECT["classifiers"] if "3.1" in line]
    runs = {row["python"]: row["run"] for row in jobs["check"]["strategy"]["matrix"]["include"]}
    assert list(runs) == named
    assert list(runs.values()).count(".ci/run") == 1
    assert packages.PROJECT["requires-python"] == f">={named[0]}"
    assert jobs["check"]["steps"][-1] == {"run": "${{ matrix.run }}"}
    steps = [step["run"] for step in jobs["packages"]["steps"] if "run" in step]
    assert steps == ["make packages"]
    assert recipe("packages")


def test_hooks_run_the_tools_of_make_lint() -> None:
    [local] = loaded(".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    entries = [hook["entry"].removesuffix(" --force-exclude") for hook in local["hooks"]]
    assert entries == [line.removesuffix(" .") for line in recipe("lint")]
    assert {hook["language"] for hook in local["hooks"]} == {"system"}


@pytest.mark.parametrize("name", ["bug", "number", "schedule"])
def test_issue_forms_are_complete(name: str) -> None:
    form = loaded(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert {"name", "description", "body"} <= set(form)
    for part in form["body"]:
        assert part["type"] in {"input", "textarea", "checkboxes", "markdown"}
        assert part["attributes"]["label"]
    ids = [part["id"] for part in form["body"]]
    assert len(set(ids)) == len(ids)


def test_every_extra_is_used_after_it_was_installed() -> None:
    for extra in packages.EXTRAS:
        for name in packages.MEANS.get(extra, [extra]):
            assert name in packages.COMMANDS or name == "serve"
    assert packages.PINNED == ["torch==2.13.0"]
    # All that an extra needs, those it is made of included.
    assert {"starlette>=0.37", "torch>=2.6", "joblib>=1.5"} <= set(packages.needs(["all"]))
    assert "typer==0.15" in packages.lowest([])
    assert not any("torch" in row for row in packages.lowest(["all"]))


def test_the_container_serves_for_others_as_a_user_without_rights() -> None:
    steps = list(packages.containerfile())
    words = [word for word, _ in steps]
    copied = [name for word, rest in steps if word == "COPY" for name in rest.split()[:-1]]
    assert {
        "pyproject.toml",
        "src",
        *re.findall(r'"(LICENSE|README\.md)"', read("pyproject.toml")),
    } == set(copied)
    assert words.index("USER") > max(i for i, word in enumerate(words) if word == "RUN")
    [entry] = [json.loads(rest) for word, rest in steps if word == "ENTRYPOINT"]
    [port] = [rest for word, rest in steps if word == "EXPOSE"]
    assert entry[1:] == ["serve", "--host", "0.0.0.0", "--port", port, "--no-browser"]
    [health] = [rest for word, rest in steps if word == "HEALTHCHECK"]
    assert f"127.0.0.1:{port}/" in health


def test_options_of_the_server_are_documented_with_their_defaults() -> None:
    rows = re.findall(r"^\| `(--[\w-]+) \S+` \|.*\| (.*) \|$", read("docs/serving.md"), re.M)
    taken = set(re.findall(r"^    (\w+): ", inspect.getsource(serve), re.M)) - {"port", "browser"}
    assert {flag[2:].replace("-", "_") for flag, _ in rows} == taken
    told = dict(rows)
    assert told["--per-minute"].startswith(f"{limits.PER_MINUTE} ")
    assert told["--at-once"].startswith(f"{limits.AT_ONCE} ")
