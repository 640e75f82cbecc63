"""What can be changed of a job, from what each rank says of itself."""

from overlaptop.fleet.knobs import NOT_ALLOWED, job_knobs
from overlaptop.wire.messages import AGENT_DISABLED

from .builders import BUCKET_CAP_MB, info

KNOBS = (BUCKET_CAP_MB,)


def refusal(*ranks):
    (only,) = job_knobs(ranks)
    return only.refusal


def test_rank_that_takes_no_commands_is_shown_with_how_to_allow():
    good = info(0, control_allowed=True)
    aside = info(1, control_allowed=False, source="none", source_reason=AGENT_DISABLED)
    assert refusal((good, KNOBS)) == ""
    assert refusal((good, KNOBS), (info(1), KNOBS)) == NOT_ALLOWED
    assert refusal((good, KNOBS), (aside, KNOBS)) == f"rank 1: {AGENT_DISABLED}"
