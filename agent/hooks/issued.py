"""The last collectives that this rank has issued in each group: what it may stand in, should it hang."""

from __future__ import annotations

from collections import deque
from time import time_ns

from overlaptop.agent.sources.base import CollectiveCall
from overlaptop.wire.messages import MAX_LAST_CALLS, MAX_LAST_GROUPS, IssuedCall


class IssuedCalls:
    """`note` is called on the job's threads, the rest on the agent's."""

    def __init__(self) -> None:
        self.count = 0
        """Collectives and point-to-point operations that were issued so far."""
        self._by_group: dict[str, deque[tuple[CollectiveCall, int]]] = {}

    def note(self, call: CollectiveCall) -> None:
        """One is about to be issued."""
        self.count += 1
        if call.sequence is None:
            return
        calls = self._by_group.get(call.group)
        if calls is None:
            if len(self._by_group) >= MAX_LAST_GROUPS:
                return
            calls = self._by_group[call.group] = deque(maxlen=MAX_LAST_CALLS)
        calls.append((call, time_ns()))

    def by_group(self) -> dict[str, tuple[IssuedCall, ...]]:
        """The last ones, oldest first. When they end is not looked at in every step, so it is not known."""
        return {
            group: tuple(
                IssuedCall(call.op, call.bytes, call.sequence or 0, at_ns) for call, at_ns in tuple(calls)
            )
            for group, calls in tuple(self._by_group.items())
        }
