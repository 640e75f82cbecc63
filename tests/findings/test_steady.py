"""What is shown of findings changes when the job does, or on evidence that lasts."""

from dataclasses import replace

import pytest
from msgspec import structs

from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.watch import SteadyFindings, SteadyLine
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
BY_COUNTERS = LATE._replace(words="1 loads", cause_rule="data_loading")


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
    ("line", "seconds"),
    [(LOADS, 1), (BY_COUNTERS, 1), (JITTER, 1), (LATE, 3), (HEALTHY, 4), (UNKNOWN, 5)],
)
def test_the_vaguer_the_first_answer_the_longer_it_has_to_hold(line, seconds):
    assert shown((1, line), (0.9 + seconds, line))[-1].startswith("measuring")
    assert shown((1, line), (1 + seconds, line))[-1] == line.words


def test_the_watch_begins_with_the_first_step():
    line, later = SteadyLine(), replace(SNAPSHOT, at_ns=SNAPSHOT.at_ns + 600 * S)
    empty = replace(SNAPSHOT, ranks=tuple(structs.replace(view, last=None) for view in SNAPSHOT.ranks))
    assert line.take(empty, None) is None
    assert line.take(later, None).words == "measuring, 0 s"


def test_a_rank_that_the_first_look_names_is_shown_at_once():
    assert SteadyLine().take(SNAPSHOT, LOADS) == LOADS
    assert SteadyLine().take(SNAPSHOT, HEALTHY).words == "measuring, 0 s"


def test_of_a_job_that_has_ended_the_last_answer_is_shown():
    assert SteadyLine().take(replace(SNAPSHOT, hub_state=HubState.ENDED), HEALTHY) == HEALTHY


SLACK = FirstLine("slack", "", rule="slack", kind=Kind.SLACK)
OF_JOB = FirstLine("bytes move", "", rule="communication_bound", kind=Kind.FINDING)
CPUS = FirstLine("no CPU", "", rule="short_cpus", kind=Kind.FINDING, warns=True)
LAUNCHES = LATE._replace(words="late: launches", cause="it is launch-bound", cause_rule="launch_bound")
ALL_LAUNCH = FirstLine("all launch", "", rule="launch_bound", kind=Kind.FINDING)
OTHER_LOADS = LOADS._replace(late_rank=0, words="0 loads")
EIGHTH = FirstLine("every 8th step", "", rule="long_steps", kind=Kind.FINDING)
RANKS_EIGHTH = LATE._replace(words="rank 1 in every 8th step", cause_rule="long_steps")
TURNS = {
    "newer figures of the same": (LOADS, (10, LOADS._replace(words="more"), "more")),
    "another answer after ten seconds": (
        LOADS, (10, HEALTHY, "late: loads"), (19.9, HEALTHY, "late: loads"), (20, HEALTHY, "healthy"),
    ),
    **{
        f"none with another between: {between and between.words}": (
            LOADS, (10, HEALTHY, "late: loads"), (16, between, "late: loads"), (21, HEALTHY, "late: loads"),
        )
        for between in (LOADS, NOT_YET, None, JITTER)
    },
    "any answer after one that knows nothing": (
        UNKNOWN, (10, LOADS, overlap_line(SNAPSHOT).words), (11, LOADS, "late: loads"),
    ),
    "slack of the late rank once it has held": (
        LOADS, (10, SLACK, "late: loads"), (10.9, SLACK, "late: loads"), (11, SLACK, "slack"),
        (12, LATE, "slack"),
    ),
    "the late rank's cause once it has held": (
        LATE, (10, LOADS, "late"), (11, LOADS, "late: loads"), (12, LATE, "late: loads"),
    ),
    "a problem after three seconds where nothing was wrong": (
        HEALTHY, (10, CPUS, "healthy"), (12.9, CPUS, "healthy"), (13, CPUS, "no CPU"),
        (16, HEALTHY, "no CPU"), (24, HEALTHY, "no CPU"),
    ),
    "a late rank with a cause after three seconds of the job's finding": (
        OF_JOB, (10, LOADS, "bytes move"), (12.9, LOADS, "bytes move"), (13, LOADS, "late: loads"),
        (14, OF_JOB, "late: loads"), (23, OF_JOB, "late: loads"),
    ),
    "no late rank without a cause as soon": (OF_JOB, (10, LATE, "bytes move"), (19, LATE, "bytes move")),
    "a better cause of the rank with a slow CPU": (
        LAUNCHES, (10, LOADS, "late: launches"), (11, LOADS, "late: loads"),
    ),
    "no cause of another rank as soon": (
        LAUNCHES, (10, OTHER_LOADS, "late: launches"), (11, OTHER_LOADS, "late: launches"),
    ),
    "a rank with a cause where all CPUs are slow": (
        ALL_LAUNCH, (10, LOADS, "all launch"), (11, LOADS, "late: loads"),
    ),
    "the same finding with a rank": (
        EIGHTH, (10, RANKS_EIGHTH, "every 8th step"), (13, RANKS_EIGHTH, "rank 1 in every 8th step"),
    ),
}  # fmt: skip
"""The line shown for seconds, then what comes up at which second, and what is shown."""


