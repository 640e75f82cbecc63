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
    seen = []

    def show(session, screen):
        seen.append((screen.readonly, screen.launcher is None))
        seen.append(
            {session.send(commands.make_setting(KNOB, 50)), session.hold(commands.make_search(KNOB))}
        )
        return 0

    monkeypatch.setattr(dashboard, "require_terminal", lambda _screen: None)
    monkeypatch.setattr(dashboard, "show", show)
    assert cli.main(["--readonly"] if readonly else []) == 0
    refusal = "this dashboard is read-only" if readonly else "there is no connection to the job"
    assert seen == [(readonly, readonly), {refusal}]
