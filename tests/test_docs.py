"""What the README and the pages in docs/ show works as it stands.

How a page is read:

* Its *commands* are the lines that begin with ``debubble `` in blocks that are indented by four
  spaces or fenced as ``sh``. They run in the order in which they stand, all of a page in one empty
  folder beside ``examples``. Lines that follow a command in its block are lines that it prints.
* Its *Python* is what is fenced as ``python``, one program that runs in the same way. A block
  fenced as ``text`` right behind a piece of it is what that piece prints.
* What else such blocks begin with is another program, and `ELSEWHERE` says where it is run.
* Blocks fenced as ``yaml`` are cost files, or specs of sweeps, and are read as such.
* Blocks fenced in another way are not run.

Pages name things of the reader's own; `GIVEN` has them.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import shutil
import socket
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

import debubble as db
from debubble.cli.app import COMMANDS, app
from debubble.interchange.cost_files import load_costs
from debubble.optimize import cache
from debubble.planner.model.files import read_model
from debubble.schedules import registry
from debubble.sweeps import read_spec
from tests.command import LESS

ROOT = Path(__file__).parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [
        ROOT / "README.md",
        ROOT / "skills/debubble/SKILL.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    if path.parent.name != "figures"
}
EXTENDING = "docs/extending.md"  # test_extending.py
ELSEWHERE = {
    "make demo": "test_the_demo_and_the_first_pages_have_one_comparison",
    "make test": "this",
    "pip install": "wheels.py",
    ". .venv/bin/activate": "a shell's",
    "torchrun --nproc-per-node 4 train.py": "test_the_training_loop_runs",
    "torchrun --nproc-per-node 2 examples/train/train.py": "torch/test_train_examples.py",
    "torchrun --nproc-per-node 4 examples/megatron/train.py": "megatron/test_example.py",
    "python examples/train/train.py": "torch/test_train_examples.py",
    "python benchmarks/": "measures for minutes or hours",
    "$ debubble run broken.json": "torch/ranks/test_watch.py",
    "sqlite3 results.sqlite": "sweeps: the view is read in Python",
}
"""Programs other than debubble, by how their lines begin, and who runs them."""


class Block(NamedTuple):
    """A piece of a page: how it is fenced (``shell`` also where it is indented), and its text."""

    language: str
    text: str


def blocks(page: str) -> list[Block]:
    """The blocks of a page in their order."""
    pattern = r"^```(\w*)\n(.*?)^```$|(?<=\n\n)((?:^    [^\n]*\n|^\n(?=    ))+)"
    found = []
    for match in re.finditer(pattern, page, re.M | re.S):
        language, fenced, indented = match.groups()
        text = fenced if indented is None else re.sub(r"(?m)^    ", "", indented)
        found.append(Block("shell" if indented or language == "sh" else language, text))
    return found


def lines_of(page: str) -> list[str]:
    """The lines of all blocks for a shell; a backslash joins two."""
    shell = [block.text for block in blocks(page) if block.language == "shell"]
    return [line for text in shell for line in text.replace("\\\n", " ").splitlines() if line]


def commands(page: str) -> list[tuple[str, list[str]]]:
    """The commands of a page, each with the lines it prints."""
    found: list[tuple[str, list[str]]] = []
    printed: list[str] | None = None
    for line in lines_of(page):
        if line.startswith("debubble "):
            printed = []
            found.append((line, printed))
        elif line.startswith(tuple(ELSEWHERE)):
            printed = []
        else:
            assert printed is not None, f"'{line}' is none of the known programs"
            printed.append(line)
    return found


def python(page: str) -> list[tuple[str, str]]:
    """The Python of a page: blocks, each with what the text right behind it says that it prints."""
    found = []
    all_blocks = blocks(page)
    for block, after in pairwise([*all_blocks, Block("", "")]):
        if block.language == "python":
            adjacent = f"```python\n{block.text}```\n\n```text\n{after.text}```" in page
            found.append((block.text, after.text if adjacent else ""))
    return found


def give_trace(folder: Path) -> None:
    """The times of a run, in four steps."""
    costs = db.Costs(F=10, I=10, W=10, p2p=1)
    timeline = db.simulate(db.make("1f1b", ranks=4, microbatches=8, costs=costs), costs)
    rows = ["rank,action,start,end,step"]
    cells = [(rank, cell) for rank, row in enumerate(timeline.schedule.rows()) for cell in row]
    for step in range(4):
        times = zip(timeline.start + 1000 * step, timeline.end + 1000 * step, strict=True)
        for (rank, cell), (start, end) in zip(cells, times, strict=True):
            rows.append(f"{rank},{cell},{start / 1000},{end / 1000},{step}")
    (folder / "RUN_FOLDER").mkdir()
    (folder / "RUN_FOLDER" / "run.csv").write_text("\n".join(rows), encoding="utf-8")


def give_dumps(folder: Path) -> None:
    """What the ranks of a job left that hangs."""
    from tests.diagnosis.hang.recorded import of_schedule, run, write

    schedule = db.make("1f1b", ranks=4, microbatches=8)
    write(run(of_schedule(schedule, stop=(0, 2, 0, "2F3"))), folder / "DUMPS")


def give_both(folder: Path) -> None:
    """A run that is slow, and one that hangs."""
    give_trace(folder)
    give_dumps(folder)


def give_model(folder: Path) -> None:
    """A model's configuration."""
    shutil.copy(ROOT / "examples/train/llama.json", folder / "config.json")


