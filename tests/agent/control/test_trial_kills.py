"""Dashboards, hubs and connections that die in the middle of trials leave nothing behind.

``KILLS=1000`` sets the number of them; a summary goes to stdout.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from overlaptop.jobs.record import list_jobs
from tests.agent.control.trying_client import MOST_STEPS
from tests.warm import environment

KILLS = int(os.environ.get("KILLS", "4"))
LIMIT_S = 90.0
OWN = f"3 {25 << 20}"
"""The script's own values: batches a step, and the bytes of a bucket."""
QUIET_STEPS = 80
"""More than a trial that is agreed by now takes to begin, by 20 ms a step and a second's notice."""
VICTIMS = ("dashboard", "hub", "connection", "stopped hub")

TRAINING = """
    import sys, time
    from pathlib import Path
    import torch, torch.distributed as dist
    import torch.distributed.nn  # before there is a group: else it would hold it, with gloo's threads
    from torch.nn.parallel import DistributedDataParallel
    import overlaptop.agent

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    layers = [torch.nn.Linear(32, 32, bias=False) for _ in range(3)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=25)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    accumulation = overlaptop.agent.knob("accumulation", 3, choices=(1, 2, 3, 8))
    stop = torch.zeros(1)
    with Path(f"values{dist.get_rank()}").open("w", buffering=1) as values:
        while not stop[0]:
            print(accumulation.value, model.bucket_bytes_cap, file=values)
            for left in reversed(range(accumulation.value)):
                loss = model(torch.randn(4, 32)).square().mean()
                if left:
                    with model.no_sync():
                        loss.backward()
                else:
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.02)
            stop[0] = Path("stop").exists()
            dist.all_reduce(stop)
    dist.destroy_process_group()
"""


def values(job, rank):
    """What was in force in each iteration so far."""
    lines = (job.folder / f"values{rank}").read_text().split("\n")
    return lines[:-1]


def wait_until(job, holds):
    give_up_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < give_up_s, "the job hangs, or a value stays"
        assert job.process.poll() is None, job.log()
        time.sleep(0.02)


def begin_trials(job, seed):
    """A client that has sent a first trial."""
    client = subprocess.Popen(
        [sys.executable, "-m", "tests.agent.control.trying_client", str(seed)],
        cwd=Path(__file__).parents[3], env=environment(), stdout=subprocess.PIPE,
    )  # fmt: skip
    assert client.stdout is not None
    os.set_blocking(client.stdout.fileno(), False)
    wait_until(job, lambda: client.stdout.read())
    return client


def strike(victim, client, dice):
    hub = next((each.hub_pid for each in list_jobs()), 0)
    if victim == "connection":
        client.send_signal(signal.SIGUSR1)
        return
    if victim == "hub" and hub:
        os.kill(hub, signal.SIGKILL)
    if victim == "stopped hub" and hub:
        os.kill(hub, signal.SIGSTOP)
        time.sleep(dice.uniform(0, 3))
    client.kill()
    if victim == "stopped hub" and hub:
        os.kill(hub, signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.timeout(120 + 30 * KILLS)
def test_all_ranks_end_at_the_scripts_values_whoever_dies(start):
    job = start(training=TRAINING)
    dice = random.Random(int(os.environ.get("SEED", "0")))
    wait_until(job, lambda: all((job.folder / f"values{rank}").exists() for rank in (0, 1)))
    struck, in_trial = Counter(), 0
    for kill in range(KILLS):
        client = begin_trials(job, dice.random())
        time.sleep(
            dice.uniform(0, 2.5)
        )  # at any moment of a trial, which begins a second after it was asked
        in_trial += values(job, 0)[-1] != OWN
        victim = VICTIMS[kill % len(VICTIMS)]
        strike(victim, client, dice)
        struck[victim] += 1
        seen = [len(values(job, rank)) for rank in (0, 1)]

        def quiet(seen=seen):
            return all(
                len(now := values(job, rank)) > seen[rank] + QUIET_STEPS + MOST_STEPS
                and set(now[-10:]) == {OWN}
                for rank in (0, 1)
            )

        wait_until(job, quiet)
        client.kill()
        client.wait()
    (job.folder / "stop").touch()
    assert job.process.wait(LIMIT_S) == 0, job.log()
    first, second = (values(job, rank) for rank in (0, 1))
    assert first == second
    tried = sum(before == OWN != after for before, after in itertools.pairwise(first))
    assert tried >= KILLS / 8
    print(f"kills {dict(struck)}, {in_trial} of them in a trial; {tried} trials in {len(first)} steps")
