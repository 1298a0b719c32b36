"""Methods of low layers that high layers do: pictures and files.

A schedule can be saved and a timeline drawn, but who saves and draws lives above them. Low layers
call a :class:`Hook`; the package's front door, which knows all layers, says where each leads.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


class Hook:
    """A function of a higher layer, imported when it is first called; `task` is what it does."""

    def __init__(self, task: str) -> None:
        self.task = task
        self.home = ""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the function with these arguments."""
        assert self.home, f"no function is registered to {self.task}"
        module, _, name = self.home.partition(":")
        return getattr(importlib.import_module(module), name)(*args, **options)


save_schedule = Hook("save a schedule")
plot_timeline = Hook("draw a timeline with matplotlib")
save_timelines = Hook("write timelines as a picture or page")
timelines_html = Hook("show timelines in a notebook")
render_figure = Hook("write a matplotlib figure")
save_table = Hook("write a comparison as a table for LaTeX")
name_of_sweeps = Hook("find a name of debubble.sweeps by its former module")


def register_hooks(homes: Mapping[str, str]) -> None:
    """Say where hooks lead: ``{"save_schedule": "package.module:function"}``."""
    for name, home in homes.items():
        hook = globals()[name]
        assert isinstance(hook, Hook)
        hook.home = home
