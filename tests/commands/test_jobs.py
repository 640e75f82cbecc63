"""``--list``: what it says of each job."""

from __future__ import annotations

from overlaptop.console import jobs
from tests.fleet.fakes import record


def test_a_job_that_has_ended_is_not_said_to_run(monkeypatch, capsys):
    found = [record("job-1"), record("job-2", ended=True)]
    monkeypatch.setattr("overlaptop.console.jobs.find_jobs", lambda: found)
    assert jobs.run(as_json=False) == 0
    _, runs, ended = capsys.readouterr().out.splitlines()
    assert "ended" not in runs
    assert ended.split()[3] == "ended"


def test_the_help_of_tune_says_when_a_search_is_undone():
    from overlaptop.commands.tune import DESCRIPTION
    from overlaptop.wire.messages import LEASE_S

    assert f"its hub goes back after {LEASE_S:.0f} seconds of silence" in DESCRIPTION
