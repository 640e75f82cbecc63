"""Knobs of a scripted job, and what its ranks say of a change."""

from msgspec.structs import replace

from overlaptop.fleet.snapshot import HubState
from overlaptop.wire.commands import CommandReport, make_setting
from overlaptop.wire.knobs import KnobFacts
from tests.fleet.builders import BUCKET_CAP_MB, T0, info

from .fakes import running_job

BUCKET = replace(
    BUCKET_CAP_MB,
    about="how large DDP's buckets of gradients are",
    code="DistributedDataParallel(model, bucket_cap_mb={value})",
)
ACCUMULATION = replace(
    BUCKET, name="accumulation", value=4, value_text="4", original_text="4", least=1, most=8,
    choices=(1, 2, 4, 8), unit="", owner="the script", about="batches that share one optimizer step",
    code="",
)  # fmt: skip


def with_value(knob, text):
    return replace(knob, value=int(text) if text.isdigit() else None, value_text=text)


def send_knobs(session, *knobs, ranks=2):
    """Every rank says that these can be changed."""
    for rank in range(ranks):
        session.say(replace(info(rank), control_allowed=True), KnobFacts(rank, knobs))


def controlled_job(*knobs, ranks=2):
    """A running job that obeys; with the bucket size, unless others are named."""
    session = running_job(ranks)
    send_knobs(session, *(knobs or (BUCKET,)), ranks=ranks)
    return session


def ended():
    session = controlled_job()
    session.fleet.set_hub_state(HubState.ENDED, "")
    return session


def report(session, command, state, step=None, text="", *, ranks=(0, 1), old="", new=""):
    """What ranks say of a command."""
    for rank in ranks:
        session.say(
            CommandReport(rank, command.id, command.name, session.clock.at_ns, state, step, text, old, new)
        )


def obey(session, command, step, old, new, knob=BUCKET, ranks=2):
    """All ranks do it, from accepted to changed, and say so."""
    for state in ("accepted", "agreed", "changing"):
        report(session, command, state, step if state != "accepted" else None, ranks=range(ranks))
    text = f"{knob.name} {old} → {new}"
    report(session, command, "changed", step, text, ranks=range(ranks), old=old, new=new)
    send_knobs(session, with_value(knob, new), ranks=ranks)


def by_another(session, value=400, *, knob=BUCKET, by="eve@there, pid 7", at_ns=T0):
    """Another dashboard asks for this value; returns its command."""
    command = replace(make_setting(knob, value), by=by, at_ns=at_ns)
    session.say(command)
    return command
