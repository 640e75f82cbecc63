"""The hub's command-line options."""

import argparse
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields

from overlaptop.recording.keep import DEFAULT_KEEP


@dataclass(frozen=True, slots=True)
class HubOptions:
    """Each field is an option: ``--world-size``. Those without a default are required."""

    job: str  # Key of the job: its folder's name
    script: str  # The job's script, as its user calls it
    world_size: int
    starter_pid: int  # The process that asks for a hub
    cwd: str = ""  # The job's working directory
    record: str = ""  # Folder in which the job is recorded. Empty: it is not.
    keep: str = DEFAULT_KEEP  # How much of the recording is kept, as in `Keep.parse`
    linger_s: float = 1.0  # Life after the last rank
    wait_s: float = 30.0  # Life before the first rank


def parse(arguments: Sequence[str] | None) -> HubOptions:
    parser = argparse.ArgumentParser(prog="python -m overlaptop.hub")
    for field in fields(HubOptions):
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=field.type, required=field.default is MISSING, default=field.default)
    return HubOptions(**vars(parser.parse_args(arguments)))
