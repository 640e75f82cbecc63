"""The messages about what can be changed of a running job: its knobs and its gradients."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from msgspec import Meta

from overlaptop.wire.bounds import Count, Int64, Rank, Text
from overlaptop.wire.schema import Message, Part

MAX_KNOBS = 64
MAX_CHOICES = 256
MAX_GRADIENTS = 8192

LEAST_VALUE, MOST_VALUE = -(1 << 31), 1 << 31
"""What the value of any knob may be."""
KnobValue = Annotated[int, Meta(ge=LEAST_VALUE, le=MOST_VALUE)]
_NAME = r"\A[A-Za-z_][A-Za-z0-9_]{0,63}\Z"
KnobName = Annotated[str, Meta(pattern=_NAME)]

BUCKET_CAP_MB = "bucket_cap_mb"
"""DistributedDataParallel's bucket size, in MiB as torch counts it."""
PREFETCH: Mapping[str, str] = MappingProxyType(
    {"forward": "prefetch_forward", "backward": "prefetch_backward"}
)
"""FSDP2's depth of prefetch, by pass."""
TORCH_KNOBS = frozenset({BUCKET_CAP_MB, *PREFETCH.values()})
"""Those of torch's own parts: no script can declare one of that name."""


def is_knob_name(name: str) -> bool:
    """Whether a knob may be called so."""
    return re.match(_NAME, name) is not None


class Knob(Part, frozen=True):
    """One setting of a running job. Values are whole numbers."""

    name: KnobName
    """As commands name it: letters, digits and ``_``."""
    value: Int64 | None
    """The present one; None where it is no whole number, or not known."""
    value_text: Text
    """The same as a person reads it: ``25``, ``2.5``; empty where it is not known."""
    original_text: Text
    """What the script itself gave: the command ``restore`` goes back to it."""
    least: KnobValue
    most: KnobValue
    """Both belong to what is allowed."""
    choices: Annotated[tuple[KnobValue, ...], Meta(max_length=MAX_CHOICES)] = ()
    """Nothing else is allowed, in this order; empty: all from `least` to `most`."""
    unit: Text = ""
    """``MiB``, ``blocks``; empty for a plain number."""
    owner: Text = ""
    """Whose it is: ``DistributedDataParallel``, ``FSDP2``, ``the script``."""
    about: Text = ""
    """One line: what it does."""
    code: Text = ""
    """The line of Python that makes a value permanent, ``{value}`` standing for it; empty: not known."""
    refusal: Text = ""
    """Why it cannot be changed just now, in words for the screen; empty: it can."""
    changes_work: bool = False
    """A step does another amount of work with another value: its duration cannot be compared then."""

    def inconsistency(self) -> str:
        """As Part says."""
        wrong = self.least > self.most
        return f"its values cannot be from {self.least} to {self.most}" if wrong else ""

    def fault(self, value: int) -> str:
        """What is wrong with a value, in a line; empty: nothing."""
        if self.choices and value not in self.choices:
            return f"{self.name} must be one of {', '.join(map(str, self.choices))}, not {value}"
        if not self.least <= value <= self.most:
            return f"{self.name} must be from {self.least} to {self.most}, not {value}"
        return ""


class KnobFacts(Message, frozen=True, tag=16):
    """What of this rank's process can be changed. Sent once it is known and again when it changes."""

    rank: Rank
    knobs: Annotated[tuple[Knob, ...], Meta(max_length=MAX_KNOBS)]

    def inconsistency(self) -> str:
        """As Part says: of the first knob that is wrong."""
        return next(filter(None, (knob.inconsistency() for knob in self.knobs)), "")


class GradientFacts(Message, frozen=True, tag=17):
    """The gradients of the job's DistributedDataParallel model. Sent where there is one such model."""

    rank: Rank
    size_bytes: Annotated[tuple[Count, ...], Meta(max_length=MAX_GRADIENTS)]
    """Of each, in the order in which DDP fills its buckets: from the last parameter to the first. Empty
    where there are more than a message holds."""
    world_size: Rank
    """Ranks among which they are reduced."""
    group: Text
    """The process group's name, as CollectiveSpan has it."""
    first_cap_bytes: Count | None
    """The first bucket's own cap; None: the same as the others'."""
    gradient_as_bucket_view: bool | None = None
    """As the model was made with, like the two below. None: not known."""
    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
