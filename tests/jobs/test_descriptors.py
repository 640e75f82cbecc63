"""Standard descriptors that a process was started without."""

import subprocess
import sys

import pytest

FILLS = """
import os, sys
from overlaptop.jobs.sockets import fill_standard
before = len(os.listdir("/proc/self/fd"))
fill_standard()
assert [os.readlink(f"/proc/self/fd/{number}") for number in map(int, sys.argv[1:])] == \
    ["/dev/null"] * (len(sys.argv) - 1)
assert len(os.listdir("/proc/self/fd")) == before + len(sys.argv) - 1
"""


@pytest.mark.parametrize("closed", [[], [0], [1, 2], [0, 1, 2]])
def test_only_closed_standard_descriptors_are_filled(closed):
    numbers = [str(number) for number in closed]
    redirections = " ".join(f"{number}>&-" for number in numbers)
    words = ["sh", "-c", f'exec "$0" -c "$@" {redirections}', sys.executable, FILLS, *numbers]
    assert subprocess.run(words, stdin=subprocess.PIPE).returncode == 0
