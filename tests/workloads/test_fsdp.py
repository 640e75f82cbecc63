"""FSDP2's prefetch: whose weights each unit asks for ahead. `r` is the root. The numbers: test_modes."""

import json

SCRIPT = """
import json, sys
from torch.distributed.fsdp import FSDPModule
from overlaptop.workloads import fsdp, gpt, job
from overlaptop.workloads.catalog import FSDP

options, place = job.parse(FSDP, "--device cpu --layers 4 --width 64 --seq 16 --batch 2".split())
told = []
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
        told.append(asked)
print(json.dumps(told))
"""
NONE = {"r": "", "0": "", "1": "", "2": "", "3": ""}
EXPECTED = {
    (0, 0): (NONE, NONE),
    (1, 2): (
        {"r": "0", "0": "1", "1": "2", "2": "3", "3": ""},
        {"r": "32", "3": "21", "2": "10", "1": "0", "0": ""},
    ),
    (9, 0): ({"r": "0123", "0": "123", "1": "23", "2": "3", "3": ""}, NONE),
    (2, 2, 2): (
        {"r": "0", "0": "1", "1": "2", "2": "3", "3": ""},
        {"r": "3", "3": "2", "2": "1", "1": "0", "0": ""},
    ),
    # Asking for itself, whose weights are there, a unit does not fall back on FSDP2's own one ahead.
    (2, 2, 1): ({each: each for each in NONE}, {each: each for each in NONE}),
}


def test_each_unit_asks_for_as_many_units_ahead_as_wanted(run_warm, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run_warm(script, [json.dumps(list(EXPECTED))], tmp_path, 0)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(each["forward"], each["backward"]) for each in told] == list(EXPECTED.values())


def test_gather_limit_waits_for_blocks_that_may_still_be_in_use(monkeypatch):
    import torch

    from overlaptop.workloads import fsdp, gpt

    calls, made = [], iter(range(99))

    class Event:
        def __init__(self):
            self.number = next(made)

        def record(self):
            calls.append(f"record {self.number}")

        def synchronize(self):
            calls.append(f"wait {self.number}")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    model = gpt.Gpt(16, 8, 64, 3)
    fsdp.GatherLimit(model, 2)
    model(torch.zeros(1, 9, dtype=torch.long))
    assert calls == ["record 0", "record 1", "wait 0", "record 2", "wait 1"]
