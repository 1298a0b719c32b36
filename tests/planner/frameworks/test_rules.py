"""Every rule refuses a case that breaks it, and takes it once the nearest change is made."""

from __future__ import annotations

from dataclasses import replace

import pytest

import debubble as db
from debubble.planner.candidate import Candidate
from debubble.planner.case import Case
from debubble.planner.frameworks.any_rules import ANY_RULES
from debubble.planner.frameworks.rule import (
    Refusal,
    Rule,
    divisors,
    nearest_multiple,
    nearest_of,
)
from debubble.planner.frameworks.table import FRAMEWORKS, broken, find_framework, rules_of
from debubble.schedules import registry
from tests.planner.cases import case, changed, dense, latent, mixture

MEGATRONS, PYTORCH = ("megatron", "bridge", "primus"), ("torchtitan", "automodel")
"""Frameworks with the same rules, and those that take schedules from a file."""

RULES = {rule.name: rule for name in FRAMEWORKS for rule in rules_of(name)}


def with_gpus(one: Case, gpus: int) -> Case:
    return replace(one, cluster=replace(one.cluster, gpus=gpus))


EXAMPLES: dict[str, list[tuple[Case, str]]] = {
    "gpus": [
        (with_gpus(case(dense(), tp=4, dp=2), 16), "dp 4"),
        (with_gpus(case(dense(), tp=4, dp=2), 6), "GPUs 8"),
    ],
    "heads": [
        (case(dense(), tp=3), "tp 4"),
        (case(dense(), tp=48), "tp 32"),
        (case(latent(), tp=3), "tp 4"),
    ],
    "kv-heads": [(case(dense(kv_heads=12), tp=8), "tp 4")],
    "sequence": [
        (case(dense(), cp=3), "cp 4"),
        (case(dense(), cp=4, sequence=8191), "sequence 8192"),
        (case(dense(), cp=2, sequence=2), "sequence 4"),
    ],
    "experts": [(case(dense(), ep=2, dp=2), "ep 1"), (case(mixture(), ep=3, dp=6), "ep 2")],
    "expert-ranks": [(case(mixture(), ep=8, dp=4), "ep 4"), (case(mixture(), ep=8, dp=6), "ep 2")],
    "batch": [
        (case(dense(), dp=2, m=8, batch=32), "microbatches 16"),
        (case(dense(), dp=2, b=3, m=8, batch=32), "microbatch size 4 with microbatches 4"),
        (case(dense(), dp=3, m=8, batch=32), "batch 24"),
    ],
    "layers": [
        (case(dense(), pp=4, layers=(8, 8, 8, 9)), "layers 8/8/8/8"),
        (case(dense(30), pp=4, layers=(8, 8, 15, -1)), "layers 7/8/8/7"),
    ],
    "schedule-kind": [
        (case(dense(), "dualpipe", pp=4), "schedule 1f1b"),
        (case(dense(), "slimpipe", pp=4, chunks=2), "schedule interleaved-1f1b"),
        (case(dense(), "pipedream-2bw", pp=4), "schedule 1f1b"),
        (case(dense(), "vocab-2", pp=4), "schedule 1f1b"),
    ],
    "schedule-sizes": [
        (case(dense(), "dualpipe-v", pp=8, chunks=2, m=8), "microbatches 16"),
        (case(dense(), "zb-v", pp=8, chunks=3), "chunks 2"),
        (case(dense(), "hanayo", pp=4, chunks=3), "chunks 2"),
    ],
    "chunks": [(case(dense(), "interleaved-1f1b", chunks=2), "chunks 1 with schedule 1f1b")],
    "megatron-schedule": [
        (case(dense(), "zb-v", pp=4, chunks=2), "schedule interleaved-1f1b"),
        (case(dense(), "zb-h1", pp=4), "schedule 1f1b"),
    ],
    "sequence-parallel": [(case(dense(), tp=4, sequence=8190), "sequence 8192")],
    "expert-sequence-parallel": [
        (case(mixture(), tp=2, ep=4, dp=2, sequence_parallel=False), "sequence parallel on"),
        (case(mixture(), tp=2, sequence_parallel=False), "sequence parallel on"),
    ],
    "interleaving": [
        (case(dense(), "interleaved-1f1b", pp=4, chunks=2, m=9), "microbatches 8"),
        (case(dense(), "interleaved-1f1b", pp=4, chunks=2, m=2), "microbatches 4"),
    ],
    "overlap-experts": [
        (case(mixture(), "interleaved-overlap", pp=4, chunks=2, dp=2), "ep 2"),
        (case(dense(), "interleaved-overlap", pp=4, chunks=2), "schedule interleaved-1f1b"),
    ],
    "overlap-recompute": [
        (case(mixture(), "interleaved-overlap", pp=4, chunks=2, dp=2, ep=2, recompute=recompute),
         "recompute selective")
        for recompute in ("full", "full:2")
    ],
    "overlap-mtp": [
        (case(mixture(mtp=2), "interleaved-overlap", pp=4, chunks=2, dp=2, ep=2), "MTP layers 1")
    ],
    "mtp-stage": [
        (case(latent(), "interleaved-1f1b", pp=8, chunks=2, layers=(11, 10, *[8] * 5, *[0] * 9),
              mtp_stage=7),
         "multi-token prediction on stage 15"),
        (case(latent(), pp=2, layers=(61, 0), mtp_stage=0), "multi-token prediction on stage 1"),
    ],
    "overlap-sharding": [
        (case(mixture(), "interleaved-overlap", pp=4, chunks=2, dp=2, ep=2, zero=3), "ZeRO 1")
    ],
    "small-moments": [(case(dense(), dp=2, zero=0, moment_bytes=2), "ZeRO 1")],
    "narrow-weights": [
        (case(dense(), dp=2, zero=0, precision="fp8", weights="fp8"), "ZeRO 1"),
    ],
    "offload": [
        (case(dense(), dp=2, zero=0, offload_optimizer=True), "ZeRO 1"),
        (case(dense(), dp=2, precision="fp8", weights="fp8", offload_optimizer=True),
         "weights bf16"),
    ],
    "graphs": [(case(dense(), recompute="full", graph_pools=4e9), "recompute selective")],
    "placement": [(case(dense(), "hanayo", pp=4, chunks=4), "schedule interleaved-1f1b")],
    "split-kv-heads": [(case(dense(), tp=16), "tp 8")],
    "split-sequence": [
        (case(dense(), tp=4, cp=2, sequence=8200), "sequence 8208"),
        (case(dense(), tp=4, sequence=8190), "sequence 8192"),
    ],
    "sharded-experts": [(case(mixture(), ep=4, dp=4, zero=0), "ZeRO 2")],
    "replicas": [(case(dense(), dp=4, zero=0), "ZeRO 2")],
    "modules": [
        (case(dense(8), pp=4, layers=(4, 0, 2, 2)), "layers 2/2/2/2"),
        (case(dense(2), pp=8), "pp 1 with chunks 1 with schedule 1f1b"),
    ],
    "tied": [(case(dense(tied=True), pp=4), "pp 1 with chunks 1 with schedule 1f1b")],
    "mtp": [(case(latent(), pp=4), "MTP layers 0")],
    "precision": [
        (case(dense(), precision="fp16"), "precision bf16"),
        (case(dense(), precision="nvfp4"), "precision mxfp8"),
    ],
    "wide-gather": [
        (case(dense(), dp=2, zero=2, precision="fp8", weights="fp8"), "weights bf16"),
    ],
    "products": [(case(dense(), precision="mxfp8"), "precision fp8")],
    "fp4-weights": [(case(dense(), precision="nvfp4", weights="fp4"), "weights bf16")],
    "state": [
        (case(dense(), gradient_bytes=2), "gradients of 4"),
        (case(dense(), moment_bytes=2), "moments of 4"),
        (case(dense(), offload_optimizer=True), "offload of the optimizer off"),
        (case(dense(), graph_pools=4e9), "graph pools of 0.0"),
    ],
    "split-weights": [
        (case(dense(), "zb-v", pp=4, chunks=2, dp=2, zero=3), "ZeRO 2"),
        (case(dense(), "zb-h1", pp=4, dp=2, zero=3), "ZeRO 2"),
    ],
    "recompute-layers": [(case(dense(), pp=4, recompute="full:3"), "recompute full")],
    "microbatches": [(case(dense(), pp=8, m=4), "microbatches 8")],
    "deepspeed-schedule": [
        (case(dense(), "interleaved-1f1b", pp=4, chunks=2), "schedule 1f1b with chunks 1"),
        (case(dense(), "zb-h1", pp=4), "schedule 1f1b with chunks 1"),
    ],
    "ulysses": [(case(dense(), cp=2, dp=2), "cp 1 with dp 4")],
    "zero-pipeline": [(case(dense(), dp=2, pp=2, zero=2), "ZeRO 1")],
    "even-stages": [
        (case(dense(), pp=4, layers=(7, 8, 8, 9)), "layers 8/8/8/8"),
        (case(dense(30), pp=4), "pp 5 with layers 6/6/6/6/6"),
    ],
    "deepspeed-model": [
        (case(latent()), "MTP layers 0"),
        (case(mixture()), "framework megatron"),
    ],
    "deepspeed-precision": [(case(dense(), precision="fp8"), "precision bf16")],
    "core-recompute": [(case(dense(), recompute="selective"), "recompute full")],
}  # fmt: skip