def give_schedule(folder: Path) -> None:
    """The schedule that the page has its reader write."""
    text, _ = python(PAGES["docs/own-schedule.md"])[0]
    (folder / "mine.py").write_text(text, encoding="utf-8")


GIVEN = {
    "docs/hangs.md": give_dumps,
    "skills/debubble/SKILL.md": give_both,
    "docs/plan.md": give_model,
    "docs/own-schedule.md": give_schedule,
}
"""What a page takes for there, and who puts it there."""

PREAMBLE = """
import torch
import torch.distributed as dist
from torch import nn

import debubble as db
import debubble.torch as dt

torch.manual_seed(0)
stages = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(8)]
loss_fn = nn.functional.mse_loss
x, y = torch.randn(2, 32, 8)

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
db.make("interleaved-1f1b", ranks=1, microbatches=4, chunks=8).save("best.csv")
db.make("interleaved-1f1b", ranks=1, microbatches=4, chunks=3).save("three-stages.json")
pipe = dt.Pipeline("best.csv", stages, loss_fn)
optimizer = torch.optim.AdamW(pipe.parameters())
folder = "checkpoint"
"""
OF_READERS = ("docs/costs.md", "README.md", "docs/training.md")
"""Pages whose Python has names of the reader's own, which the preamble gives a meaning."""


def marked(names: Iterable[str]) -> list[Any]:
    """Pages as parameters of a test, those marked that start processes."""
    started = ("debubble run ", "debubble profile ", "debubble sweep ")
    return [
        pytest.param(
            name,
            id=name,
            marks=[pytest.mark.processes] * any(word in PAGES[name] for word in started),
        )
        for name in names
    ]


def test_every_command_is_shown() -> None:
    shown = {line.split()[1] for page in PAGES.values() for line, _ in commands(page)}
    assert shown == set(COMMANDS) - {"serve", "mcp"}  # which end when they are stopped


@pytest.mark.slow
@pytest.mark.parametrize("name", marked(name for name in PAGES if commands(PAGES[name])))
def test_commands_run_in_order_and_print_what_is_shown(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    results = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(cache, "folder", lambda: results)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    if name in GIVEN:
        GIVEN[name](tmp_path)
    for line, shown in commands(PAGES[name]):
        words = shlex.split(line, comments=True)[1:]
        less = [] if shown else LESS.get(words[0], [])  # what is shown is the whole answer
        result = CliRunner().invoke(app, [*words, *less])
        assert result.exit_code == 0 or ("--fail-if" in words and result.exit_code == 1), (
            f"{line}\n{result.output}"
        )
        printed = {text.strip() for text in result.output.splitlines()}
        assert {text.strip() for text in shown} <= printed, line


@pytest.mark.parametrize(
    "name", [name for name in PAGES if python(PAGES[name]) and name not in {*OF_READERS, EXTENDING}]
)
def test_python_runs_and_prints_what_is_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    names: dict[str, Any] = {}
    try:
        for code, shown in python(PAGES[name]):
            capsys.readouterr()
            exec(compile(code, name, "exec"), names)
            assert not shown or capsys.readouterr().out == shown
    finally:
        registry._ENTRIES.pop("mine", None)
    assert names


def test_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "costs.yaml").write_text("times: {F: 1, B: 2}\n", encoding="utf-8")
    read: dict[str, Callable[[Path], Any]] = {
        "docs/costs.md": load_costs,
        "docs/plan.md": lambda path: read_model(str(path)),
        "docs/sweeps.md": read_spec,
    }
    files = [
        (name, block.text)
        for name, page in PAGES.items()
        for block in blocks(page)
        if block.language == "yaml"
    ]
    assert {name for name, _ in files} == set(read)
    for name, text in files:
        path = tmp_path / "page.yaml"
        path.write_text(text, encoding="utf-8")
        assert read[name](path)


