"""Between the hub and Control: takes commands there, and what Control reports back."""

from __future__ import annotations

from collections.abc import Callable

from overlaptop.agent.control.control import Control
from overlaptop.agent.reporting.sender import Sender
from overlaptop.wire import commands
from overlaptop.wire.messages import CHANGED, ENDED_BADLY, ENDED_WELL, UNKNOWN


class Orders:
    """One per line to the hub. On the agent's thread."""

    def __init__(
        self,
        control: Control,
        *,
        speaks_for_node: bool,
        notice: Callable[[str, str], None],
        on_end: Callable[[], None],
    ) -> None:
        """``speaks_for_node``: of all its ranks, this one says what all would say alike.

        ``notice(level, text)`` tells a person; ``on_end()``: a command has come to its end here.
        """
        self._control = control
        self._speaks_for_node = speaks_for_node
        self._notice = notice
        self._on_end = on_end
        self._heard_by = 0
        """How many connections the hub had when it last heard the newest report."""
        self._asked_by = ""
        """Who gave the newest command that this rank accepted."""

    def serve(self, sender: Sender) -> None:
        """Take commands, and say how far they are."""
        control = self._control
        for command in control.serve(sender.commands):
            if self._speaks_for_node:
                self._asked_by = command.by
                self._notice("info", f"{commands.in_words(command)}, asked by {command.by}")
        if sender.connections != self._heard_by:
            self._heard_by = sender.connections
            if control.latest is not None and control.latest not in control.reports:
                sender.put(control.latest)  # what was under way when a hub went may be lost
        self.send_reports(sender)

    def send_reports(self, sender: Sender) -> None:
        """What Control has to say, and for persons how it ended."""
        while self._control.reports:
            report = self._control.reports.popleft()
            sender.put(report)
            if report.state in (*ENDED_WELL, *ENDED_BADLY):
                self._on_end()
            # What is said of some rank all ranks say alike.
            alone = self._speaks_for_node or not report.text.startswith("rank ")
            if report.state in ENDED_BADLY and alone:
                self._notice("warning", f"no {report.name}: {report.text}")
            elif report.state == UNKNOWN:
                self._notice("warning", f"not known whether {report.name} was obeyed: {report.text}")
            elif report.state == CHANGED and self._speaks_for_node:
                self._notice("info", f"{report.text}, asked by {self._asked_by}")
