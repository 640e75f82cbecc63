"""Which captures' traces to read, and their references."""

from __future__ import annotations

from collections.abc import Iterable

from overlaptop.fleet.commands import CommandView
from overlaptop.fleet.merging import out_of_reach
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.tui.model.profiler_reference import READING, ProfilerReference
from overlaptop.wire.commands import HOW_TO_ALLOW, WRITTEN
from overlaptop.wire.messages import AGENT_DISABLED


def refusal(snapshot: Snapshot) -> str:
    """Return why no capture can be requested now; empty: it can."""
    if snapshot.hub_state is HubState.ENDED:
        return "the job is over"
    infos = [view.info for view in snapshot.ranks if view.info is not None and not view.ended]
    for info in infos:
        if info.agent_disabled:
            return f"rank {info.rank}: {AGENT_DISABLED}"
        if not info.control_allowed:
            return f"{HOW_TO_ALLOW} it"
    return out_of_reach("capture", snapshot.nodes, snapshot.ranks) if snapshot.nodes else ""


class Captures:
    """The captures of the watched job."""

    def __init__(self) -> None:
        self.references: dict[str, ProfilerReference] = {}
        self._asked: set[str] = set()

    def asked(self, capture: str) -> None:
        self._asked.add(capture)

    def refused(self, commands: Iterable[CommandView]) -> list[CommandView]:
        """Return this dashboard's captures that were refused as busy, each once."""
        found = [each for each in commands if each.id in self._asked and each.busy and each.done]
        self._asked.difference_update(each.id for each in found)
        return found

    def to_read(self, commands: Iterable[CommandView], *, looked_at: bool) -> list[CommandView]:
        """Return the captures that all ranks have written and that were requested here or are
        ``looked_at``, each once.
        """
        found = [
            each
            for each in commands
            if each.state == WRITTEN
            and each.id not in self.references
            and (looked_at or each.id in self._asked)
        ]
        self.references.update((each.id, READING) for each in found)
        return found
