"""What is shown of findings changes when the job does, or on evidence that lasts."""

from dataclasses import replace

import pytest
from msgspec import structs

from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.steady import SteadyFindings, SteadyLine
from overlaptop.fleet.snapshot import HubState
from overlaptop.report.who_is_late import FirstLine, Kind, overlap_line
from tests.fleet.builders import S
from tests.tui.waits import waiting_job

SNAPSHOT = replace(waiting_job().tick(), hub_state=HubState.LIVE)
HEALTHY = FirstLine("healthy", "", kind=Kind.HEALTHY)
UNKNOWN = FirstLine("unknown", "", kind=Kind.UNKNOWN)
JITTER = FirstLine("jitter", "", rule="jitter", kind=Kind.FINDING)
LATE = FirstLine("late", "", late_rank=1, kind=Kind.LATE)
LOADS = LATE._replace(words="late: loads", cause="it loads", cause_rule="data_loading")
NOT_YET = FirstLine("too few", "", kind=Kind.MEASURING)


def shown(*told, line=None):
    """What is shown of lines: each so many seconds after the first look, and since which step the job goes
    on as it does, if not since its first.
    """
    line = line or SteadyLine()
    line.take(SNAPSHOT, None)
    words = []
    for second, said, *first_step in told:
        at_ns = SNAPSHOT.at_ns + round(second * S)
        snapshot = replace(SNAPSHOT, at_ns=at_ns, first_step=first_step[0] if first_step else 0)
        words.append(line.take(snapshot, said).words)
    return words


def test_seconds_are_counted_until_the_first_answer_has_held():
    assert shown((1, None), (3, NOT_YET), (4, LOADS), (4.5, LOADS), (5, LOADS)) == [
        "measuring, 1 s", "measuring, 3 s", "measuring, 4 s", "measuring, 4 s", "late: loads",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "seconds"), [(LOADS, 1), (JITTER, 1), (LATE, 3), (HEALTHY, 4), (UNKNOWN, 5)]
)
def test_the_vaguer_the_first_answer_the_longer_it_has_to_hold(line, seconds):
    assert shown((1, line), (0.9 + seconds, line))[-1].startswith("measuring")
    assert shown((1, line), (1 + seconds, line))[-1] == line.words


def test_the_watch_begins_with_the_first_step():
    line, later = SteadyLine(), replace(SNAPSHOT, at_ns=SNAPSHOT.at_ns + 600 * S)
    empty = replace(SNAPSHOT, ranks=tuple(structs.replace(view, last=None) for view in SNAPSHOT.ranks))
    assert line.take(empty, None) is None
    assert line.take(later, None).words == "measuring, 0 s"


def test_slack_replaces_the_late_rank_once_it_has_held():
    slack = FirstLine("slack", "", rule="slack", kind=Kind.SLACK)
    assert shown((1, LOADS), (2, LOADS), (3, slack), (3.9, slack), (4, slack), (5, LATE))[2:] == [
        "late: loads", "late: loads", "slack", "slack",
    ]  # fmt: skip


def test_a_rank_that_the_first_look_names_is_shown_at_once():
    assert SteadyLine().take(SNAPSHOT, LOADS) == LOADS
    assert SteadyLine().take(SNAPSHOT, HEALTHY).words == "measuring, 0 s"


def test_of_a_job_that_has_ended_the_last_answer_is_shown():
    assert SteadyLine().take(replace(SNAPSHOT, hub_state=HubState.ENDED), HEALTHY) == HEALTHY


def test_any_answer_takes_the_place_of_one_that_knows_nothing():
    assert shown((1, UNKNOWN), (6, UNKNOWN), (7, LOADS), (8, LOADS))[1:] == [
        "unknown", "measuring, 7 s", "late: loads",
    ]  # fmt: skip


def test_figures_follow_while_the_sentence_stays():
    assert shown((1, LOADS), (2, LOADS), (2.5, LOADS._replace(words="more")))[-1] == "more"


def test_another_answer_takes_its_place_after_ten_seconds():
    settled = [(1, LOADS), (2, LOADS)]
    assert shown(*settled, (3, HEALTHY), (12.9, HEALTHY), (13, HEALTHY))[2:] == [
        "late: loads", "late: loads", "healthy",
    ]  # fmt: skip
    for between in (LOADS, NOT_YET, None, JITTER):
        assert shown(*settled, (3, HEALTHY), (9, between), (14, HEALTHY))[-1] == "late: loads"


def test_cause_that_goes_within_ten_seconds_is_never_shown():
    assert set(shown((1, LOADS), (2, LOADS), (3, JITTER), (8, JITTER), (8.5, LOADS))[1:]) == {"late: loads"}


def test_late_ranks_cause_is_added_once_it_has_held():
    settled = [(1, LATE), (4, LATE)]
    assert shown(*settled, (5, LOADS), (6, LOADS), (7, LATE))[1:] == [
        "late", "late", "late: loads", "late: loads",
    ]  # fmt: skip