def run_in_forks(code: str, folder: Path, ranks: int = 1) -> list[str]:
    """Run a program that torchrun would start, in processes that have PyTorch; what each prints."""
    from torch import distributed

    from tests.torch.world import in_ranks

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def work(rank: int) -> str:
        distributed.destroy_process_group()
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
            LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        )  # fmt: skip
        os.chdir(folder)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, "page.py", "exec"), {"__name__": "__main__"})
        return printed.getvalue()

    return in_ranks(ranks, work)


@pytest.mark.processes
def test_python_with_names_of_the_reader_runs(tmp_path: Path) -> None:
    pieces = [code for name in OF_READERS for code, _ in python(PAGES[name])]
    pieces = [code for code in pieces if "init_process_group" not in code]  # the loop; GPUs
    text = "\n".join([PREAMBLE, *pieces])
    steps = "[pipe.step(x, target=y) for _ in range(7)]"
    text = text.replace("dt.tune(pipe)", f"{steps} and dt.tune(pipe, time_limit=1)")
    text = text.replace("...  # six steps later", steps)
    run_in_forks(text, tmp_path)
    assert any(tmp_path.iterdir())


@pytest.mark.processes
def test_the_training_loop_runs(tmp_path: Path) -> None:
    code = next(code for code, _ in python(PAGES["docs/training.md"]) if "init_process" in code)
    # Two ranks: the loop names no number.
    first, second = run_in_forks(code, tmp_path, 2)
    assert first.startswith("loss ")
    assert "the fastest schedule found saves" in first
    assert second == ""
    assert (tmp_path / "train.json.gz").stat().st_size > 1000


RECIPES = (
    "check", "choose", "costs", "draw", "faster", "frameworks", "hangs", "jitter", "memory", "plan",
    "run", "sweeps", "trace",
)  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_opens_with_a_command_and_a_picture(name: str) -> None:
    page = PAGES[f"docs/{name}.md"]
    title, command, *_ = page.split("\n\n")
    assert title.startswith("# ")
    assert command.startswith(("```sh\ndebubble ", "    debubble "))
    assert "](made/" in page.split("\n## ")[0]
    assert "src/debubble" not in page, "readers of recipes do not read the source"


def test_other_programs_are_known_and_shown() -> None:
    lines = [line for page in PAGES.values() for line in lines_of(page)]
    for program in ELSEWHERE:
        assert any(line.startswith(program) for line in lines), program


def test_the_own_schedule_is_one_forward_ahead_of_1f1b() -> None:
    code, _ = python(PAGES["docs/own-schedule.md"])[0]
    try:
        exec(compile(code, "own-schedule.md", "exec"), {})
        mine = db.make("mine", ranks=4, microbatches=8)
    finally:
        registry._ENTRIES.pop("mine", None)
    assert db.check(mine).ok
    warm_up = [str(program).partition("B")[0].count("F") for program in mine.rows()]
    assert warm_up == [5, 4, 3, 2]


def test_the_demo_and_the_first_pages_have_one_comparison() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8")
    profile = re.search(r"PROFILE := (.*)", recipe)
    compared = re.search(r"\$\(BIN\)/(debubble compare .*?) -o demo.png", recipe)
    assert profile
    assert compared
    demo = compared[1].replace("$(PROFILE)", profile[1])
    assert "$(BIN)/debubble serve" in recipe
    assert load_costs(ROOT / profile[1]).name == "GPT 6.2B on 8 A100s"
    first = [PAGES["README.md"], PAGES["docs/quickstart.md"]]
    assert all(demo in [line for line, _ in commands(page)] for page in first)
    shown = "".join([*first, PAGES["docs/index.md"]])
    assert len(set(re.findall(r"zb-v is fastest within.*", shown))) == 1
    assert len(set(re.findall(r"[\d.]+ % less time", shown))) == 1


def test_the_readme_is_one_screen_whose_links_lead_somewhere() -> None:
    page = PAGES["README.md"]
    assert page.count("\n") <= 60
    targets = re.findall(r"\]\(([^)#:]+)\)", page)
    assert len(targets) > 15
    for target in targets:
        assert (ROOT / target).exists(), target


def test_every_public_name_is_in_the_reference() -> None:
    pages = "".join(text for name, text in PAGES.items() if name.startswith("docs/api/"))
    shown = re.findall(r"^::: (debubble[\w.]*)$", pages, re.M)
    names = {f"debubble.{name}" for name in db.__all__} - {"debubble.schedules"}
    assert names | {"debubble.schedules.registry.schedules"} <= set(shown)
    tree = ast.parse((ROOT / "src/debubble/torch/__init__.py").read_text(encoding="utf-8"))
    (exported,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert {f"debubble.torch.{name}" for name in exported} <= set(shown)
    assert len(shown) == len(set(shown))
