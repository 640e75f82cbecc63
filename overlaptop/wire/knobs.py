"""Messages about the settings of a running job that can be changed: its knobs, and its gradients."""

import re
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from overlaptop.wire.bounds import Count, Int64, Rank, Text
from overlaptop.wire.schema import Message, Part

MAX_KNOBS = 64
MAX_CHOICES = 256
MAX_GRADIENTS = 8192

LEAST_VALUE, MOST_VALUE = -(1 << 31), 1 << 31  # Bounds of any knob's value
KnobValue = Annotated[int, Meta(ge=LEAST_VALUE, le=MOST_VALUE)]
_NAME = r"\A[A-Za-z_][A-Za-z0-9_]{0,63}\Z"
KnobName = Annotated[str, Meta(pattern=_NAME)]

BUCKET_CAP_MB = "bucket_cap_mb"  # DistributedDataParallel's bucket size, in MiB like torch
PREFETCH: Mapping[str, str] = {"forward": "prefetch_forward", "backward": "prefetch_backward"}
"""FSDP2's prefetch depth, by pass."""
TORCH_KNOBS = frozenset({BUCKET_CAP_MB, *PREFETCH.values()})
"""Knobs of torch itself. No script can declare one with the same name."""


def is_knob_name(name: str) -> bool:
    return re.match(_NAME, name) is not None


class Knob(Part, frozen=True):
    """One setting of a running job. Values are whole numbers."""

    name: KnobName
    value: Int64 | None  # None if it is no integer, or not known
    value_text: Text  # Present value as text: ``25``, ``2.5``. Empty if not known.
    original_text: Text  # The script's own value
    least: KnobValue
    most: KnobValue
    choices: Annotated[tuple[KnobValue, ...], Meta(max_length=MAX_CHOICES)] = ()
    """The only allowed values, in this order. Empty if all from `least` to `most` are, including both."""
    unit: Text = ""  # ``MiB``, ``blocks``. Empty for a plain number.
    owner: Text = ""  # Part of the job that has it: ``DistributedDataParallel``, ``FSDP2``, ``the script``
    about: Text = ""
    code: Text = ""  # Python line that makes ``{value}`` permanent. Empty if not known.
    refusal: Text = ""  # Why it cannot be changed now, as text for the screen. Empty if it can.
    changes_work: bool = False
    """Another value changes the amount of work in a step, so durations cannot be compared."""

    def inconsistency(self) -> str:
        wrong = self.least > self.most
        return f"its values cannot be from {self.least} to {self.most}" if wrong else ""

    def fault(self, value: int) -> str:
        """Return why a value is not allowed, as one line. Empty if it is."""
        if self.choices and value not in self.choices:
            return f"{self.name} must be one of {', '.join(map(str, self.choices))}, not {value}"
        if not self.least <= value <= self.most:
            return f"{self.name} must be from {self.least} to {self.most}, not {value}"
        return ""


class KnobFacts(Message, frozen=True, tag=16):
    """The knobs of this rank's process. Sent once they are known, and again on each change."""

    rank: Rank
    knobs: Annotated[tuple[Knob, ...], Meta(max_length=MAX_KNOBS)]

    def inconsistency(self) -> str:
        return next(filter(None, (knob.inconsistency() for knob in self.knobs)), "")


class GradientFacts(Message, frozen=True, tag=17):
    """The gradients of the job's DistributedDataParallel model. Sent only if there is exactly one."""

    rank: Rank
    size_bytes: Annotated[tuple[Count, ...], Meta(max_length=MAX_GRADIENTS)]
    """Bytes of each gradient, in the order in which DDP fills its buckets: from the last parameter to the
    first. Empty if there are too many for a message."""
    world_size: Rank  # Ranks that reduce the gradients
    group: Text  # As in CollectiveSpan
    first_cap_bytes: Count | None  # The first bucket's own limit. None if it equals the others'.
    gradient_as_bucket_view: bool | None = None
    """Constructor argument of the model, like the next two fields. None if not known."""
    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
