"""The captures of the watched job: whether one can be made, which traces to read, and their figures.

``overlaptop analyze`` reads the traces in its own process: its time and memory would disturb drawing.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlaptop.fleet.commands import CommandView
from overlaptop.fleet.merging import out_of_reach
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.timeline import ratios
from overlaptop.wire.commands import HOW_TO_ALLOW, WRITTEN
from overlaptop.wire.messages import AGENT_DISABLED

LIMIT_S = 300.0


def refusal(snapshot: Snapshot) -> str:
    """Return why no capture can be requested now; empty: it can."""
    if snapshot.hub_state is HubState.ENDED:
        return "the job is over"
    infos = [view.info for view in snapshot.ranks if view.info is not None and not view.ended]
    for info in infos:
        if info.agent_disabled:
            return f"rank {info.rank}: {AGENT_DISABLED}"
        if not info.control_allowed:
            return f"{HOW_TO_ALLOW} it"
    return out_of_reach("capture", snapshot.nodes, snapshot.ranks) if snapshot.nodes else ""


@dataclass(frozen=True, slots=True)
class RankReference:
    """The sum of the steps of one rank's trace; times in ns."""

    comm_ns: int
    hidden_ns: int
    exposed_ns: int
    exact: bool = True
    """False: compute is an upper bound, and so is overlap."""

    @property
    def overlap(self) -> float | None:
        """``hidden / comm``; None without communication."""
        return ratios.overlap(self.hidden_ns, self.comm_ns)


@dataclass(frozen=True, slots=True)
class ProfilerReference:
    """The figures of one capture's traces, by rank."""

    ranks: dict[int, RankReference]
    note: str
    """Why there are no figures (yet); empty if there are."""


_READING = ProfilerReference({}, "reading the traces ...")


class Captures:
    """The captures that were requested here, and the figures of those that were read."""

    def __init__(self) -> None:
        self.references: dict[str, ProfilerReference] = {}
        self._asked: set[str] = set()

    def asked(self, capture: str) -> None:
        self._asked.add(capture)

    def refused(self, commands: Iterable[CommandView]) -> list[CommandView]:
        """Return this dashboard's captures that were refused as busy, each once."""
        found = [each for each in commands if each.id in self._asked and each.busy and each.done]
        self._asked.difference_update(each.id for each in found)
        return found

    def to_read(self, commands: Iterable[CommandView], *, looked_at: bool) -> list[CommandView]:
        """Return the written captures that were requested here or are ``looked_at``, each once."""
        written = [each for each in commands if each.state == WRITTEN and each.id not in self.references]
        found = [each for each in written if looked_at or each.id in self._asked]
        self.references.update((each.id, _READING) for each in found)
        return found


def command_for(folder: str) -> list[str]:
    return [sys.executable, "-P", "-m", "overlaptop", "analyze", folder, "--json"]


async def read_reference(capture: CommandView, *, elsewhere: bool = False) -> ProfilerReference:
    """Analyse a written capture's traces. ``elsewhere``: some are on other hosts."""
    if elsewhere and not all(Path(each.text).is_file() for each in capture.ranks):
        # With a shared file system the traces are also here.
        return ProfilerReference({}, "copy the traces here to compare: overlaptop analyze FOLDER")
    folder, *others = {str(Path(each.text).parent) for each in capture.ranks}
    if others:
        return ProfilerReference({}, "the ranks wrote to different folders: analyse them one by one")
    if not (Path(folder).is_absolute() and Path(folder).is_dir()):
        return ProfilerReference({}, "the folder is not on this machine")
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command_for(folder), stdin=nothing, stdout=pipe, stderr=pipe
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), LIMIT_S)
    except TimeoutError:
        return ProfilerReference({}, f"the analysis took longer than {LIMIT_S:.0f} s")
    finally:
        # Also if the dashboard closes meanwhile.
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        said = (err.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        said = said.removeprefix("overlaptop: ").replace(f"{folder}/", "")  # the screen shows it above
        return ProfilerReference({}, f"the traces cannot be analysed: {said}"[:500])
    ranks = _sums(out.decode(errors="replace"))
    return ProfilerReference(ranks, "" if ranks else "the analysis names no rank")


def _sums(records: str) -> dict[int, RankReference]:
    """Sum the steps of each rank. Steps, not whole traces: those begin while ranks still wait for each
    other's profilers to start.
    """
    steps: dict[int, list[dict[str, Any]]] = {}
    for record in map(json.loads, records.splitlines()):
        if record["type"] == "step" and record["comm_ns"] is not None:
            steps.setdefault(record["rank"], []).append(record)
    return {
        rank: RankReference(
            sum(each["comm_ns"] for each in own),
            sum(each["hidden_ns"] for each in own),
            sum(each["exposed_ns"] for each in own),
            exact=all(each["compute_exact"] is not False for each in own),
        )
        for rank, own in steps.items()
    }
