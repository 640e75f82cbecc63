"""The agent's options, from its command line or `attach`."""

import argparse
import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NoReturn

from overlaptop import text
from overlaptop.recording.keep import DEFAULT_KEEP, Keep
from overlaptop.timeline.lanes import LaneRule, parse_rule

SOURCE_CHOICES = ("auto", "kernels", "events", "host")


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How to measure. The defaults suit any job."""

    source: str = "auto"  # One of SOURCE_CHOICES
    phases_only: bool = False  # Measure steps and phases but no collectives: the cheapest mode
    every: int | None = None
    """Measure every n-th step; None: measure bursts, and between them as the budget allows."""
    budget: float | None = None
    """Share of the job's time that measuring may cost while a dashboard watches; otherwise a tenth."""
    control: bool = False
    """Obey commands from this user's dashboards, such as a capture; bundled workloads always do."""

    lane_rules: tuple[LaneRule, ...] = ()  # The user's rules for lanes; they precede the built-in rules
    telemetry: bool = True  # Read links, clocks and CPU placement twice a second on a separate thread
    stacks: bool = True  # Sample the training thread's line of the script ten times a second
    gather: bool = False
    """Let the first node's hub reach the other nodes' hubs over TCP, with the user's key."""
    record: str = ""  # Folder in which the node's hub records the job, relative to the working directory
    keep: str = DEFAULT_KEEP  # How much of the recording is kept, such as ``2h`` or ``1GB``

    def __post_init__(self) -> None:
        """Check the values; raises ValueError with one line."""
        if self.source not in SOURCE_CHOICES:
            raise ValueError(f"source must be one of {', '.join(SOURCE_CHOICES)}, not {self.source!r}")
        if self.phases_only and self.source == "kernels":
            raise ValueError("phases alone are measured by the source events or host, not by kernels")
        if self.every is not None and not 1 <= self.every <= 1_000_000:
            raise ValueError(f"every must be from 1 to 1000000, not {self.every}")
        if self.budget is not None and not 0 < self.budget <= 1:
            raise ValueError(f"budget must be above 0 and at most 1 (100 %), not {self.budget}")
        Keep.parse(self.keep)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A parsed command line: the agent's options and the job's arguments."""

    options: AgentOptions
    module: bool  # True: `target` is a module name (``-m``), else a path
    target: str
    arguments: tuple[str, ...]


class _Parser(argparse.ArgumentParser):
    """Reports a usage error in one line, once on each node."""

    def error(self, message: str) -> NoReturn:
        line = f"{self.prog}: error: {message}"
        if os.environ.get("LOCAL_RANK", "0") == "0":
            sys.stderr.write(f"{line}\n")
        tell_torchrun(line)
        raise SystemExit(2)

    def refuse(self, unknown: list[str]) -> NoReturn:
        meant = text.did_you_mean(unknown[0], self._option_string_actions)
        self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")


def tell_torchrun(line: str) -> None:
    """Write the line to the file whose message torchrun prints at the end of its failure report."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        part = Path(f"{path}.part")  # torchrun may end this process at any moment, and fails at half a file
        with suppress(OSError):
            part.write_text(json.dumps({"message": line, "timestamp": int(time.time())}))
            part.replace(path)


def _share(words: str) -> float:
    """Read ``5%`` or ``0.05``."""
    try:
        return float(words[:-1]) / 100 if words.endswith("%") else float(words)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a share such as 5%, not {words!r}") from None


def _folder(words: str) -> str:
    """Refuse the script of a user who left out the folder."""
    if Path(words).is_file():
        raise argparse.ArgumentTypeError(f"it took {words}, a file, as its folder: name one first")
    return words


_SWITCHES = (
    ("--phases-only", "phases_only", True, "steps and phases, no collectives: cheapest"),
    ("--control", "control", True, "obey commands from your dashboards, such as a capture"),
    ("--no-telemetry", "telemetry", False, "do not read NVLink, PCIe, clocks and NUMA placement"),
    ("--no-stacks", "stacks", False, "do not note at which line of the script the training thread is"),
    (
        "--gather", "gather", True, "show all nodes of the job on the first one: its hub opens a TCP port "
        "on MASTER_ADDR, where the other nodes' hubs connect. All need the key that `overlaptop key` makes",
    ),
)  # fmt: skip
"""Each with the option that it sets, to which value."""


def parse(words: list[str]) -> CommandLine:
    """Split ``[options] script.py [args]``. A usage error exits with status 2 and one line."""
    parser = _Parser(
        prog="python -m overlaptop.agent",
        usage="python -m overlaptop.agent [options] (script.py | -m module) [args ...]",
        description="Run a training script with overlaptop's agent beside it, as in "
        "`torchrun --nproc-per-node=8 -m overlaptop.agent train.py`. Watch it with `overlaptop`.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--source", choices=SOURCE_CHOICES, default="auto",
        help="where spans come from: CUPTI's kernel records, CUDA events, the host's clock, or the first "
        "of these that works here (default)",
    )  # fmt: skip
    add(
        "--every", type=int, metavar="N",
        help="measure every N-th step, whatever it costs (default: bursts, then a step a second)",
    )  # fmt: skip
    add(
        "--budget", type=_share, metavar="PERCENT",
        help="how much longer measuring may make steps while somebody watches, such as 5%% (default: 1%%, "
        "and a step a second); a tenth of it otherwise",
    )  # fmt: skip
    add(
        "--lane", dest="lane_rules", action="append", default=[], metavar="LANE=REGEX",
        help="kernels whose name contains a match belong to this lane (compute, comm, copy, fused, idle), "
        "whatever the built-in rules say; may be given several times, the first match counts. Only the "
        "kernels source sees names",
    )  # fmt: skip
    add(
        "--record", type=_folder, default="", metavar="DIR",
        help="record the job into this folder, from the start, for `overlaptop replay`: a process beside "
        "it does, a file for each node",
    )  # fmt: skip
    add(
        "--keep", default=DEFAULT_KEEP, metavar="AMOUNT",
        help="of a node's recording: at least the last 2h (s, m, h), or at most 1GB (MB, GB; default 2GB)",
    )  # fmt: skip
    for flag, name, value, what in _SWITCHES:
        add(flag, dest=name, action="store_const", const=value, default=not value, help=what)
    add("-m", dest="module", action="store_true", help="the job is a module, as in python -m")
    add("target", metavar="script.py", help="the job; what follows is its own")
    add("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parsed, unknown = parser.parse_known_args(words)
    if unknown:
        parser.refuse(unknown)
    try:
        own = {each.name: getattr(parsed, each.name) for each in fields(AgentOptions)}
        options = AgentOptions(**{**own, "lane_rules": tuple(map(parse_rule, parsed.lane_rules))})
    except ValueError as fault:
        parser.error(str(fault))
    return CommandLine(options, parsed.module, parsed.target, tuple(parsed.arguments))
