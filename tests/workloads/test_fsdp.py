"""FSDP2's prefetch: whose weights each unit asks for ahead. `r` is the root. The numbers: test_modes."""

import json

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


def test_each_unit_asks_for_as_many_units_ahead_as_wanted(run_warm, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run_warm(script, [json.dumps(list(ASKED))], tmp_path, 0)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == list(ASKED.values())