def test_a_problem_takes_the_place_of_nothing_is_wrong_after_three_seconds():
    cpus = JITTER._replace(words="no CPU", rule="short_cpus", warns=True)
    settled = [(1, HEALTHY), (5, HEALTHY)]
    assert shown(*settled, (10, cpus), (12.9, cpus), (13, cpus), (16, HEALTHY), (24, HEALTHY))[2:] == [
        "healthy", "healthy", "no CPU", "no CPU", "no CPU",
    ]  # fmt: skip


def test_a_late_rank_with_a_cause_takes_the_place_of_a_finding_about_the_job_after_three_seconds():
    job = FirstLine("bytes move", "", rule="communication_bound", kind=Kind.FINDING)
    settled = [(1, job), (2, job)]
    assert shown(*settled, (3, LOADS), (5.9, LOADS), (6, LOADS), (7, job), (16, job))[1:] == [
        job.words, job.words, job.words, LOADS.words, LOADS.words, LOADS.words,
    ]  # fmt: skip
    assert shown(*settled, (3, LATE), (12, LATE))[-1] == job.words


def test_rank_named_by_its_counters_alone_holds_no_longer_than_others():
    counted = LATE._replace(words="1 loads", cause_rule="data_loading")
    assert shown((1, counted), (2, counted))[-1] == counted.words


def test_a_slow_cpu_gives_way_to_a_better_cause_of_the_same_rank():
    slow = LATE._replace(words="late: launches", cause="it is launch-bound", cause_rule="launch_bound")
    other = LOADS._replace(late_rank=0, words="0: loads")
    settled = [(1, slow), (2, slow)]
    assert shown(*settled, (3, LOADS), (4, LOADS))[2:] == ["late: launches", "late: loads"]
    assert shown(*settled, (3, other), (4, other))[2:] == ["late: launches", "late: launches"]


def test_finding_gives_way_to_the_same_one_that_names_a_rank():
    job = FirstLine("every 8th step", "", rule="long_steps", kind=Kind.FINDING)
    rank = LATE._replace(words="rank 1 in every 8th step", cause_rule="long_steps")
    settled = [(1, job), (2, job)]
    assert shown(*settled, (3, rank), (6, rank))[1:] == [job.words, job.words, rank.words]


def test_a_slow_cpu_of_all_ranks_gives_way_to_a_rank_with_a_cause():
    slow = FirstLine("the CPU launches too slowly", "", rule="launch_bound", kind=Kind.FINDING)
    settled = [(1, slow), (2, slow)]
    assert shown(*settled, (3, LOADS), (4, LOADS))[1:] == [slow.words, slow.words, LOADS.words]


def test_after_a_change_the_earlier_answer_is_kept_at_first():
    settled = [(1, HEALTHY), (5, HEALTHY)]
    assert shown(*settled, (20, None, 90), (22, LOADS, 90), (23, LOADS, 90))[2:] == [
        "healthy", "healthy", "late: loads",
    ]  # fmt: skip
    missing = (20, None, 90), (34, None, 90), (35, None, 90), (36, HEALTHY, 90)
    assert shown(*settled, *missing)[2:] == [
        "healthy", "healthy", "measuring, 15 s", overlap_line(SNAPSHOT).words,
    ]  # fmt: skip


def test_figures_are_shown_while_a_late_answer_has_not_held_yet():
    figures = overlap_line(SNAPSHOT).words
    assert shown((9, HEALTHY), (20, NOT_YET), (40, HEALTHY), (43, HEALTHY), (44, HEALTHY)) == [
        "measuring, 9 s", "too few", figures, figures, "healthy",
    ]  # fmt: skip


def test_after_a_change_few_steps_do_not_end_a_problem():
    line, window = SteadyLine(), SNAPSHOT.wait_window
    settled = shown((1, JITTER), (2, JITTER), line=line)
    assert settled[-1] == "jitter"
    words = []
    for second, steps in ((20, 1), (25, 3), (29, 5), (29.9, 6)):
        few = replace(window, steps=steps)
        at_ns = SNAPSHOT.at_ns + round(second * S)
        words.append(
            line.take(replace(SNAPSHOT, at_ns=at_ns, first_step=90, wait_window=few), HEALTHY).words
        )
    assert words == ["jitter", "jitter", "jitter", "jitter"]


