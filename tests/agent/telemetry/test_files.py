"""Lists of CPUs as the kernel writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent.telemetry.files import UnavailableError, format_list, parse_list


@given(st.frozensets(st.integers(0, 200), max_size=60))
def test_lists_are_read_back_in_as_few_ranges_as_can_be(cpus: frozenset[int]) -> None:
    text = format_list(cpus)
    assert parse_list(text) == parse_list(f"{text}\n") == cpus
    ends = [int(number) for number in text.replace("-", ",").split(",") if number]
    assert ends == sorted(ends)
    assert text.count(",") == max(0, sum(cpu - 1 not in cpus for cpu in cpus) - 1)


@pytest.mark.parametrize(
    "text", ["x", "3-1", "-1", "1-", "0-99999999", "0-65536", "1 2", "0-3:2/4", "9" * 50, "²"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UnavailableError, match="is no range"):
        parse_list(text)
