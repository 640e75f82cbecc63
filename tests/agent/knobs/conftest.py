"""Jobs that are changed while they train."""

from pathlib import Path

import pytest


@pytest.fixture
def train_twice(run_ranks):
    def train(which, nproc, steps, changes, *variants, backend="gloo"):
        done = run_ranks(
            Path(__file__).with_name("changed_job.py"), nproc=nproc, agent=False, listen=False,
            forked=backend == "gloo", arguments=(which, backend, str(steps), str(changes), *variants),
        )  # fmt: skip
        assert done.codes == [0] * nproc, done.errs
        assert done.outs == [f"{backend}\n"] * nproc

    return train
