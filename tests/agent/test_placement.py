"""Which rank of which job a process is, whoever started it."""

import os
import re
import socket
from dataclasses import replace

import pytest
import torch.distributed as dist

from overlaptop.agent import placement
from overlaptop.wire.protocol import JOB_KEY

TORCHRUN = {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "MASTER_ADDR": "node-a",
            "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}  # fmt: skip
SLURM = {"SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "77",
         "SLURM_STEP_ID": "0"}  # fmt: skip
ON_NODE = {**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}  # Ranks 8 to 11 are here
NODES = {**ON_NODE, "GROUP_WORLD_SIZE": "4"}
DEALT_OUT = {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "4",
             "SLURM_PROCID": "9", "SLURM_DISTRIBUTION": "cyclic"}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "local"), [(TORCHRUN, "LOCAL_RANK"), (SLURM, "SLURM_LOCALID")], ids=["torchrun", "srun"]
)
def test_first_rank_of_a_node_starts_its_hub(environ, local):
    place = placement.from_environment(environ)
    assert (place.rank, place.local_rank, place.world_size) == (9, 1, 16)
    assert (place.host, place.starts_hub) == (socket.gethostname(), False)
    assert placement.from_environment({**environ, local: "0"}).starts_hub


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "0"},
        {"RANK": "", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "x"},
        SLURM | {"SLURM_NTASKS": "1"},  # the others are of a batch script, or of the shell of salloc
        SLURM | {"SLURM_STEP_ID": ""},
        SLURM | {"SLURM_STEP_ID": "4294967290"},
    ],
)
def test_without_rank_and_world_size_there_is_no_place(environ):
    assert placement.from_environment(environ) is None


@pytest.mark.parametrize(
    ("environ", "own", "shared"),
    [
        (TORCHRUN, ("RANK", "LOCAL_RANK"), ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")),
        (SLURM, ("SLURM_PROCID", "SLURM_LOCALID"), ("SLURM_JOB_ID", "SLURM_STEP_ID")),
    ],
    ids=["torchrun", "srun"],
)
def test_ranks_of_a_job_share_a_key_of_their_own(environ, own, shared):
    of_ranks = {placement.job_key({**environ, **dict.fromkeys(own, str(rank))}) for rank in range(8)}
    others = {placement.job_key({**environ, name: "12345"}) for name in shared}
    assert (len(of_ranks), len(of_ranks | others)) == (1, 1 + len(shared))


@pytest.mark.parametrize(
    ("environ", "keys"),
    [({**TORCHRUN, "MASTER_ADDR": "gpu-a"}, 1), ({**TORCHRUN, "MASTER_ADDR": "127.0.0.1"}, 2), ({}, 2)],
    ids=["one job on two hosts", "loopback", "without a launcher"],
)
def test_two_hosts_share_a_key_only_where_their_ranks_meet(monkeypatch, environ, keys):
    """Two containers may have one pid, and one address of themselves."""
    found = set()
    for host in ("gpu-a", "5f1c"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        found |= {placement.job_key({**environ, "RANK": str(rank)}) for rank in range(8)}
        if not environ:
            found |= {placement.alone().job, placement.process_key(os.getpid())}
    assert len(found) == keys
    assert all(re.match(JOB_KEY, key) for key in found)


def test_a_script_that_no_launcher_started_is_measured(run_ranks):
    job = run_ranks(
        """
        import sys, time, types
        # What the agent's thread sees of a module while the script's thread is importing it.
        sys.modules["torch.distributed"] = types.ModuleType("torch.distributed")
        time.sleep(0.3)
        del sys.modules["torch.distributed"]
        import torch
        import overlaptop.agent
        made, deadline = 0, time.monotonic() + 60
        while made < 3 or (overlaptop.agent._agent._sender is None and time.monotonic() < deadline):
            overlaptop.agent.step()
            time.sleep(0.01)
            made += 1
        print(made)
        """,
        nproc=1,
        launched=False,
    )
    assert (job.codes, job.errs) == ([0], [""])
    assert [step.step for step in job.steps()] == list(range(int(job.outs[0]) - 1))
    assert (job.info().rank, job.info().world_size, job.info().source) == (0, 1, "host")


@pytest.mark.parametrize(
    ("ranks", "environ", "nodes"),
    [
        ((8, 9, 10, 11), ON_NODE, 1),
        ((7, 8), ON_NODE, None),
        ((11, 12), ON_NODE, None),
        ((9,), TORCHRUN, None),
        ((0,), {**TORCHRUN, "LOCAL_WORLD_SIZE": "many"}, None),
        ((), ON_NODE, None),  # torch's flight recorder names no rank for some groups
        (range(16), {**TORCHRUN, "MASTER_ADDR": "localhost"}, 1),
        ((3, 7, 11, 15), NODES, 4),
        ((6, 7, 8), NODES, None),
        (range(16), {**NODES, "GROUP_WORLD_SIZE": "3"}, None),
        # A script that takes the numbers from SLURM may have ranks 0 and 2 on one node, 1 and 3 on another.
        ((8, 9), DEALT_OUT, None),
        ((8, 9), {**DEALT_OUT, "SLURM_DISTRIBUTION": "block:cyclic"}, 1),
        ((8, 9), {**DEALT_OUT, "TORCHELASTIC_RUN_ID": "1"}, 1),
        (range(4), {**DEALT_OUT, "WORLD_SIZE": "4"}, 1),  # the only node
    ],
)
def test_nodes_of_ranks_are_known_from_their_launcher(ranks, environ, nodes):
    assert placement.node_count(ranks, environ) == nodes


@pytest.mark.parametrize(
    ("environ", "local_world_size"),
    [
        (ON_NODE, 4),
        (TORCHRUN, None),
        ({**ON_NODE, "WORLD_SIZE": "2"}, None),
        ({**TORCHRUN, "MASTER_ADDR": "127.0.0.1"}, 16),
    ],
    ids=["torchrun", "nobody says", "another job's", "one host"],
)
def test_ranks_of_the_node_are_counted_where_that_is_known(environ, local_world_size):
    assert placement.of_process_group(9, 16, environ).local_world_size == local_world_size


@pytest.fixture
def in_group(tmp_path):
    """The place of a process that is known from its launcher, in a process group."""

    def find(known, rank, world_size, met_at="store", *, confirmed=False):
        from torch.testing._internal.distributed import fake_pg  # noqa: F401 - registers the backend

        store = dist.FileStore(str(tmp_path / met_at), 2)
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=store)
        try:
            return placement.in_process_group(known, confirmed=confirmed)
        finally:
            dist.destroy_process_group()

    return find


def test_process_group_wins_over_the_launcher(in_group, monkeypatch):
    for name, value in {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    guess = placement.from_environment()
    found = [in_group(guess, rank, 2) for rank in (0, 1)]
    assert [(each.rank, each.world_size, each.local_rank) for each in found] == [(0, 2, 0), (1, 2, 1)]
    jobs = {each.job for each in (*found, in_group(guess, 0, 2, "other"))}
    assert len(jobs) == 2, "a job for each meeting place"
    assert guess.job not in jobs


def test_job_keeps_its_place_or_key_where_the_process_group_agrees(in_group):
    guess = placement.from_environment(TORCHRUN)
    assert placement.in_process_group(guess, confirmed=False) is None
    assert in_group(guess, 9, 16) is guess
    assert in_group(guess, 3, 8, confirmed=True) == replace(guess, rank=3, world_size=8)
