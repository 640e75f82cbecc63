"""The knobs of a process: how a script declares its own, what the hub is told, and who makes the change."""

import re
import subprocess
import sys

import pytest
import torch.distributed as dist

from overlaptop.agent.control.two_phase_commit import ANY_POSITION, Position
from overlaptop.agent.knobs.script_knobs import MAX_DECLARED, ScriptKnobs
from overlaptop.wire import codec
from overlaptop.wire.knobs import LEAST_VALUE, MOST_VALUE, Knob, KnobFacts

CHOICES = (1, 2, 4, 8)


@pytest.fixture
def declared():
    return ScriptKnobs()


def declare(declared, name="accumulation", default=4, **options):
    return declared.declare(name, default, **{"choices": CHOICES, **options})


def test_declared_knob_has_its_default_and_is_described(declared):
    knob = declare(declared, unit="batches", about="batches a step", changes_work=True)
    assert (knob.value, int(knob), len(range(knob)), repr(knob)) == (4, 4, 4, "<knob accumulation: 4>")
    declare(declared, "warm_up", 10, choices=None, least=0, most=100)
    assert declared.knobs() == (
        Knob(
            "accumulation", 4, "4", "4", 1, 8, CHOICES, unit="batches", owner="the script",
            about="batches a step", changes_work=True,
            code='overlaptop.agent.knob("accumulation", {value}, choices=(1, 2, 4, 8))',
        ),
        Knob(
            "warm_up", 10, "10", "10", 0, 100, owner="the script",
            code='overlaptop.agent.knob("warm_up", {value}, least=0, most=100)',
        ),
    )  # fmt: skip


def test_knob_can_be_declared_again_in_the_same_way_only(declared):
    knob = declare(declared)
    assert declare(declared, choices=[*CHOICES]) is knob
    with pytest.raises(ValueError, match="knob accumulation was declared before in another way"):
        declare(declared, changes_work=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "a-b"}, "knob a-b: Expected `str` matching regex"),
        ({"name": "bucket_cap_mb"}, "the name of a knob that is there already"),
        ({"default": True}, "knob accumulation: Expected `int`, got `bool` - at `$.default`"),
        ({"default": 3}, "accumulation must be one of 1, 2, 4, 8, not 3"),
        ({"choices": None, "least": 1}, "give its choices, or least and most"),
        ({"least": 1, "most": 4}, "give choices, or least and most, not both"),
        ({"choices": None, "least": 5, "most": 3}, "least (5) is more than most (3)"),
        ({"choices": None, "least": 5, "most": 9}, "accumulation must be from 5 to 9, not 4"),
        ({"choices": (4, 4)}, "one of its choices is there twice"),
        ({"choices": (4, "8")}, "Expected `int`, got `str` - at `$.choices[1]`"),
    ],
)
def test_wrong_declaration_is_one_clear_line(declared, options, words):
    with pytest.raises(ValueError, match=re.escape(words)) as raised:
        declare(declared, **options)
    assert "\n" not in str(raised.value)
    assert declared.knobs() == ()


def test_most_knobs_that_can_be_declared_fit_into_a_message(declared):
    words = {"unit": "x" * 200, "about": "y" * 200}
    ends = {"choices": None, "least": LEAST_VALUE, "most": MOST_VALUE}
    for number in range(MAX_DECLARED):
        allowed = ends if number % 2 else {"choices": range(256)}
        declare(declared, f"{'k' * 60}_{number}", **words, **allowed)
    facts = KnobFacts(0, declared.knobs())
    assert codec.decode(codec.encode(facts)) == facts
    with pytest.raises(ValueError, match=f"no more than {MAX_DECLARED} knobs"):
        declare(declared, "one_more")


def test_knob_without_an_agent_has_its_default():
    code = (
        "import sys, overlaptop.agent as agent\n"
        "knob = agent.knob('accumulation', 4, choices=(1, 2, 4))\n"
        "assert knob.value == 4 and agent._agent is None\n"
        "sys.exit(bool({'torch', 'numpy', 'zmq'} & set(sys.modules)))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_change_comes_into_force_at_the_boundary(declared):
    knob = declare(declared)
    action = declared.action("accumulation", 8)
    assert (action.refusal(), knob.value) == ("", 4)
    assert action.boundary(1700) is False
    assert knob.value == 8
    outcome = action.finish()
    assert (outcome.text, outcome.old, outcome.new) == ("accumulation 4 → 8 at step 1,700", "4", "8")
    undone = action.undoing()
    restored, same = (declared.action("accumulation", None) for _ in range(2))
    for each, value in ((undone, 4), (declared.action("accumulation", 2), 2), (restored, 4), (same, 4)):
        each.boundary(18)
        assert (knob.value, each.finish().new) == (value, str(value))
    assert same.finish().text == "accumulation is 4 already"


class Group:
    """A process group that has begun so many collectives."""

    group_name = "0"
    begun = 0
    _device_types = ("cpu", "cuda")

    def size(self):
        return 2

    def _get_backend(self, device):
        return self

    def _get_sequence_number_for_group(self):
        return self.begun


@pytest.fixture
def world(monkeypatch):
    group = Group()
    monkeypatch.setattr(dist, "group", type("", (), {"WORLD": group}))
    return group


def test_position_has_collectives_and_the_present_value(declared, world):
    declare(declared)
    action = declared.action("accumulation", 8)
    for step in range(3):
        world.begun = 100 + step
        declared.note_step(step)
    assert action.position(1) == Position("0", "after 101 collectives with accumulation 4")
    with pytest.raises(LookupError, match="does not know its position when step 7 began"):
        action.position(7)
    dist.group.WORLD = None
    assert action.position(7) == ANY_POSITION, "alone there is nobody to differ from"
