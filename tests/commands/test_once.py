"""``--once``: the table."""

from dataclasses import replace

import pytest

from overlaptop.console import CommandError
from overlaptop.console.once import render, settle
from overlaptop.console.table import Table
from overlaptop.fleet.snapshot import LinkState
from overlaptop.wire.messages import HubStatus, RankEnd
from overlaptop.wire.schema import Message

from .fakes import (
    WELCOME,
    PlayedSession,
    arrival,
    device,
    numa,
    rank_info,
    sample,
    status,
    totals,
    unmeasured,
)


def cells(page: str, rank: int) -> list[str]:
    row = next(line for line in page.splitlines() if line.lstrip().startswith(f"{rank} "))
    return [cell.strip() for cell in row.split("  ") if cell.strip()]


def test_a_row_for_each_rank_has_its_figures_with_units() -> None:
    page = render(settle(PlayedSession(arrival(), [totals(0, 1284), totals(1, 1284)])))
    title = page.splitlines()[0]
    assert "train.py · 2 ranks · gpu-a · NVIDIA H200 · nccl 2.28.9 · job abc · live" in title
    assert cells(page, 1) == [
        "1", "1,284", "50.0 ms", "≤75.0 %", "≥5.00 ms", "5.00 ms", "–", "45.0 ms", "20.0 ms", "4", "0",
        "events", "running",
    ]  # fmt: skip


def test_what_is_not_known_is_a_dash_never_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlaptop.console.following.LIMIT_S", 0.0)
    page = render(settle(PlayedSession([WELCOME, rank_info(0), status(), unmeasured(0, 3)])))
    assert cells(page, 0)[3:10] == ["–"] * 7
    assert cells(page, 1)[1:4] == ["–"] * 3
    assert cells(page, 1)[-1] == "not seen here"


def test_a_row_is_of_the_newest_step_whose_lanes_are_known() -> None:
    page = render(settle(PlayedSession(arrival(), [totals(1, 0), totals(0, 0), unmeasured(0, 7)])))
    assert cells(page, 0)[1] == "0"
    assert cells(page, 0)[3] == "≤75.0 %"


def played_in_parts(*batches: list[Message]) -> str:
    return render(settle(PlayedSession([WELCOME, rank_info(0), rank_info(1)], *batches)))


def test_steps_of_the_hubs_history_are_not_the_present_state() -> None:
    old, newer = ([totals(0, number), totals(1, number)] for number in (760, 1_134))
    page = played_in_parts(old, newer, [totals(0, 2_000), totals(1, 2_000), status()])
    assert [cells(page, rank)[1] for rank in (0, 1)] == ["2,000", "2,000"]


