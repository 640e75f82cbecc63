"""``overlaptop set``, ``capture`` and ``changes``: what they print, and their exit status."""

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
from msgspec.structs import asdict, replace

from overlaptop.commands import capture, changes, following
from overlaptop.commands import set as setting
from overlaptop.commands.output import CommandError
from overlaptop.jobs import change_log
from overlaptop.records import ChangeRecord
from overlaptop.wire import commands
from overlaptop.wire.commands import Command
from overlaptop.wire.knobs import Knob, KnobFacts
from tests.fleet.builders import BUCKET_CAP_MB, status, welcome

from .fakes import PlayedSession, arrival, end, rank_info, reported
from .running import check_page, records, run_here

COMMAND = commands.make_setting(BUCKET_CAP_MB, 50)
CHANGE_LINE = "bucket_cap_mb 25 → 50 at step 7"
reply = partial(reported, COMMAND)


@pytest.fixture(autouse=True)
def patience(quickly, monkeypatch):
    """None: what has not come at once does not come."""
    monkeypatch.setattr(setting, "KNOBS_S", 0.0)
    monkeypatch.setattr(following, "LIMIT_S", 0.0)


def test_change_is_one_line_and_progress_goes_to_stderr(capsys):
    states = ("accepted", "agreed", "changing")
    session = PlayedSession(
        [*arrival(), COMMAND],
        *([reply(rank, state, 7) for rank in (0, 1)] for state in states),
        [reply(rank, "changed", 7, f"{CHANGE_LINE}\x1b[2J") for rank in (0, 1)],
    )
    setting.print_change(session, COMMAND)
    out, err = capsys.readouterr()
    assert out == f"{CHANGE_LINE}?[2J\n"  # it moves no cursor
    words = [line.partition("overlaptop: set bucket_cap_mb 50: ")[2] for line in err.splitlines()]
    assert words == ["accepted", "agreed on step 7", "changing"]


@pytest.mark.parametrize(
    ("batches", "why"),
    [
        (
            [[reply(0, "failed", None, "rank 1 refuses: no"), reply(1, "refused")]],
            "not changed: rank 1 ref",
        ),
        ([[reply(0, "changing", 7)], end()], "not known whether it was changed: rank 0 ended"),
    ],
)
def test_refusal_and_a_job_that_ends_are_no_endless_wait(capsys, batches, why):
    with pytest.raises(CommandError, match=why) as failure:
        setting.print_change(PlayedSession([*arrival(), COMMAND], *batches), COMMAND)
    assert (failure.value.status, capsys.readouterr().out) == (1, "")


# A job with knobs

ACCUMULATION = Knob(
    "accumulation", 4, "4", "2", 1, 8, choices=(1, 2, 4, 8), owner="the script",
    about="micro-batches a step", refusal="only between epochs",
)  # fmt: skip


class ObedientJob(PlayedSession):
    """Two ranks that list their knobs and carry out each command."""

    def __init__(self, *knobs, allowed=True, then=()):
        infos = [rank_info(rank, control_allowed=allowed) for rank in (0, 1)]
        facts = [KnobFacts(rank, knobs) for rank in (0, 1)]
        super().__init__([arrival()[0], *infos, *facts, *then, status()])
        self.sent = []

    def send(self, command):
        self.sent.append(commands.describe(command))
        reports = [replace(reply(rank, "changed", 7, CHANGE_LINE), command=command.id) for rank in (0, 1)]
        self._batches = [[command], reports]
        return ""


@pytest.fixture
def run_set(monkeypatch):
    """``overlaptop set`` on a job of the test's own."""

    def run_set(job, *words):
        monkeypatch.setattr(setting, "join", lambda *_: nullcontext(job))
        return run_here("set", *words)

    return run_set


DIFFERING = [KnobFacts(1, (replace(BUCKET_CAP_MB, value=50, value_text="50"), ACCUMULATION))]
CHANGED = [replace(reply(rank, "changed", 7, CHANGE_LINE), old="25", new="50") for rank in (0, 1)]


@pytest.mark.parametrize(
    ("words", "sent", "then"),
    [
        ("bucket_cap_mb=50", "set bucket_cap_mb 50", []),
        ("accumulation=-3", "set accumulation -3", []),
        ("bucket_cap_mb=script", "restore bucket_cap_mb", []),
        # The present value is sent where ranks may differ: they do, one is not seen, a change goes on.
        ("bucket_cap_mb=25", "set bucket_cap_mb 25", DIFFERING),
        ("bucket_cap_mb=25", "set bucket_cap_mb 25", [welcome(world_size=3)]),
        ("bucket_cap_mb=25", "set bucket_cap_mb 25", [COMMAND, reply(0, "accepted")]),
        ("bucket_cap_mb=25", "set bucket_cap_mb 25", [COMMAND, *CHANGED]),
    ],
)
def test_a_knob_is_set_by_its_name_or_given_back_to_the_script(run_set, words, sent, then):
    job = ObedientJob(BUCKET_CAP_MB, replace(ACCUMULATION, least=-8, choices=(), refusal=""), then=then)
    done = run_set(job, words)
    assert (done.returncode, done.stdout, job.sent) == (0, f"{CHANGE_LINE}\n", [sent])


