"""``overlaptop --readonly``: a dashboard through which nothing can be changed."""

import pytest

from overlaptop import cli
from overlaptop.console import dashboard
from overlaptop.wire import commands
from overlaptop.wire.knobs import Knob

KNOB = Knob("bucket_cap_mb", 25, "25", "25", 1, 10_000)


@pytest.mark.parametrize("readonly", [True, False])
def test_it_starts_no_workload_and_its_session_refuses_whoever_asks(
    monkeypatch: pytest.MonkeyPatch, readonly: bool
) -> None:
    said = []

    def show(session, look):
        said.append((look.readonly, look.launcher is None))
        said.append(
            {session.send(commands.make_setting(KNOB, 50)), session.hold(commands.make_search(KNOB))}
        )
        return 0

    monkeypatch.setattr(dashboard, "require_screen", lambda _look: None)
    monkeypatch.setattr(dashboard, "show", show)
    assert cli.main(["--readonly"] if readonly else []) == 0
    refusal = "this dashboard is read-only" if readonly else "there is no connection to the job"
    assert said == [(readonly, readonly), {refusal}]


@pytest.mark.parametrize("command", ["set", "capture", "tune"])
def test_commands_that_change_a_job_do_not_come_with_it(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, reason in (
        (["--readonly", command], f"{command} is a command and comes first"),
        ([command, "--readonly"], "unrecognized arguments"),
    ):
        with pytest.raises(SystemExit) as end:
            cli.main(words)
        assert end.value.code == 2
        assert reason in capsys.readouterr().err