@pytest.mark.parametrize("link", [LinkState.LIVE, LinkState.STALE, LinkState.ENDED])
def test_a_present_state_that_does_not_come_is_a_failure(
    link: LinkState, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("LIMIT_S", "HISTORY_LIMIT_S"):
        monkeypatch.setattr(f"overlaptop.console.following.{limit}", 0.0)
    session = PlayedSession([WELCOME, rank_info(0), rank_info(1), totals(0, 7), totals(1, 7)], link=link)
    with pytest.raises(CommandError, match="sent its history only, not its present state"):
        settle(session)


def test_a_figure_that_is_a_bound_has_its_sign_as_on_the_screen() -> None:
    snapshot = settle(PlayedSession([*arrival(), totals(0, 0), totals(1, 0)]))
    wanted = {"overlap": "≤75.0 %", "exposed": "≥5.00 ms", "speed-up": "≤1.30×", "attainable": "≈1.44×"}
    said = dict(each.split(" ", 1) for each in render(snapshot).splitlines()[1].split("   "))
    assert {name: said[name] for name in wanted} == wanted
    assert "overlap <=75.0 %   exposed >=5.00 ms" in render(snapshot, ascii_only=True)


def test_the_table_has_how_each_rank_ended_and_which_failed_first() -> None:
    ends = [RankEnd(1, 5, clean=True, failure="ValueError: boom"), RankEnd(0, 9_000_000_000, clean=False)]
    over = HubStatus(at_ns=0, ranks_connected=0, dropped=0, job_ended=True)
    page = render(settle(PlayedSession(arrival(), [totals(0, 0), totals(1, 0), *ends, over])))
    assert page.splitlines()[1].startswith("rank 1 failed: ValueError: boom; 1 other rank ended badly")
    assert cells(page, 1)[-1] == "failed: ValueError: boom"
    assert cells(page, 0)[-1] == "died after rank 1"


def test_an_upper_bound_is_marked() -> None:
    page = render(settle(PlayedSession(arrival(), [totals(0, 0), totals(1, 0)])))
    assert page.splitlines()[-1].startswith("compute is an upper bound")


def test_ascii_means_ascii() -> None:
    page = render(settle(PlayedSession(arrival(), [totals(0, 0), unmeasured(1, 0)])), ascii_only=True)
    assert page.isascii()


@pytest.mark.parametrize("ascii_only", [False, True])
def test_words_from_a_machine_cannot_steer_the_terminal(ascii_only: bool) -> None:
    hostile = "\x1b]0;pwned\x07\x9b2J\r\n\u202e"
    job = replace(WELCOME, script=hostile, host=hostile)
    infos = [replace(rank_info(rank), device=hostile, backend=hostile, source=hostile) for rank in (0, 1)]
    session = PlayedSession([job, *infos, status()], [totals(0, 0), totals(1, 0)])
    page = render(settle(session), ascii_only=ascii_only)
    assert all(line.isprintable() for line in page.split("\n"))
    assert len(page.split("\n")) == 6
    assert "]0;pwned" in page


def machine_cells(page: str, rank: int) -> list[str]:
    """Of the second table."""
    return cells(page[page.index("NVLink") :], rank)


def test_rates_of_the_links_and_the_numa_node_stand_below_where_they_are_known() -> None:
    known = [device(0, "GPU-0"), numa(0), sample(0, 1), numa(1, gpu_node=None, cpu_set="", state="unknown")]
    page = render(settle(PlayedSession(arrival(), [*known, totals(0, 0), totals(1, 0)])))
    assert machine_cells(page, 0) == [
        "0", "281 GB/s", "140 GB/s", "62 %", "1.20 GB/s", "0.60 GB/s", "2 %", "0", "CPUs 0-31", "bound",
    ]  # fmt: skip
    assert machine_cells(page, 1) == ["1", *["–"] * 8, "unknown"]
    assert "To mend it" not in page


def test_of_a_machine_of_which_nothing_is_known_there_is_no_table() -> None:
    page = render(settle(PlayedSession(arrival(), [totals(0, 0), totals(1, 0), device(0, "")])))
    assert "NVLink" not in page


def test_the_remedy_is_printed_once_for_all_ranks_that_are_bound_alike() -> None:
    wrong = {
        "state": "wrong node",
        "reason": "runs on node 0, its GPU is on node 1",
        "advice": "torchrun --numa-binding=node\x1b[2J",
    }
    facts = [numa(0, **wrong), numa(1, **wrong)]
    page = render(settle(PlayedSession(arrival(), [*facts, totals(0, 0), totals(1, 0)])), ascii_only=True)
    said = [line for line in page.splitlines() if "To mend it" in line]
    assert said == [
        "rank 0, 1: runs on node 0, its GPU is on node 1. To mend it: torchrun --numa-binding=node?[2J"
    ]
    assert page.isascii()


def test_a_job_that_does_not_answer_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlaptop.console.following.LIMIT_S", 0.0)
    with pytest.raises(CommandError, match="does not answer"):
        settle(PlayedSession())


def test_columns_are_as_wide_as_their_widest_cell_with_numbers_to_the_right() -> None:
    table = Table(["rank", "who"], left={"who"})
    table.add(["7", "a"])
    table.add(["12345", "bcde"])
    assert table.render() == " rank  who\n    7  a\n12345  bcde"
