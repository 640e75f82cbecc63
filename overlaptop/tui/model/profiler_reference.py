"""Figures of a capture's traces: ``overlaptop analyze`` runs in its own process, and the dashboard reads
its output. The trace reader's time and memory would disturb drawing.
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
    """The figures of one capture's traces."""

    ranks: dict[int, RankReference]
    note: str
    """Why there are no figures (yet); empty if there are."""


READING = ProfilerReference({}, "reading the traces ...")


def command_for(folder: str) -> list[str]:
    """Return the command that reads a folder of traces."""
    return [sys.executable, "-P", "-m", "overlaptop", "analyze", folder, "--json"]


async def read_reference(capture: CommandView, *, elsewhere: bool = False) -> ProfilerReference:
    """Analyse a capture's traces after every rank has written its own. ``elsewhere``: some are on other
    hosts.
    """
    if elsewhere and not all(Path(each.text).is_file() for each in capture.ranks):
        # With a shared file system the traces are also here.
        return ProfilerReference({}, "copy the traces here to compare: overlaptop analyze FOLDER")
    folder, *others = {str(Path(each.text).parent) for each in capture.ranks}
    if others:
        return ProfilerReference({}, "the ranks wrote to different folders: analyse them one by one")
    if not (Path(folder).is_absolute() and Path(folder).is_dir()):
        return ProfilerReference({}, "the folder is not on this machine")
    reference = await run(command_for(folder))
    return replace(reference, note=reference.note.replace(f"{folder}/", ""))  # the screen shows it above


async def run(words: Sequence[str]) -> ProfilerReference:
    """Run the analysis and read its records; report any error in one line."""
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
        # Also if the dashboard closes meanwhile.
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
    """Sum the steps of each rank in lines of JSON; skip other lines.

    Steps, not whole traces: those begin while ranks still wait for each other's profilers to start.
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
