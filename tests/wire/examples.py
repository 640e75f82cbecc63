"""Messages for tests: one of each kind by hand, and hypothesis strategies made from the declarations."""

import msgpack
from hypothesis import strategies as st
from msgspec import inspect
from msgspec.structs import replace

from overlaptop.wire import commands
from overlaptop.wire.bounds import MAX_DURATION_NS
from overlaptop.wire.codec import MESSAGES as BY_TAG
from overlaptop.wire.codec import encode
from overlaptop.wire.commands import Argument, Command, CommandOutcome, RankOutcome
from overlaptop.wire.knobs import GradientFacts, Knob, KnobFacts
from overlaptop.wire.messages import StackLine, StackSamples, StepTotals
from tests.fleet.builders import detail, device, machine, numa, sample

STEP = StepTotals(3, 7, 1, 5, 2, 2, *[1] * 12)
COMMAND = Command("20260101-000000-abcdef", "capture", (Argument("steps", 5),), "me@here, pid 1", 1)
OUTCOME = CommandOutcome(
    COMMAND.id, "obeyed", "", 7, True, (RankOutcome(0, "written", "written", "/there/rank0.json.gz"),)
)
MACHINE, DEVICE, NUMA, SAMPLE, DETAIL = machine(), device(), numa(), sample(), detail()
KNOB_ROW = ("bucket_cap_mb", 25, "25", "25", 1, 10_000)
KNOBS = KnobFacts(0, (Knob(*KNOB_ROW),))
GRADIENTS = GradientFacts(0, (4, 8), 2, "0", None)
STACKS = StackSamples(0, 1, 2, 9, (StackLine("train.py:57 in collate", 9),))


def built(cls, **named):
    """Instances of a message or a part of one, by its declaration; ``named``: strategies of some fields."""
    for field in inspect.type_info(cls).fields:
        named.setdefault(field.name, values_of(field.type))
    return st.builds(cls, **named)


def values_of(declared):
    """What a field of this type may be."""
    match declared:
        case inspect.UnionType():
            return st.one_of(map(values_of, declared.types))
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            return st.integers(declared.ge, declared.le)
        case inspect.FloatType():
            return st.floats(declared.ge, declared.le)
        case inspect.BytesType():
            return st.binary(max_size=min(40, declared.max_length))
        case inspect.StrType(pattern=None):
            return st.text(max_size=40)
        case inspect.StrType():
            return st.from_regex(declared.pattern, fullmatch=True).filter(lambda text: len(text) < 4096)
        case inspect.VarTupleType(item_type=inspect.IntType(ge=least)) if least == -MAX_DURATION_NS:
            ends = values_of(declared.item_type)  # of spans
            return st.lists(st.tuples(ends, ends), max_size=5).map(lambda pairs: tuple(sum(pairs, ())))
        case inspect.VarTupleType():
            return st.lists(values_of(declared.item_type), max_size=5).map(tuple)
        case inspect.StructType(cls=cls) if cls is Knob:
            return allowed_knobs()
        case inspect.StructType():
            return built(declared.cls)
    raise AssertionError(f"no strategy for {declared}")


PARTS = ("hidden_ns", "exposed_ns", "compute_only_ns", "copy_only_ns", "idle_ns", "fused_ns")


@st.composite
def allowed_steps(draw):
    """Parts that make the step; its lanes are what they say of it, or are not known."""
    parts = {name: draw(st.integers(0, MAX_DURATION_NS // len(PARTS))) for name in PARTS}
    step_ns = max(1, sum(parts.values()))
    lanes = parts | {
        "compute_ns": parts["hidden_ns"] + parts["compute_only_ns"],
        "comm_ns": parts["hidden_ns"] + parts["exposed_ns"],
        "stall_ns": draw(st.integers(0, step_ns)),
    }
    if draw(st.booleans()):
        lanes = dict.fromkeys(lanes)
    return replace(draw(built(StepTotals)), step_ns=step_ns, **lanes)


@st.composite
def allowed_commands(draw):
    name = draw(st.sampled_from(list(commands.COMMANDS)))
    is_delay = name == commands.TRIAL and draw(st.booleans())
    allowed = commands.DELAY_ARGUMENTS if is_delay else commands.COMMANDS[name]
    values = {key: draw(st.integers(bounds[0], bounds[-1])) for key, bounds in allowed.items()}
    if is_delay:
        values["steps"] = min(values["steps"], commands.MAX_DELAYS_NS // values["delay_ns"])
    about_knob = name in commands.ABOUT_KNOBS and not is_delay
    knob = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,63}\Z") if about_knob else st.just("")
    arguments = st.permutations([Argument(*each) for each in values.items()]).map(tuple)
    return draw(built(Command, name=st.just(name), arguments=arguments, knob=knob))


@st.composite
def allowed_knobs(draw):
    knob = draw(built(Knob))
    least, most = sorted((knob.least, knob.most))
    return replace(knob, least=least, most=most)


@st.composite
def allowed_stacks(draw):
    """Lines with as many samples as there are, or fewer, asleep in some of them."""
    drawn = draw(st.lists(built(StackLine, samples=st.integers(0, 1 << 32)), max_size=8))
    lines = tuple(replace(each, asleep=min(each.asleep, each.samples)) for each in drawn)
    samples = sum(each.samples for each in lines) + draw(st.integers(0, 1 << 40))
    made = draw(built(StackSamples))
    from_ns, to_ns = sorted((made.from_ns, made.to_ns))
    return replace(made, from_ns=from_ns, to_ns=to_ns, samples=samples, lines=lines)


MESSAGES = {
    **{cls: built(cls) for cls in BY_TAG.values()},
    StepTotals: allowed_steps(),
    StackSamples: allowed_stacks(),
    Command: allowed_commands(),
}
messages = st.one_of(*MESSAGES.values())

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=40)
    | st.binary(),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=40), inner, max_size=4),
    max_leaves=40,
)
"""Whatever msgpack can say."""


def row_of(message, **changed):
    """The message's bytes with some fields replaced by what encode would refuse."""
    names = message.__struct_fields__
    row = msgpack.unpackb(encode(message))
    for name, value in changed.items():
        row[1 + names.index(name)] = value
    return msgpack.packb(row)
