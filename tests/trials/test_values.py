"""The values that are tried where nobody names any."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlaptop.trials.values import MOST_VALUES, layout_of, values_to_try
from overlaptop.wire.knobs import Knob
from tests.fleet.builders import BUCKET_CAP_MB

from .live_job import LiveJob

DEPTH = Knob("depth", 2, "2", "2", 1, 5)


@pytest.mark.parametrize(
    ("knob", "how", "values"),
    [
        (BUCKET_CAP_MB, {}, [3, 6, 12, 50, 100, 200]),  # a wide knob: around its value
        (DEPTH, {}, [1, 3, 4, 5]),  # a narrow knob: each value
        (replace(DEPTH, choices=(2, 5, 1)), {}, [1, 5]),
        (BUCKET_CAP_MB, {"least": 1, "most": 64}, [1, 2, 4, 8, 16, 32, 64]),  # even factors in a range
        (BUCKET_CAP_MB, {"layout": lambda value: min(value, 40)}, [3, 6, 12, 50]),  # alike: one of them
    ],
)
def test_values_are_spread_over_what_a_knob_allows(knob, how, values):
    assert values_to_try(knob, **how) == values


def test_buckets_are_laid_out_as_ddp_would():
    snapshot = LiveJob(gradients=(1 << 20,) * 30).tick()
    layout = layout_of(BUCKET_CAP_MB, snapshot)
    assert layout is not None
    assert layout(30) == layout(400)
    assert layout(3) != layout(30)
    assert layout_of(DEPTH, snapshot) is None


def test_a_range_without_a_value_is_refused():
    with pytest.raises(ValueError, match="bucket_cap_mb has no other value"):
        values_to_try(BUCKET_CAP_MB, 25, 25)


@given(st.integers(-(1 << 31), 1 << 31), st.integers(1, 1 << 31), st.integers(0, 1 << 31))
def test_values_are_allowed_rising_and_few(least, reach, above):
    most = min(least + reach, 1 << 31)
    present = min(least + above, most)
    knob = Knob("any", present, str(present), str(present), least, max(most, least))
    try:
        values = values_to_try(knob)
    except ValueError:
        return
    assert 0 < len(values) <= MOST_VALUES
    assert values == sorted(set(values) - {present})
    assert all(knob.fault(value) == "" for value in values)
