"""Two network namespaces with a line between them whose rate is known, and a job with a rank in each.

Needs root and iproute2. Nothing is left of them at the end of the block.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from torchrun import running

ADDRESSES = ("10.213.77.1", "10.213.77.2")
PORT = 29_517
NAME = "overlaptop-bench"
BURST = "128kb"
"""Of the token bucket: more than the 64 KiB that the kernel hands on at once."""
QUEUE = "1s"
"""The longest that a packet waits for tokens; none is to be lost."""


@contextmanager
def two_hosts(rate: str) -> Iterator[list[str]]:
    """Two network namespaces with a veth pair and a token bucket on each end; gives their names."""
    names = [f"{NAME}-{os.getpid()}-{end}" for end in (0, 1)]
    ends = [end_name(number) for number in (0, 1)]
    try:
        for name in names:
            do("ip", "netns", "add", name)
        do("ip", "link", "add", ends[0], "netns", names[0], "type", "veth",
           "peer", "name", ends[1], "netns", names[1])  # fmt: skip
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            within = ("ip", "netns", "exec", name)
            do(*within, "ip", "link", "set", "lo", "up")
            do(*within, "ip", "address", "add", f"{address}/24", "dev", end)
            do(*within, "ip", "link", "set", end, "up")
        throttle(names, rate)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


def throttle(names: Sequence[str], rate: str) -> None:
    """Give the line between the two this rate, as tc has it."""
    for number, name in enumerate(names):
        do("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", end_name(number), "root", "tbf",
           "rate", rate, "burst", BURST, "latency", QUEUE)  # fmt: skip


def end_name(number: int) -> str:
    """Of the interface in one of the namespaces."""
    return f"ot{os.getpid() % 100_000}e{number}"


@contextmanager
def job_across(
    names: Sequence[str], script: Sequence[str], log: Path, environments: Sequence[Mapping[str, str]] = ()
) -> Iterator[None]:
    """A job with a rank in each namespace, of a script and its options; both see the same files, and so the
    same hub, unless their `environments` say otherwise.
    """
    with log.open("wb") as output, ExitStack() as ranks:
        for rank, name in enumerate(names):
            environment = {
                **os.environ,
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(names)),
                "LOCAL_WORLD_SIZE": str(len(names)), "MASTER_ADDR": ADDRESSES[0],
                "MASTER_PORT": str(PORT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
                "GLOO_SOCKET_IFNAME": end_name(rank), "PYTHONUNBUFFERED": "1",
                **(environments[rank] if environments else {}),
            }  # fmt: skip
            command = ["ip", "netns", "exec", name, sys.executable, "-m", "overlaptop.agent", *script]
            ranks.enter_context(running(command, env=environment, stdout=output, stderr=output))
        yield


def do(*words: str) -> None:
    """Run a command of the system's; SystemExit with what it said where it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