def test_every_rule_has_an_example() -> None:
    assert EXAMPLES.keys() == RULES.keys()


@pytest.mark.parametrize(
    ("rule", "example", "nearest"),
    [(RULES[name], one, near) for name, rows in EXAMPLES.items() for one, near in rows],
)
def test_a_case_is_refused_and_taken_with_the_nearest_change(
    rule: Rule, example: Case, nearest: str
) -> None:
    frameworks = [name for name in FRAMEWORKS if rule.name in {one.name for one in rules_of(name)}]
    for framework in frameworks:
        found = refused(example, framework)
        assert rule.name in found, found
        broke = found[rule.name]
        assert broke.nearest == f"the nearest that works is {nearest}"
        assert str(broke) == f"{broke.text}; {broke.nearest}"
        other = broke.changes.get("framework", framework)
        changes = {name: one for name, one in broke.changes.items() if name != "framework"}
        if rule.name != "deepspeed-model" or not changes:  # without MTP its layers are refused
            assert rule.name not in refused(changed(example, changes), other)
    for framework in set(FRAMEWORKS) - set(frameworks):
        assert rule.name not in refused(example, framework)
    assert (rule.name in refused(example, None)) == (rule in ANY_RULES)


def refused(one: Case, framework: str | None) -> dict[str, Refusal]:
    found = broken(one, framework)
    return {rule.name: problem for rule, problem in found.items()}


