"""Jobs that are changed while they train."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def train_twice(run_ranks) -> Callable[..., None]:
    def train(
        job: str, nproc: int, steps: int, changes: int, *variants: str, backend: str = "gloo"
    ) -> None:
        done = run_ranks(
            Path(__file__).with_name(f"{job}_job.py"), nproc=nproc, agent=False, listen=False,
            forked=backend == "gloo", arguments=(backend, str(steps), str(changes), *variants),
        )  # fmt: skip
        assert done.codes == [0] * nproc, done.errs
        assert done.outs == [f"{backend}\n"] * nproc

    return train
