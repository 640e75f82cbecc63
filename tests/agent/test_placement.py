"""Which rank of which job a process is, whoever started it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable

import pytest

from overlaptop.agent import placement
from overlaptop.wire.endpoints import check_key

TORCHRUN = {
    "RANK": "9",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "16",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
SLURM = {
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "16",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
}
LAUNCHERS = pytest.mark.parametrize("environ", [TORCHRUN, SLURM], ids=["torchrun", "srun"])


@LAUNCHERS
def test_a_launcher_tells_the_place(environ: dict[str, str]) -> None:
    place = placement.from_environment(environ)
    assert place is not None
    assert (place.rank, place.local_rank, place.world_size) == (9, 1, 16)
    assert place.host == socket.gethostname()


def test_torchruns_word_counts_before_slurms() -> None:
    place = placement.from_environment({**SLURM, **TORCHRUN, "RANK": "3"})
    assert place is not None
    assert place.rank == 3


@pytest.mark.parametrize(
    "environ", [{}, {"RANK": "0"}, {"RANK": "", "WORLD_SIZE": "2"}, {"RANK": "-1", "WORLD_SIZE": "x"}]
)
def test_without_rank_and_world_size_there_is_no_place(environ: dict[str, str]) -> None:
    assert placement.from_environment(environ) is None


def test_a_process_of_no_group_is_a_job_of_its_own() -> None:
    place = placement.alone()
    assert (place.rank, place.local_rank, place.world_size) == (0, 0, 1)
    assert str(os.getpid()) in place.job
    assert place.starts_hub


@LAUNCHERS
def test_the_first_rank_of_a_node_starts_its_hub(environ: dict[str, str]) -> None:
    local = "LOCAL_RANK" if "RANK" in environ else "SLURM_LOCALID"
    starts = [placement.from_environment({**environ, local: str(number)}).starts_hub for number in range(3)]
    assert starts == [True, False, False]


@pytest.mark.parametrize("rank", [0, 3])
def test_any_rank_starts_a_hub_where_nobody_says_which_is_the_nodes_first(rank: int) -> None:
    """Kubernetes' PyTorchJob sets RANK and WORLD_SIZE alone, with a node for each rank."""
    environ = {"RANK": str(rank), "WORLD_SIZE": "8", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
    assert placement.from_environment(environ).starts_hub
    assert placement.of_process_group(rank, 8, environ).starts_hub


@LAUNCHERS
def test_ranks_of_a_job_share_its_key_and_another_job_has_another(environ: dict[str, str]) -> None:
    own = [name for name in environ if name.endswith(("RANK", "PROCID", "LOCALID"))]
    keys = {placement.job_key({**environ, **dict.fromkeys(own, str(rank))}) for rank in range(8)}
    assert len(keys) == 1
    shared = [name for name in environ if name not in own and not name.endswith(("SIZE", "NTASKS"))]
    for name in shared:
        keys.add(placement.job_key({**environ, name: "12345"}))
    assert len(keys) == 1 + len(shared)


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "127.0.1.1", "::1"])
def test_two_jobs_that_meet_at_the_loopback_address_of_two_hosts_have_two_keys(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    keys = set()
    for host in ("gpu-a", "gpu-b"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        keys |= {
            placement.job_key({**TORCHRUN, "MASTER_ADDR": address, "RANK": str(rank)}) for rank in range(8)
        }
    assert len(keys) == 2


def test_jobs_without_a_launcher_have_two_keys_in_two_containers_though_their_pids_are_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = set()
    for host in ("5f1c", "77aa"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        keys |= {placement.alone().job, placement.job_key({}), placement.process_key(os.getpid())}
    assert len(keys) == 2
    assert all(check_key(key) for key in keys)


def test_the_ranks_of_a_job_on_several_hosts_share_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = set()
    for host in ("gpu-a", "gpu-b"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        keys.add(placement.job_key({**TORCHRUN, "MASTER_ADDR": "gpu-a"}))
    assert len(keys) == 1


def test_a_script_that_no_launcher_started_is_measured(run_ranks) -> None:
    job = run_ranks(
        """
        import sys, time, types
        # What the agent's thread sees of a module while the script's thread is importing it.
        sys.modules["torch.distributed"] = types.ModuleType("torch.distributed")
        time.sleep(0.3)
        del sys.modules["torch.distributed"]
        import torch
        import overlaptop.agent
        made, deadline = 0, time.monotonic() + 20
        while made < 3 or (overlaptop.agent._agent._sender is None and time.monotonic() < deadline):
            overlaptop.agent.step()
            time.sleep(0.01)
            made += 1
        print(made)
        """,
        nproc=1,
        launched=False,
    )
    assert job.codes == [0], job.errs
    assert job.errs == [""]
    assert [step.step for step in job.steps()] == list(range(int(job.outs[0]) - 1))
    assert (job.info().rank, job.info().world_size, job.info().source) == (0, 1, "host")


@pytest.mark.parametrize(
    ("ranks", "here"),
    [((8, 9, 10, 11), True), ((9,), True), ((7, 8), False), ((11, 12), False), (range(16), False)],
)
def test_the_ranks_of_a_node_are_consecutive(ranks: Iterable[int], here: bool) -> None:
    environ = {**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}
    assert placement.on_this_node(ranks, environ) is here


def test_where_a_launcher_does_not_say_how_many_ranks_a_node_has_nothing_is_claimed() -> None:
    assert placement.on_this_node([9], TORCHRUN) is None
    assert placement.on_this_node([0], {}) is None
    assert placement.on_this_node([0], {**TORCHRUN, "LOCAL_WORLD_SIZE": "many"}) is None


def test_of_no_ranks_nothing_is_claimed() -> None:
    """Torch's flight recorder names none for some groups."""
    assert placement.on_this_node([], {**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}) is None
    assert placement.on_this_node([], {"MASTER_ADDR": "localhost"}) is None


@pytest.mark.parametrize(
    ("distribution", "by_torchrun", "here"),
    [
        ("block", False, True),
        ("block:cyclic", False, True),
        ("", False, True),
        ("cyclic", False, None),
        ("plane=2", False, None),
        ("arbitrary", False, None),
        ("cyclic", True, True),
    ],
)
def test_slurm_may_deal_ranks_out_among_the_nodes(
    distribution: str, by_torchrun: bool, here: bool | None
) -> None:
    """A script that gives torch SLURM's numbers has ranks 0, 2, 4 on one node and 1, 3, 5 on the other."""
    environ = {
        **{name: TORCHRUN[name] for name in ("RANK", "LOCAL_RANK")},
        "WORLD_SIZE": "16",
        "LOCAL_WORLD_SIZE": "4",
        "SLURM_PROCID": TORCHRUN["RANK"],
    }
    if distribution:
        environ["SLURM_DISTRIBUTION"] = distribution
    if by_torchrun:
        environ["TORCHELASTIC_RUN_ID"] = "1"
    assert placement.on_this_node([8, 9], environ) is here
    assert placement.on_this_node(range(4), {**environ, "WORLD_SIZE": "4"}) is True, "the only node"


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1"])
def test_a_job_that_meets_at_a_loopback_address_is_all_here(address: str) -> None:
    assert placement.on_this_node(range(16), {**TORCHRUN, "MASTER_ADDR": address}) is True
    assert placement.on_this_node(range(16), {"MASTER_ADDR": address}) is True
