"""How a knob's values are stepped through and typed."""

import pytest
from msgspec.structs import replace

from overlaptop.report.knobs import code_line
from overlaptop.text import with_unit
from overlaptop.tui.model.knob_values import ValueRefusedError, parsed, smallest, stepped

from .knobs import ACCUMULATION, BUCKET, with_value

DEPTH = replace(BUCKET, name="forward_prefetch", least=0, most=8)
ODD = replace(ACCUMULATION, choices=(8, 2, 4))


def values_from(knob, at, direction):
    values = []
    while (at := stepped(knob, at, direction)) is not None:
        values.append(at)
    return values


@pytest.mark.parametrize(
    ("knob", "at", "direction", "values"),
    [
        (BUCKET, 1, 1, [2, 5, 10, 25, 50, 100, 200, 400, 800, 1600, 3200, 6400]),
        (BUCKET, 30, -1, [25, 10, 5, 2, 1]),
        (replace(BUCKET, least=4, most=60), 2.5, 1, [5, 10, 25, 50]),
        (replace(BUCKET, least=-100, most=100), -10, 1, [-5, -2, -1, 0, 1, 2, 5, 10, 25, 50, 100]),
        (DEPTH, 5, 1, [6, 7, 8]),
        (ODD, 8, 1, [2, 4]),
        (ODD, 3, 1, [4]),
    ],
)
def test_values_double_except_in_small_ranges_and_choices(knob, at, direction, values):
    assert values_from(knob, at, direction) == values


@pytest.mark.parametrize(
    ("typed", "value"), [("50", 50), (" 50 MiB ", 50), ("50mib", 50), ("script", None), ("SCRIPT", None)]
)
def test_typed_value_may_have_a_unit_or_be_the_script_s(typed, value):
    assert parsed(BUCKET, typed) == value


@pytest.mark.parametrize(
    ("knob", "typed", "words"),
    [(BUCKET, "2.5", "type a whole number, 1 to 10000 MiB; or: script"),
     (BUCKET, "0", "from 1 to 10000, not 0"), (BUCKET, "9" * 400, "from 1 to 10000"),
     (ACCUMULATION, "3", "must be one of 1, 2, 4, 8, not 3")],
)  # fmt: skip
def test_refused_value_says_why(knob, typed, words):
    with pytest.raises(ValueRefusedError, match=words):
        parsed(knob, typed)


def test_line_of_code_has_the_value_and_is_empty_if_unknown():
    assert code_line(with_value(BUCKET, "100")) == "DistributedDataParallel(model, bucket_cap_mb=100)"
    assert code_line(BUCKET, 400) == "DistributedDataParallel(model, bucket_cap_mb=400)"
    assert code_line(ACCUMULATION) == code_line(replace(BUCKET, value=None, value_text="")) == ""


@pytest.mark.parametrize(
    ("text", "unit", "words"),
    [
        ("25", "MiB", "25 MiB"), ("1", "batches", "1 batch"), ("1", "blocks", "1 block"),
        ("2", "blocks", "2 blocks"), ("own lists", "blocks", "own lists"), ("", "MiB", "unknown"),
    ],
)  # fmt: skip
def test_value_with_its_unit(text, unit, words):
    assert with_unit(text, unit) == words


def test_values_that_are_no_numbers_step_to_the_smallest():
    assert smallest(BUCKET) == 1
    assert smallest(ODD) == 2
