"""Words of a measured row that no column explains change nothing."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from debubble.planner.cost.measured_rows import read_row
from debubble.planner.cost.step import step_time
from debubble.planner.memory.peaks import memory_of
from tests.planner.rows import ROW

WORDS = st.sampled_from(
    ("NVIDIA/NeMo log", "my cluster 2022", "my torchtitan run", "bigscience", "llm-foundry",
     "arXiv:2201.11990", "MegaScale", "vanilla TP", "OOM", "Megatron-Bridge", "no SP")
)  # fmt: skip
MODELS = st.sampled_from(
    ("Meta-Llama-3-70B", "GLM 70B", "GPT-175B", "MT-NLG", "bloom", "Qwen3", "deepseek", "mixtral")
)
TEXTS = st.one_of(WORDS, st.text(max_size=20))


@given(TEXTS, TEXTS, MODELS)
def test_words_change_nothing(source: str, notes: str, model: str) -> None:
    row = ROW | {"source": source, "notes": notes, "model": model, "anything": source}
    one, other = read_row(ROW, "row"), read_row(row, "row")
    named = replace(other.request.model, name=one.request.model.name)
    assert replace(other.request, model=named) == one.request
    assert other.candidate == one.candidate
    assert other.assumed == one.assumed
    first, second = step_time(one.case), step_time(other.case)
    assert first.seconds == second.seconds
    assert memory_of(one.case, first.timeline) == memory_of(other.case, second.timeline)
