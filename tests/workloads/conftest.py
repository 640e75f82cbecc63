"""Small jobs of one or two ranks, quickly: by the dozen, torch's import would be most of what they do."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def run_warm():
    """``run(script, arguments, cwd, ranks)``: as a completed process of all ranks together; see warm.py."""
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("warm.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    def run(script, arguments, cwd, ranks):
        order = {"script": str(script), "arguments": arguments, "cwd": str(cwd), "ranks": ranks}
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        return SimpleNamespace(**json.loads(server.stdout.readline()))

    yield run
    server.stdin.close()
    server.wait(20)