@pytest.mark.parametrize(
    ("example", "frameworks"),
    [
        (case(dense(), tp=8, dp=4, pp=4), FRAMEWORKS),
        (case(dense(), "interleaved-1f1b", tp=4, dp=2, pp=4, chunks=4, m=12),
         (*MEGATRONS, *PYTORCH)),
        (case(dense(), "zb-v", dp=2, pp=4, chunks=2), PYTORCH),
        (case(dense(30), "1f1b", tp=2, cp=2, pp=4, b=2, zero=3), (*MEGATRONS, *PYTORCH)),
        (case(dense(30), pp=32, m=64), (*MEGATRONS, *PYTORCH)),
        (case(dense(), dp=4, zero=3), FRAMEWORKS),
        (case(mixture(), tp=2, ep=8, dp=4, pp=2, recompute="full"), (*MEGATRONS, *PYTORCH)),
        (case(latent(), "interleaved-overlap", ep=64, dp=64, pp=16, chunks=2, m=32),
         MEGATRONS),
    ],
)  # fmt: skip
def test_what_fits_breaks_nothing(example: Case, frameworks: tuple[str, ...]) -> None:
    assert {name for name in FRAMEWORKS if not refused(example, name)} == set(frameworks)
    assert not refused(example, None)


def test_all_messages_name_a_value_and_a_change() -> None:
    for name, rows in EXAMPLES.items():
        for one, _ in rows:
            problem = RULES[name].check(one)
            assert problem is not None
            assert problem.changes
            assert problem.text
            assert "\n" not in problem.text


def test_changes_of_stages_cut_the_layers_anew() -> None:
    other = changed(case(dense(), pp=4), {"pp": 8})
    assert other.candidate.layers == (4,) * 8
    assert isinstance(other.candidate, Candidate)


def test_unknown_frameworks_are_refused() -> None:
    assert find_framework(" Megatron").name == "megatron"
    with pytest.raises(db.ParameterError, match="unknown framework 'megatorn'; did you mean"):
        rules_of("megatorn")


def test_nearest_numbers() -> None:
    assert divisors(12) == (1, 2, 3, 4, 6, 12)
    assert divisors(9) == (1, 3, 9)
    assert nearest_of(3, (1, 2, 4)) == 4
    assert nearest_of(6, (4, 8)) == 8
    assert nearest_of(5, (1, 8)) == 8
    assert nearest_multiple(9, 4) == 8
    assert nearest_multiple(10, 4) == 12
    assert nearest_multiple(1, 4) == 4


def test_rules_name_schedules_that_exist() -> None:
    from debubble.planner.frameworks.megatron.rules import SCHEDULES

    assert set(SCHEDULES) <= registry.entries().keys()


def test_aliases_are_the_schedules_that_they_name() -> None:
    one = case(dense(), "zbv", pp=4, chunks=2)
    assert set(refused(one, "megatron")) == {"megatron-schedule"}
    assert not refused(one, "torchtitan")
    assert not refused(case(dense(), "interleaved", pp=4, chunks=2), "megatron")
    with pytest.raises(db.ParameterError, match="unknown schedule 'zb'"):
        refused(case(dense(), "zb", pp=4), None)
