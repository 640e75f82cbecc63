"""FSDP2's prefetch: whose weights each unit asks for ahead. `r` is the root. The numbers: test_modes."""

import json

from tests.agent.conftest import run_job

SCRIPT = """
import json, sys
from torch.distributed.fsdp import FSDPModule
from overlaptop.workloads import fsdp, gpt, job
from overlaptop.workloads.catalog import FSDP

options, place = job.parse(FSDP, "--device cpu --layers 4 --width 64 --seq 16 --batch 2".split())
with job.process_group(place):
    model = gpt.build(options, place)
    fsdp.shard(model, place, reshard_after_forward=True)
    names = {model: "r"} | {block: str(at) for at, block in enumerate(model.blocks)}
    for way in ("forward", "backward"):
        def choose(unit, ahead, way=way):
            asked[way][names[unit]] = "".join(map(names.get, ahead))
        setattr(FSDPModule, f"set_modules_to_{way}_prefetch", choose)
    for depths in json.loads(sys.argv[1]):
        asked = {"forward": {}, "backward": {}}
        fsdp.set_prefetch(model, *depths)
        print(*(",".join(asked[way][unit] for unit in "r0123") for way in asked))
"""
ASKED = {
    (0, 0): ",,,, ,,,,",
    (1, 2): "0,1,2,3, 32,,0,10,21",
    (9, 0): "0123,123,23,3, ,,,,",
    (2, 2, 2): "0,1,2,3, 3,,0,1,2",
    # Asking for itself, whose weights are there, a unit does not fall back on FSDP2's own one ahead.
    (2, 2, 1): "r,0,1,2,3 r,0,1,2,3",
}
"""By depths: whom the root and each block ask for in forward, and in backward."""


def test_each_unit_asks_for_as_many_units_ahead_as_wanted(warm, tmp_path):
    depths = json.dumps(list(ASKED))
    done = run_job(
        warm, tmp_path, SCRIPT, nproc=1, agent=False, listen=False, arguments=(depths,), forked=True
    )
    assert done.codes == [0], done.errs
    assert done.outs[0].splitlines() == list(ASKED.values())
