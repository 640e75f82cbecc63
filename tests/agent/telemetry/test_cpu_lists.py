"""Lists of CPUs as the kernel writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent.telemetry.cpus import format_list, parse_list


@given(st.frozensets(st.integers(0, 8191), max_size=300))
def test_what_is_written_is_read_back(cpus: frozenset[int]) -> None:
    assert parse_list(format_list(cpus)) == cpus


@given(st.frozensets(st.integers(0, 200), max_size=60))
def test_ranges_are_as_few_as_can_be_and_ascend(cpus: frozenset[int]) -> None:
    ends = [int(number) for number in format_list(cpus).replace("-", ",").split(",") if number]
    assert ends == sorted(ends)
    assert format_list(cpus).count(",") == max(0, sum(cpu - 1 not in cpus for cpu in cpus) - 1)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", set()),
        ("\n", set()),
        ("0", {0}),
        ("0-3,8-9\n", {0, 1, 2, 3, 8, 9}),
        ("0,4,8", {0, 4, 8}),
    ],
)
def test_the_kernels_lists_are_read(text: str, cpus: set[int]) -> None:
    assert parse_list(text) == cpus


@pytest.mark.parametrize(
    "text", ["x", "3-1", "-1", "1-", "0-99999999", "0-65536", "1 2", "0-3:2/4", "9" * 50, "²"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no range"):
        parse_list(text)
