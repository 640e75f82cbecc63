"""A capture of the bundled DDP job on NCCL: the traces hold its kernels, and they can be analysed."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu

STEPS = 5
BUNDLED = """
    import sys
    from overlaptop.workloads import ddp, job
    sys.argv[1:] = []
    job.main(ddp.__file__, ddp.run)
"""


def test_a_capture_on_nccl_holds_the_kernels_of_its_steps_and_can_be_analysed(start, watch):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    job, dashboard = start(training=BUNDLED, warm=None), watch()

    def all_measured(snapshot):  # a capture shows the live overlap of the steps before it
        return all(view.last is not None and view.last.measured for view in snapshot.ranks)

    dashboard.until_it_trains()
    dashboard.until(all_measured)
    made = dashboard.outcome(dashboard.ask(STEPS))
    assert made.state == "written"
    for rank in made.ranks:
        assert rank.rank in made.live
        with gzip.open(rank.text) as file:
            trace = json.load(file)
        names = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "kernel"]
        assert sum(name.startswith("ncclDevKernel") for name in names) >= STEPS
        assert trace["distributedInfo"]["backend"] == "nccl"
        steps = {event["name"] for event in trace["traceEvents"] if "ProfilerStep#" in event["name"]}
        assert len(steps) == STEPS
    words = [sys.executable, "-m", "overlaptop", "analyze", str(Path(made.ranks[0].text).parent), "--json"]
    said = subprocess.run(words, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in said.stdout.splitlines()]
    truth = {record["rank"]: record["overlap"] for record in found if record["type"] == "rank"}
    assert sorted(truth) == [0, 1]
    assert all(0 < overlap <= 1 for overlap in truth.values())
    assert job.process.poll() is None