NOT_ALLOWED = "not changed: start the job with --control or attach(control=True) to allow changes"
KNOBS = (BUCKET_CAP_MB, ACCUMULATION)


@pytest.mark.parametrize(
    ("knobs", "words", "status", "complaint"),
    [
        (KNOBS, "lr=1", 2, "lr cannot be set; of this job there is: bucket_cap_mb, accumulation"),
        (KNOBS, "bucket_cap_mb=0", 2, "bucket_cap_mb must be from 1 to 10000, not 0"),
        (KNOBS, "accumulation=3", 2, "accumulation must be one of 1, 2, 4, 8, not 3"),
        (KNOBS, "accumulation=8", 1, "not changed: rank 0: only between epochs"),
        (KNOBS, "bucket_cap_mb=50", 1, NOT_ALLOWED),
        (KNOBS, "bucket_cap_mb=25", 0, "bucket_cap_mb is 25 MiB already"),
        ((), "lr=1", 2, "lr cannot be set; of this job there is: nothing"),
        ((), "", 0, "nothing can be changed of this job"),
    ],
)
def test_what_is_refused_or_the_same_is_reported_and_not_sent(run_set, knobs, words, status, complaint):
    job = ObedientJob(*knobs, allowed=complaint != NOT_ALLOWED)
    done = run_set(job, *words.split())
    assert (done.returncode, done.stdout, job.sent) == (status, "", [])
    assert done.stderr == f"overlaptop: {complaint}\n"


def test_knobs_are_listed_as_in_their_pages(run_set):
    about = "MiB \x1b[2J a bucket: large ones use the link better, small ones begin earlier"
    unknown = replace(BUCKET_CAP_MB, value=None, value_text="")
    for name, first, then in (
        ("refused", replace(BUCKET_CAP_MB, owner="DDP", about=about), ()),
        ("ranks differ", BUCKET_CAP_MB, DIFFERING),
        ("unknown", unknown, ()),
    ):
        for words in ([], ["--json"]):
            done = run_set(ObedientJob(first, ACCUMULATION, then=then), *words)
            check_page(f"set {name} {' '.join(words)}", done.stdout)


CAPTURE = commands.make(commands.CAPTURE, {"steps": 5})
captured = partial(reported, CAPTURE)


def given():
    return [*arrival(), Command(CAPTURE.id, CAPTURE.name, CAPTURE.arguments, "me", 1_700_000_000 * 10**9)]


def test_each_rank_has_a_line_and_progress_goes_to_stderr(capsys):
    session = PlayedSession(
        given(),
        [captured(0, "accepted"), captured(1, "accepted")],
        [captured(0, "agreed", 7), captured(1, "agreed", 7)],
        [captured(0, "written", 7, "/there/rank0.json.gz")],
        [captured(1, "written", 7, "/there/rank1.json.gz")],
    )
    capture.print_traces(session, CAPTURE, as_json=False)
    out, err = capsys.readouterr()
    assert out.splitlines() == ["/there/rank0.json.gz", "/there/rank1.json.gz"]
    assert err.splitlines() == [
        f"overlaptop: capture (steps 5): {words}" for words in ("accepted", "agreed on step 7", "written")
    ]


def test_failure_names_the_rank_and_has_a_record_of_each(capsys):
    path = "/there/\x1b[2Jrank0.json.gz"
    failing = captured(0, "written", 7, path), captured(1, "failed", None, "OSError: disk full")
    printed = []
    for as_json in (False, True):
        with pytest.raises(CommandError, match="no capture: rank 1 failed: OSError: disk full") as failure:
            capture.print_traces(PlayedSession(given(), failing), CAPTURE, as_json=as_json)
        assert failure.value.status == 1
        printed.append(capsys.readouterr().out)
    assert printed[0] == "/there/?[2Jrank0.json.gz\n"
    found = [(each["rank"], each["state"], each["path"], each["reason"]) for each in records(printed[1])]
    assert found == [(0, "written", path, None), (1, "failed", None, "OSError: disk full")]


MADE = ChangeRecord(
    at_ns=1_700_000_000_123_000_000, job="job-1", script="train.py", host="gpu-a", by="me@gpu-a, pid 7",
    knob="bucket_cap_mb", old="25", new="50", step=1234, outcome="changed", reason="", command="",
)  # fmt: skip
REFUSED = replace(
    MADE, job="job-2", old=None, new="7", step=None, outcome="refused", reason="rank 0 refused: \x1b[2J"
)


def test_each_change_is_a_row_and_a_record(in_utc):
    for change in (MADE, REFUSED):
        change_log.append(change)
    check_page("changes", run_here("changes").stdout)
    (record,) = records(run_here("changes", "--json", "--job", "job-1").stdout)
    assert record == {"type": "change", **asdict(MADE)}


def test_a_job_that_was_not_changed_is_named(monkeypatch):
    monkeypatch.setattr(changes, "list_jobs", lambda: [SimpleNamespace(job="job-9")])
    done = run_here("changes", "--job", "job-9")
    said = "overlaptop: nothing was changed yet of job job-9\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", said)
