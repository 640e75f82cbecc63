"""How a knob's values are stepped through, typed and told."""

import pytest
from msgspec.structs import replace

from overlaptop.report.knobs import code_line
from overlaptop.text import with_unit
from overlaptop.tui.model.knob_values import ValueRefusedError, parsed, smallest, stepped

from .knobs import ACCUMULATION, BUCKET, with_value


def values_from(knob, at, direction):
    values = []
    while (at := stepped(knob, at, direction)) is not None:
        values.append(at)
    return values


DEPTH = replace(BUCKET, name="forward_prefetch", least=0, most=8)


@pytest.mark.parametrize(
    ("knob", "at", "direction", "values"),
    [
        (BUCKET, 1, 1, [2, 5, 10, 25, 50, 100, 200, 400, 800, 1600, 3200, 6400]),
        (BUCKET, 400, -1, [200, 100, 50, 25, 10, 5, 2, 1]),
        (replace(BUCKET, least=4, most=60), 5, 1, [10, 25, 50]),
        (replace(BUCKET, least=-100, most=100), -10, 1, [-5, -2, -1, 0, 1, 2, 5, 10, 25, 50, 100]),
        (DEPTH, 5, 1, [6, 7, 8]),
        (DEPTH, 2, -1, [1, 0]),
    ],
)
def test_large_values_are_further_apart_and_a_small_range_goes_one_by_one(knob, at, direction, values):
    assert values_from(knob, at, direction) == values


@pytest.mark.parametrize(
    ("at", "up", "down"), [(2.5, 5, 2), (30, 50, 25), (0.5, 1, None), (7000, None, 6400)]
)
def test_from_between_two_steps_it_goes_to_either_of_them(at, up, down):
    assert stepped(BUCKET, at, 1) == up
    assert stepped(BUCKET, at, -1) == down


def test_choices_go_in_their_own_order():
    odd = replace(ACCUMULATION, choices=(8, 2, 4))
    assert stepped(odd, 8, 1) == 2
    assert stepped(odd, 2, -1) == 8
    assert stepped(odd, 4, 1) is None
    assert stepped(odd, 3, 1) == 4  # not one of them: the next larger one


@pytest.mark.parametrize(
    ("typed", "value"), [("50", 50), (" 50 MiB ", 50), ("50mib", 50), ("script", None), ("SCRIPT", None)]
)
def test_what_is_typed_is_a_value_or_the_scripts_own(typed, value):
    assert parsed(BUCKET, typed) == value


@pytest.mark.parametrize(
    ("knob", "typed", "words"),
    [(BUCKET, "2.5", "type a whole number, 1 to 10000 MiB; or: script"),
     (BUCKET, "0", "from 1 to 10000, not 0"), (BUCKET, "9" * 400, "from 1 to 10000"),
     (ACCUMULATION, "3", "must be one of 1, 2, 4, 8, not 3")],
)  # fmt: skip
def test_what_is_no_value_is_said_text(knob, typed, words):
    with pytest.raises(ValueRefusedError, match=words):
        parsed(knob, typed)


def test_the_line_of_code_has_the_present_value_and_is_empty_where_either_is_unknown():
    assert code_line(with_value(BUCKET, "100")) == "DistributedDataParallel(model, bucket_cap_mb=100)"
    assert code_line(BUCKET, 400) == "DistributedDataParallel(model, bucket_cap_mb=400)"
    assert code_line(ACCUMULATION) == ""
    assert code_line(replace(BUCKET, value=None, value_text="")) == ""


@pytest.mark.parametrize(
    ("text", "unit", "words"),
    [
        ("25", "MiB", "25 MiB"), ("1", "MiB", "1 MiB"), ("1", "batches", "1 batch"),
        ("1", "blocks", "1 block"), ("2", "blocks", "2 blocks"), ("4", "", "4"),
        ("own lists", "blocks", "own lists"), ("", "MiB", "unknown"),
    ],
)  # fmt: skip
def test_a_value_is_told_with_its_unit(text, unit, words):
    assert with_unit(text, unit) == words


def test_from_words_one_steps_to_the_smallest_value():
    assert smallest(BUCKET) == 1
    assert smallest(replace(ACCUMULATION, choices=(4, 2, 8))) == 2