def test_answer_not_come_up_for_half_a_minute_gives_way_sooner():
    told = [(2 + second, (JITTER, LATE)[second // 4 % 2]) for second in range(40)]
    assert set(shown((1, HEALTHY), (5, HEALTHY), *told)[2:30]) == {"healthy"}
    assert shown((1, HEALTHY), (5, HEALTHY), *told)[-1] != "healthy"


EXPOSED = FirstLine("exposed", "", kind=Kind.EXPOSED)


def test_figures_of_the_line_follow_while_another_waits():
    line, fresh = SteadyLine(), HEALTHY._replace(words="healthy, newer figures")
    assert shown((1, HEALTHY), (5, HEALTHY), line=line)[-1] == "healthy"
    at = replace(SNAPSHOT, at_ns=SNAPSHOT.at_ns + 7 * S)
    assert line.take(at, JITTER, fresh).words == fresh.words
    said = line.take(at, JITTER, LATE)
    assert (said, said.key) == (overlap_line(at)._replace(kind=HEALTHY.kind), HEALTHY.key)
    after = replace(at, first_step=90)
    assert line.take(after, LOADS, LATE) == said  # "no rank is late" no longer holds
    assert line.take(after, None, fresh).words == fresh.words
    line, fresh = SteadyLine(), LATE._replace(words="late, newer figures")
    assert shown((1, LATE), (5, LATE), line=line)[-1] == "late"
    assert line.take(at, LOADS, fresh).words == fresh.words


def test_what_is_exposed_around_the_limit_is_told_in_one_sentence():
    line, nothing = SteadyLine(), HEALTHY._replace(words="Nothing to fix")
    shown((1, nothing), (5, nothing), line=line)

    def words(second, plain, first_step=0):
        at = replace(SNAPSHOT, at_ns=SNAPSHOT.at_ns + second * S, first_step=first_step)
        return line.take(at, plain, plain).words

    assert words(6, nothing) == "Nothing to fix"
    assert [words(10 + second, (EXPOSED, nothing)[second % 2]) for second in range(4)] == [
        "exposed", "No rank is clearly late"
    ] * 2  # fmt: skip
    assert words(41, nothing) == "No rank is clearly late"
    assert words(42, nothing) == "Nothing to fix"
    assert words(43, EXPOSED) == "exposed"
    assert words(44, nothing, first_step=900) == "Nothing to fix"


def test_nobody_is_blamed_for_ever_where_answers_alternate():
    told = [(3 + second, (HEALTHY, EXPOSED)[second // 3 % 2]) for second in range(40)]
    assert set(shown((1, LATE), (4, LATE), *told)[-20:]) <= {"healthy", "exposed"}


@pytest.mark.parametrize(("said", "then"), [(None, "measuring, 65 s"), (NOT_YET, "too few")])
def test_an_answer_that_never_comes_up_again_is_forgotten(said, then):
    assert shown((1, LATE), (4, LATE), (60, said), (65, said))[-2:] == ["late", then]


def found(rule, gain_ms=10, ranks=(1,)):
    return Finding(rule, "", "", Certainty.LIKELY, gain_ms * 1_000_000, ranks, rule)


def listed(*told):
    """The rules that are shown after each look, as with `shown`."""
    steady = SteadyFindings()
    steady.take(SNAPSHOT, None)
    return [
        " ".join(
            each.rule
            for each in steady.take(
                replace(SNAPSHOT, at_ns=SNAPSHOT.at_ns + round(second * S), first_step=sum(first_step)), now
            )
        )
        for second, now, *first_step in told
    ]


LOADING, GARBAGE, UNCLEAR = found("data_loading"), found("garbage_collection", 8), found("jitter")


def test_finding_is_shown_once_it_has_held_until_gone_for_10_s():
    assert listed((1, [LOADING]), (1.5, []), (2, [LOADING]), (2.9, [LOADING]), (3, [LOADING])) == [
        "", "", "", "", "data_loading",
    ]  # fmt: skip
    assert listed((1, [LOADING]), (2, [LOADING]), (3, []), (12, []), (13, []))[1:] == [
        "data_loading", "data_loading", "data_loading", "",
    ]  # fmt: skip


def test_a_job_is_never_told_a_rule_and_its_opposite():
    large, small = found("bucket_too_large"), found("bucket_too_small", 20)
    later = [(second, [small]) for second in (3, 12, 13, 14, 15)]
    assert listed((1, [large]), (2, [large]), *later)[1:] == [
        "bucket_too_large", "bucket_too_large", "bucket_too_large", "", "", "bucket_too_small",
    ]  # fmt: skip


def test_finding_without_a_cause_holds_longer_and_goes_sooner():
    assert listed((1, [UNCLEAR]), (5.9, [UNCLEAR]), (6, [UNCLEAR]), (7, []), (8, [])) == [
        "", "", "jitter", "jitter", "",
    ]  # fmt: skip


def test_slow_cpu_holds_for_longer_where_a_rank_is_late():
    late, job = replace(found("launch_bound"), why_late=True), found("launch_bound")
    for each, words in ((late, ["", "", "launch_bound"]), (job, ["", "launch_bound", "launch_bound"])):
        assert listed((1, [each]), (2, [each]), (6, [each])) == words


def test_after_a_change_findings_stay_until_rules_differ():
    settled = [(1, [LOADING]), (2, [LOADING])]
    assert listed(*settled, (3, None, 90), (30, None, 90), (35, [], 90), (40, [], 90))[2:] == [
        "data_loading", "data_loading", "data_loading", "",
    ]  # fmt: skip


def test_findings_change_their_order_only_for_a_clear_difference():
    told = [(1, [LOADING, GARBAGE]), (2, [LOADING, GARBAGE])]
    assert listed(*told, (3, [found("garbage_collection", 9.5), found("data_loading", 9)]))[1:] == [
        "data_loading garbage_collection", "data_loading garbage_collection",
    ]  # fmt: skip
    assert listed(*told, (3, [found("garbage_collection", 20), LOADING]))[-1] == (
        "garbage_collection data_loading"
    )