@pytest.mark.parametrize("which", TURNS)
def test_a_settled_line_gives_way_to(which):
    first, *then = TURNS[which]
    told = [(second, said) for second, said, _ in then]
    assert shown((1, first), (9, first), *told)[1:] == [first.words, *(words for _, _, words in then)]


def test_figures_are_shown_while_a_late_answer_has_not_held_yet():
    figures = overlap_line(SNAPSHOT).words
    assert shown((9, HEALTHY), (20, NOT_YET), (40, HEALTHY), (43, HEALTHY), (44, HEALTHY)) == [
        "measuring, 9 s", "too few", figures, figures, "healthy",
    ]  # fmt: skip


def test_after_a_change_the_earlier_answer_is_kept_at_first():
    settled = [(1, HEALTHY), (5, HEALTHY)]
    assert shown(*settled, (20, None, 90), (22, LOADS, 90), (23, LOADS, 90))[2:] == [
        "healthy", "healthy", "late: loads",
    ]  # fmt: skip
    missing = (20, None, 90), (34, None, 90), (35, None, 90), (36, HEALTHY, 90)
    assert shown(*settled, *missing)[2:] == [
        "healthy", "healthy", "measuring, 15 s", overlap_line(SNAPSHOT).words,
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


def test_a_job_that_changes_again_and_again_blames_nobody_for_longer():
    changes = [(6 + 8 * at, NOT_YET, 100 + at) for at in range(4)]
    assert shown((1, LOADS), (5, LOADS), *changes)[1:] == ["late: loads"] * 3 + ["measuring, 0 s"] * 2


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
    steady.take(SNAPSHOT, [])
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
    assert listed(*settled, (35, [], 90), (40, [], 90))[2:] == ["data_loading", ""]


def test_findings_change_their_order_only_for_a_clear_difference():
    told = [(1, [LOADING, GARBAGE]), (2, [LOADING, GARBAGE])]
    assert listed(*told, (3, [found("garbage_collection", 9.5), found("data_loading", 9)]))[1:] == [
        "data_loading garbage_collection", "data_loading garbage_collection",
    ]  # fmt: skip
    assert listed(*told, (3, [found("garbage_collection", 20), LOADING]))[-1] == (
        "garbage_collection data_loading"
    )


def test_a_gain_that_comes_and_goes_is_not_known():
    steady, unknown = SteadyFindings(), replace(LOADING, gain_ns=None)
    looks = [
        (0, unknown),
        (1, LOADING),
        (5, LOADING),
        (6, unknown),
        (7, LOADING),
        (9, unknown),
        (18.9, LOADING),
    ]
    looks += [(19, LOADING), (20, unknown), (21, LOADING, 9)]
    gains = []
    for second, told, *first_step in looks:
        at_ns = SNAPSHOT.at_ns + round(second * S)
        (each,) = steady.take(replace(SNAPSHOT, at_ns=at_ns, first_step=sum(first_step)), [told])
        gains.append((second, each.gain_ns))
    known = {second for second, gain_ns in gains if gain_ns is not None}
    assert known == {1, 5, 19, 21}  # at once for the first time and after a change, after 10 s otherwise
