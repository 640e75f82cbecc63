"""The figures of a capture's traces. ``overlaptop analyze`` reads them, in its own process: its time and
memory would disturb drawing.
"""

import asyncio
import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from overlaptop.fleet.commands import CommandView


@dataclass(slots=True)
class TraceSums:
    """The sum of the steps of one rank's trace; times in ns."""

    comm_ns: int = 0
    hidden_ns: int = 0
    exact: bool = True  # False: compute is an upper bound, and so is overlap


def command_for(folder: str) -> list[str]:
    return [sys.executable, "-P", "-m", "overlaptop", "analyze", folder, "--json"]


async def sums_of(capture: CommandView) -> dict[int, TraceSums] | str:
    """Analyse a written capture's traces; return their figures by rank, or why there are none."""
    paths = [Path(each.text) for each in capture.ranks]
    folder = paths[0].parent
    if not all(path.is_absolute() and path.parent == folder and path.is_file() for path in paths):
        # With a shared file system, traces of other hosts are also here.
        return "copy the traces here to compare: overlaptop analyze FOLDER"
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command_for(str(folder)), stdin=nothing, stdout=pipe, stderr=pipe
    )
    try:
        out, err = await process.communicate()
    finally:
        # If the dashboard closes meanwhile.
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        said = (err.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        said = said.removeprefix("overlaptop: ").replace(f"{folder}/", "")  # the screen shows it above
        return f"the traces cannot be analysed: {said}"[:500]
    return _sums(out.decode(errors="replace")) or "the analysis names no rank"


def _sums(records: str) -> dict[int, TraceSums]:
    """Sum the steps of each rank. Steps, not whole traces: those begin while ranks still wait for each
    other's profilers to start.
    """
    sums: dict[int, TraceSums] = {}
    for record in map(json.loads, records.splitlines()):
        if record["type"] == "step" and record["comm_ns"] is not None:
            own = sums.setdefault(record["rank"], TraceSums())
            own.comm_ns += record["comm_ns"]
            own.hidden_ns += record["hidden_ns"]
            own.exact = own.exact and record["compute_exact"] is not False
    return sums
