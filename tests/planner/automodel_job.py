"""NeMo Automodel's own reading of its YAML, in a process of its own: jobs in, what it made out.

Reads ``{"wheel": folder, "jobs": [{"yaml": text, "gpus": n, "layers": n}]}`` from standard input
and writes one object per job: sizes of the meshes that it builds over a process group that sends
nothing, its pipeline's settings, and the modules of an even cut; or the error.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import yaml


def main() -> None:
    warnings.simplefilter("ignore")
    asked = json.load(sys.stdin)
    sys.path.insert(0, asked["wheel"])
    found = []
    for job in asked["jobs"]:
        try:
            found.append(run(job))
        except (AssertionError, ValueError, TypeError) as error:
            found.append({"error": str(error)})
    json.dump(found, sys.stdout)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """What becomes of one job's YAML."""
    import torch.distributed as dist
    from nemo_automodel.components.distributed.pipelining import functional
    from nemo_automodel.recipes._dist_utils import create_distributed_setup_from_config
    from torch.distributed.pipelining.schedules import get_schedule_class
    from torch.testing._internal.distributed.fake_pg import FakeStore

    config = yaml.safe_load(job["yaml"])
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=job["gpus"])
    try:
        setup = create_distributed_setup_from_config(config, world_size=job["gpus"])
        mesh = setup.mesh_context
        sizes = {name: getattr(mesh, f"{name}_size") for name in ("tp", "cp", "ep", "dp", "pp")}
    finally:
        dist.destroy_process_group()
    pipeline = setup.pipeline_config
    found: dict[str, Any] = {"sizes": sizes, "checkpointing": setup.activation_checkpointing}
    strategy = setup.strategy_config
    found["reshard"] = strategy.reshard_after_forward
    found["sequence_parallel"] = strategy.sequence_parallel
    if pipeline is not None:
        schedule = get_schedule_class(pipeline.pp_schedule)
        found |= {
            "v": schedule == functional.ScheduleZBVZeroBubble,
            "csv": pipeline.pp_schedule_csv,
            "microbatch_size": pipeline.pp_microbatch_size,
            "modules": pipeline.module_fqns_per_model_part,
            "even": functional.generate_hf_model_fqn_per_model_part(
                num_stages=len(pipeline.module_fqns_per_model_part), num_layers=job["layers"],
                include_multimodal_encoders=False,
            ) if len(pipeline.module_fqns_per_model_part) <= job["layers"] else None,
        }  # fmt: skip
    return found


if __name__ == "__main__":
    main()
