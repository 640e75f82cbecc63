"""From keys to one command, and what is shown of it: without a screen."""

import pytest
from msgspec.structs import replace

from overlaptop.tui.model import knob_editor as editor
from overlaptop.tui.model.knob_editor import NEWS_S, TAKE_BACK, KnobEditor, ValueRefusedError
from tests.fleet.hub import sent

from .fakes import running_job
from .knobs import (
    ACCUMULATION,
    BUCKET,
    by_another,
    controlled_job,
    ended,
    obey,
    report,
    send_knobs,
    with_value,
)


class Keys:
    """Presses keys in a job's dashboard whose clock stands still between them."""

    def __init__(self, session):
        self.session = session
        self.editor = KnobEditor(session, session.tick(), session.clock.monotonic_s)

    def press(self, *directions):
        for direction in directions:
            self.session.clock.pass_s(0.1)
            self.editor.tick(self.session.tick())
            self.editor.step(direction)

    def rest(self, seconds=editor.SETTLE_S):
        self.session.clock.pass_s(seconds)
        self.editor.tick(self.session.tick())

    @property
    def change(self):
        self.editor.tick(self.session.tick())
        return self.editor.change

    @property
    def sent(self):
        return sent(self.session)


def changed_by(*directions):
    """After these keys, and once what they ask for has been sent."""
    keys = Keys(controlled_job())
    keys.press(*directions)
    keys.rest()
    return keys


def test_change_is_followed_from_sent_to_changed_or_failed():
    keys = changed_by(1)
    (command,) = keys.session.sent
    shown = [keys.change.words]
    for state, step in (("accepted", None), ("agreed", 1284), ("changing", 1284)):
        report(keys.session, command, state, step)
        shown.append(keys.change.words)
    send_knobs(keys.session, with_value(BUCKET, "50"))  # before they report the change
    assert (keys.change.state, keys.change.values_text) == ("pending", "bucket 25 → 50 MiB")
    obey(keys.session, command, 1284, "25", "50")
    shown.append(keys.change.words)
    assert shown == [
        "sent ...", "ranks agree on a step ...", "agreed on step 1,284", "changing at step 1,284",
        "changed at step 1,284",
    ]  # fmt: skip
    assert (keys.change.state, keys.change.values_text) == ("changed", "bucket 25 → 50 MiB")
    keys.press(1)
    keys.rest()
    report(keys.session, keys.session.sent[1], "refused", None, "a compiled DDP", ranks=(1,))
    assert keys.change.state == "failed"
    keys.press(1)
    assert keys.change.values_text == "bucket 50 → 100 MiB"  # from the present value


def test_keys_wait_for_a_running_command_and_start_at_its_value():
    keys = changed_by(1)
    keys.press(1)
    keys.rest(2)
    assert keys.sent == ["set bucket_cap_mb 50"]
    assert keys.change.words == f"waiting for: set bucket_cap_mb 50; {TAKE_BACK}"
    assert keys.change.values_text == "bucket 50 → 100 MiB"
    report(keys.session, keys.session.sent[0], "changed", 40, old="25", new="50")  # they send it later
    keys.rest(0)
    assert keys.sent == ["set bucket_cap_mb 50", "set bucket_cap_mb 100"]


def test_bucket_size_is_selected_else_the_first_open_knob():
    fixed = replace(BUCKET, refusal="a compiled DDP keeps its buckets")
    for knobs, name in (
        ((ACCUMULATION, BUCKET), "bucket_cap_mb"),
        ((fixed, ACCUMULATION), "accumulation"),
        ((replace(ACCUMULATION, refusal="no"), fixed), "bucket_cap_mb"),
    ):
        session = controlled_job(*knobs)
        editor = Keys(session).editor
        editor.selected_name = "a knob that the script has no more"
        assert editor.selected.knob.name == name


@pytest.mark.parametrize(
    ("session", "words"),
    [
        (running_job(2), editor.NOTHING),
        (controlled_job(replace(BUCKET, refusal="compiled")), "cannot be changed: rank 0: compiled"),
        (ended(), "the job is over"),
        (controlled_job(replace(BUCKET, value=None, value_text="")), "its present value is not known"),
        (controlled_job(with_value(BUCKET, "1")), "this is the smallest step of bucket_cap_mb"),
    ],
)  # fmt: skip
def test_reason_for_no_change_stays_a_while(session, words):
    keys = Keys(session)
    keys.press(-1)
    keys.rest()
    assert words in keys.change.words
    assert keys.change.state == "failed"
    keys.rest(NEWS_S)
    assert keys.change is None
    assert keys.sent == []


def test_nothing_is_sent_if_the_knob_or_job_has_gone_or_the_value_is_the_same():
    keys = Keys(controlled_job())
    keys.press(1)
    send_knobs(keys.session)
    keys.rest()
    assert "no bucket_cap_mb any more" in keys.change.words
    other = Keys(controlled_job())
    other.press(1)
    other.editor.forget()
    other.rest()
    for each, change in ((keys, keys.change), (other, None), (changed_by(1, 1, -1, -1), None)):
        assert (each.sent, each.change) == ([], change)


def test_other_dashboards_change_is_news_unless_it_was_busy():
    keys = changed_by(1)
    (ours,) = keys.session.sent
    theirs = by_another(keys.session, at_ns=ours.at_ns + 1)
    assert keys.change.by == "eve@there, pid 7"
    report(keys.session, theirs, "busy", None, "another command is under way")
    assert keys.change.values_text == "bucket 25 → 50 MiB"


# Values


@pytest.mark.parametrize(
    ("knob", "at", "direction", "values"),
    [
        (BUCKET, 1, 1, [2, 5, 10, 25, 50, 100, 200, 400, 800, 1600, 3200, 6400]),
        (BUCKET, 30, -1, [25, 10, 5, 2, 1]),
        (replace(BUCKET, least=-100, most=100), -10, 1, [-5, -2, -1, 0, 1, 2, 5, 10, 25, 50, 100]),
        (replace(BUCKET, least=0, most=8), 5, 1, [6, 7, 8]),
        (replace(ACCUMULATION, choices=(8, 2, 4)), 8, 1, [2, 4]),
        (replace(ACCUMULATION, choices=(8, 2, 4)), 3, 1, [4]),
    ],
)
def test_values_double_except_in_small_ranges_and_choices(knob, at, direction, values):
    found = []
    while (at := editor.stepped(knob, at, direction)) is not None:
        found.append(at)
    assert found == values


def test_value_that_is_no_number_steps_to_the_smallest():
    keys = Keys(controlled_job(with_value(BUCKET, "own lists")))
    keys.press(1)
    assert keys.change.values_text == "bucket own lists → 1 MiB"


def test_typed_value_may_have_a_unit_or_be_the_script_s_or_is_refused():
    typed = ("50", " 50 MiB ", "50mib", "SCRIPT")
    assert [editor.parsed(BUCKET, words) for words in typed] == [50, 50, 50, None]
    for knob, words, why in (
        (BUCKET, "2.5", "type a whole number, 1 to 10000 MiB; or: script"),
        (BUCKET, "9" * 400, "from 1 to 10000"),
        (ACCUMULATION, "3", "must be one of 1, 2, 4, 8, not 3"),
    ):
        with pytest.raises(ValueRefusedError, match=why):
            editor.parsed(knob, words)
