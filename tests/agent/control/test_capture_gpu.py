"""A capture of the bundled DDP job on NCCL: the traces hold its kernels, and they can be analysed."""

import gzip
import json
import os
import subprocess
import sys
import time
from operator import itemgetter
from pathlib import Path

import pytest
import torch

from overlaptop.workloads.catalog import WORKLOADS
from tests.agent.commanded import socket_directory

pytestmark = pytest.mark.gpu

STEPS = 5
TIMEOUT_S = 100.0


@pytest.fixture
def job(tmp_path):
    """The bundled DDP job on two ranks, which obeys without having been told to."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    ddp = next(workload.path for workload in WORKLOADS if workload.name == "ddp")
    with socket_directory():
        process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
             "-m", "overlaptop.agent", str(ddp)],
            cwd=tmp_path, env=os.environ,
        )  # fmt: skip
        yield process
        process.terminate()
        process.wait(30)


def overlaptop(*words):
    return subprocess.run([sys.executable, "-m", "overlaptop", *words], capture_output=True, text=True)


def all_measured() -> bool:
    """Whether both ranks have measured a step in detail."""
    lines = overlaptop("--once", "--json").stdout.splitlines()
    records = [record for record in map(json.loads, lines) if record["type"] == "step"]
    return len(records) == 2 and all(record["overlap"] is not None for record in records)


def test_a_capture_on_nccl_holds_the_kernels_of_its_steps_and_can_be_analysed(job, tmp_path):
    give_up_s = time.monotonic() + TIMEOUT_S
    while not all_measured():  # a capture shows the live overlap of the steps before it
        assert time.monotonic() < give_up_s
        time.sleep(1.0)
    made = overlaptop("capture", "--steps", str(STEPS), "--json")
    assert made.returncode == 0, made.stderr
    records = sorted(map(json.loads, made.stdout.splitlines()), key=itemgetter("rank"))
    assert [(record["rank"], record["state"]) for record in records] == [(0, "written"), (1, "written")]
    for record in records:
        with gzip.open(record["path"]) as file:
            trace = json.load(file)
        names = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "kernel"]
        assert sum(name.startswith("ncclDevKernel") for name in names) >= STEPS
        assert trace["distributedInfo"]["backend"] == "nccl"
        steps = {event["name"] for event in trace["traceEvents"] if "ProfilerStep#" in event["name"]}
        assert len(steps) == STEPS
    said = overlaptop("analyze", str(Path(records[0]["path"]).parent), "--json")
    assert said.returncode == 0, said.stderr
    found = [json.loads(line) for line in said.stdout.splitlines()]
    truth = {record["rank"]: record["overlap"] for record in found if record["type"] == "rank"}
    assert sorted(truth) == [0, 1]
    for record in records:
        assert record["live_overlap"] is not None
        assert 0 < truth[record["rank"]] <= 1
    assert job.poll() is None
