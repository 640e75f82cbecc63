"""What a job may be told: which commands are made, and what the codec lets through."""

import pytest
from msgspec.structs import replace

from overlaptop.wire import commands
from overlaptop.wire.codec import WireError, decode, encode
from overlaptop.wire.knobs import Knob
from tests.fleet.builders import BUCKET_CAP_MB

KNOB = Knob("accumulation", 4, "4", "4", 1, 8, choices=(1, 2, 4, 8))


def test_command_within_bounds_has_a_unique_id_fit_for_a_folder():
    made = [commands.make(commands.CAPTURE, {"steps": steps}) for steps in range(1, 101)]
    assert commands.describe(made[4]) == "capture (steps 5)"
    assert all("pid" in each.by and decode(encode(each)) == each for each in made)
    assert len({each.id for each in made}) == 100
    assert set("".join(each.id for each in made)) <= set("0123456789abcdef-")


def test_trial_names_its_knob_or_the_rank_to_delay():
    trial = commands.make_trial(BUCKET_CAP_MB, 50, 20)
    delay = commands.make_delay(1, 2_500_000, commands.GPU, 20)
    assert commands.delays_ns(delay) == 50_000_000
    assert [commands.is_delay(each) for each in (trial, delay)] == [False, True]
    assert commands.describe(commands.make_setting(BUCKET_CAP_MB, 50)) == "set bucket_cap_mb 50"
    assert commands.describe(commands.make_restoring(KNOB)) == "restore accumulation"
    assert commands.describe(trial) == "trial bucket_cap_mb 50 (20 steps)"
    assert commands.describe(delay) == "trial of 2.5 ms more on rank 1's gpu (20 steps)"
    assert all(decode(encode(each)) == each for each in (trial, delay))


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (commands.make_delay, (0, 0, 0, 20), "delay_ns must be from 1 to 10000000000, not 0"),
        (commands.make_delay, (-1, 1, 0, 20), "rank must be from 0 to 4095, not -1"),
        (commands.make_delay, (0, 60_000_001, 0, 1000), "must be 60000000000 ns at most, not 60000001000"),
        (commands.make_trial, (KNOB, 3, 20), "accumulation must be one of 1, 2, 4, 8, not 3"),
        (commands.make, ("capture", {"steps": 101}), "from 1 to 100, not 101"),
        (commands.make, ("capture", {"steps": 1, "folder": 2}), "takes exactly: steps"),
        (
            commands.make,
            ("exec", {"steps": 1}),
            "there is no such command; there is: capture, set",
        ),
        (commands.make_setting, (BUCKET_CAP_MB, 10_001), "must be from 1 to 10000, not 10001"),
        (commands.make_setting, (replace(BUCKET_CAP_MB, name="b" * 65), 5), "cannot be a knob's name"),
    ],
)
def test_command_out_of_bounds_is_not_made(make, arguments, words):
    with pytest.raises(ValueError, match=words):
        make(*arguments)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"knob": "a b"}, "cannot be a knob's name"),
        ({"name": "restore"}, "restore takes exactly: no argument"),
        ({"name": "capture"}, "capture is not about a knob"),
        ({"name": "trial"}, "takes exactly: value, steps"),
    ],
)
def test_the_codec_lets_no_other_change_through(changes, words):
    with pytest.raises(WireError, match=words):
        encode(replace(commands.make_setting(BUCKET_CAP_MB, 50), **changes))
