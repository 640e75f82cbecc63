"""The messages about changing a running job: its knobs, its gradients, and who searches for the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from overlaptop.wire.bounds import Count

BUCKET_CAP_MB = "bucket_cap_mb"
"""DistributedDataParallel's bucket size, in MiB as torch counts it."""
PREFETCH: Mapping[str, str] = MappingProxyType(
    {"forward": "prefetch_forward", "backward": "prefetch_backward"}
)
"""FSDP2's depth of prefetch, by pass."""
TORCH_KNOBS = frozenset({BUCKET_CAP_MB, *PREFETCH.values()})
"""Those of torch's own parts: no script can declare one of that name."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting of a running job. Values are whole numbers."""

    name: str
    """As commands name it: letters, digits and ``_``."""
    value: int | None
    """The present one; None where it is no whole number, or not known."""
    value_text: str
    """The same as a person reads it: ``25``, ``2.5``; empty where it is not known."""
    original_text: str
    """What the script itself gave: the command ``restore`` goes back to it."""
    least: int
    most: int
    """Both belong to what is allowed."""
    choices: tuple[int, ...] = ()
    """Nothing else is allowed, in this order; empty: all from `least` to `most`."""
    unit: str = ""
    """``MiB``, ``blocks``; empty for a plain number."""
    owner: str = ""
    """Whose it is: ``DistributedDataParallel``, ``FSDP2``, ``the script``."""
    about: str = ""
    """One line: what it does."""
    code: str = ""
    """The line of Python that makes a value permanent, ``{value}`` standing for it; empty: not known."""
    refusal: str = ""
    """Why it cannot be changed just now, in words for the screen; empty: it can."""
    changes_work: bool = False
    """A step does another amount of work with another value: that it takes longer says nothing then."""

    def fault(self, value: int) -> str:
        """What is wrong with a value, in a line; empty: nothing."""
        if self.choices and value not in self.choices:
            return f"{self.name} must be one of {', '.join(map(str, self.choices))}, not {value}"
        if not self.least <= value <= self.most:
            return f"{self.name} must be from {self.least} to {self.most}, not {value}"
        return ""


@dataclass(frozen=True, slots=True)
class KnobFacts:
    """What of this rank's process can be changed. Sent once it is known and again when it changes."""

    rank: int
    knobs: tuple[Knob, ...]


@dataclass(frozen=True, slots=True)
class GradientFacts:
    """The gradients of the job's DistributedDataParallel model. Sent where there is one such model."""

    rank: int
    size_bytes: tuple[int, ...]
    """Of each, in the order in which DDP fills its buckets: from the last parameter to the first. Empty
    where there are more than a message holds."""
    world_size: int
    """Ranks among which they are reduced."""
    group: str
    """The process group's name, as CollectiveSpan has it."""
    first_cap_bytes: Count | None
    """The first bucket's own cap; None: the same as the others'."""


@dataclass(frozen=True, slots=True)
class Search:
    """Dashboard -> hub, once a second while it searches for a knob's best value; hub -> every dashboard.

    The hub itself undoes what a search has changed where the one that searched is silent for LEASE_S
    without having said that it is over.
    """

    id: str
    """As in Command.search."""
    by: str
    """Who searches, as in Command.by."""
    knob: str
    undo_value: int | None
    """The value to go back to; None: the one that the script gave."""
    over: bool = False
    """It ended, and has undone itself what was to be undone."""
