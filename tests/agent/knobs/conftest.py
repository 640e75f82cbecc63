"""Jobs that are changed while they train."""

from pathlib import Path

import pytest


@pytest.fixture
def train_twice(run_ranks):
    def train(job, nproc, steps, changes, *variants, backend="gloo"):
        done = run_ranks(
            Path(__file__).with_name(f"{job}_job.py"), nproc=nproc, agent=False, listen=False,
            forked=backend == "gloo", arguments=(backend, str(steps), str(changes), *variants),
        )  # fmt: skip
        assert done.codes == [0] * nproc, done.errs
        assert done.outs == [f"{backend}\n"] * nproc

    return train
