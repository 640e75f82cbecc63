"""Jobs that are short scripts without torch, held by the real supervisor."""

import sys
from itertools import dropwhile
from pathlib import Path

from overlaptop.launch.launcher import JobPlacement, Launcher
from overlaptop.launch.local import LocalLauncher
from overlaptop.workloads.catalog import Workload
from overlaptop.workloads.options import Option, positive_int

LOG = "log"  # Each job adds a line to it: its name and number when it is up
BODIES = {
    "steady": "time.sleep(600)",
    "other": "time.sleep(600)",
    "broken": "raise ValueError('too large')",
    "short": "pass",
    "late": "time.sleep(0.3); os.kill(os.getpid(), signal.SIGKILL)",
}
HEAD = """
import os, signal, sys, time
def write(word):
    with open({log!r}, "a") as log:
        print(word, *sys.argv[1:], file=log)
write({name!r} + " up")
"""


class Alone(Launcher):
    """The script itself, without torchrun."""

    @property
    def command(self) -> list[str]:
        words = super().command
        of_agent = words[words.index("overlaptop.agent") + 1 :]
        return [sys.executable, *dropwhile(lambda word: word.startswith("--"), of_agent)]

    @property
    def command_line(self) -> str:
        return " ".join(self.command[1:])


def workloads_in(folder: Path) -> list[Workload]:
    found = []
    for name, body in BODIES.items():
        path = folder / f"{name}.py"
        path.write_text(HEAD.format(log=str(folder / LOG), name=name) + body + "\n")
        options = (Option("--size", "how large", positive_int, "N", default=1),)
        found.append(Workload(name, path, f"{name} job", options))
    return found


def launcher_in(folder: Path) -> LocalLauncher:
    return LocalLauncher(
        workloads_in(folder),
        lambda workload, words, _: Alone(workload.path, words, JobPlacement(2, "gloo")),
    )
