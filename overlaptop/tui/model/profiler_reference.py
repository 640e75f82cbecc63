"""What a capture's traces say: ``overlaptop analyze`` in a process of its own, read by the dashboard.

The trace reader costs time and memory for which the dashboard, which draws meanwhile, has no use.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from overlaptop.fleet.commands import CommandView
from overlaptop.timeline import ratios
from overlaptop.wire.bounds import MAX_RANKS

LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class RankReference:
    """The steps of one rank's trace together; times in ns."""

    comm_ns: int
    hidden_ns: int
    exposed_ns: int
    exact: bool = True
    """False: compute is an upper bound, so overlap is at most what it says."""

    @property
    def overlap(self) -> float | None:
        """``hidden / comm``; None without communication."""
        return ratios.overlap(self.hidden_ns, self.comm_ns)


@dataclass(frozen=True, slots=True)
class ProfilerReference:
    """What is known of one capture's traces."""

    ranks: dict[int, RankReference]
    note: str
    """Why there are no figures (yet); empty where there are."""


READING = ProfilerReference({}, "reading the traces ...")


def command_for(folder: str) -> list[str]:
    """What reads a folder of traces."""
    return [sys.executable, "-P", "-m", "overlaptop", "analyze", folder, "--json"]


async def read_reference(capture: CommandView, *, elsewhere: bool = False) -> ProfilerReference:
    """Analyse the traces of a capture that every rank has written. ``elsewhere``: some on other hosts."""
    if elsewhere and not all(Path(each.text).is_file() for each in capture.ranks):
        # Where the hosts share their files, they are here as well.
        return ProfilerReference({}, "copy the traces here to compare: overlaptop analyze FOLDER")
    folder, *others = {str(Path(each.text).parent) for each in capture.ranks}
    if others:
        return ProfilerReference({}, "the ranks wrote to different folders: analyse them one by one")
    if not (Path(folder).is_absolute() and Path(folder).is_dir()):
        return ProfilerReference({}, "the folder is not on this machine")
    reference = await run(command_for(folder))
    return replace(reference, note=reference.note.replace(f"{folder}/", ""))  # it stands above already


async def run(words: Sequence[str]) -> ProfilerReference:
    """Run the analysis and read its records; whatever goes wrong is told in one line."""
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        return ProfilerReference({}, f"the traces cannot be analysed: {error}")
    try:
        out, err = await asyncio.wait_for(process.communicate(), LIMIT_S)
    except TimeoutError:
        return ProfilerReference({}, f"the analysis took longer than {LIMIT_S:.0f} s")
    finally:
        # Also where the dashboard is closed meanwhile.
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        text = (err.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        return ProfilerReference(
            {}, f"the traces cannot be analysed: {text.removeprefix('overlaptop: ')}"[:500]
        )
    ranks = parse(out.decode(errors="replace"))
    return ProfilerReference(ranks, "" if ranks else "the analysis names no rank")


def parse(text: str) -> dict[int, RankReference]:
    """The steps of each rank among lines of JSON, added up; what is not one is passed over.

    Steps, not whole traces: those begin while ranks still wait for one another's profilers to start.
    """
    ranks: dict[int, RankReference] = {}
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(record, dict) or record.get("type") != "step":
            continue
        rank = record.get("rank")
        times_ns = [record.get(name) for name in ("comm_ns", "hidden_ns", "exposed_ns")]
        known_ns = [ns for ns in times_ns if type(ns) is int and ns >= 0]
        if type(rank) is not int or not 0 <= rank < MAX_RANKS or len(known_ns) != len(times_ns):
            continue
        sofar = ranks.get(rank, RankReference(0, 0, 0))
        comm_ns, hidden_ns, exposed_ns = known_ns
        ranks[rank] = RankReference(
            sofar.comm_ns + comm_ns,
            sofar.hidden_ns + hidden_ns,
            sofar.exposed_ns + exposed_ns,
            sofar.exact and record.get("compute_exact") is not False,
        )
    return ranks
