"""A reader of a hub that cannot be connected to, or does not read."""

import subprocess
import sys

import pytest

OPENS = """
import os, resource, sys
from contextlib import suppress
from pathlib import Path
from overlaptop.jobs.hub_socket import HubSocket
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
held = []
with suppress(OSError):
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
for descriptor in held[:int(sys.argv[1])]:
    os.close(descriptor)
try:
    HubSocket(Path("nowhere.sock")).close()
except OSError as error:
    print(error.strerror)
else:
    print("opened")
"""


@pytest.mark.parametrize("free", [0, 1, 3, 6, 20])
def test_too_few_descriptors_are_an_oserror(free):
    run = subprocess.run([sys.executable, "-c", OPENS, str(free)], stdout=subprocess.PIPE, text=True)
    assert (run.returncode, run.stdout) == (0, "Too many open files\n" if free < 20 else "opened\n")
