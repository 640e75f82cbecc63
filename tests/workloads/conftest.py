"""Small jobs of one or two ranks, quickly: by the dozen, torch's import would be most of what they do."""

import tempfile
from types import SimpleNamespace

import pytest

from tests.warm import WarmRanks, text_of

LIMIT_S = 100.0


@pytest.fixture(scope="session")
def run_warm(warm):
    """``run(script, arguments, cwd, ranks)``: as a completed process of all ranks together.

    0 ranks: one process that no launcher started.
    """

    def run(script, arguments, cwd, ranks):
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            job = WarmRanks(warm, [str(script), *arguments], ranks, cwd, out, err)
            try:
                status = job.wait(LIMIT_S)
            finally:
                job.kill()
            return SimpleNamespace(returncode=status, stdout=text_of(out), stderr=text_of(err))

    return run
