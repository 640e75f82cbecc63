"""What benchmarks are made of: here only what needs no job and no clock."""

from __future__ import annotations

import pytest
from synthetic import SyntheticSession

from overlaptop.wire.codec import encode


@pytest.mark.parametrize("ranks", [1, 8, 256, 1024])
def test_made_up_steps_fit_the_wire_for_any_number_of_ranks(ranks):
    session = SyntheticSession(ranks, past_s=0.0)
    session.watch(range(ranks))
    for rank in {0, ranks - 1}:
        for step in range(120):
            for message in session.step(rank, step):
                encode(message)
