"""``overlaptop key``: make the key that hubs of one job need to reach each other."""

import argparse

from overlaptop.commands.output import print_message, refusing
from overlaptop.jobs.gather_key import VARIABLE, GatherError, make_key

DESCRIPTION = f"""\
Make the key for jobs with --gather, in a file that only you can read. All nodes of a job need the same: by
a home folder that they share, by a copy of the file, or by the variable {VARIABLE} with the file's text.

  overlaptop key
  torchrun ... -m overlaptop.agent --gather train.py          on each node
  overlaptop                                                  on the first node: shows all nodes
"""
EPILOG = """\
exit status: 0, or 1 if there is a key already or the file cannot be written.
environment: XDG_CONFIG_HOME, instead of ~/.config.
"""


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """It has none."""


def run(_options: argparse.Namespace) -> int:
    with refusing(GatherError, status=1):
        path = make_key()
    print_message(f"wrote {path}; without a shared home, copy it to all nodes of the job: scp -p")
    return 0
