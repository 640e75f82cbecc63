"""Between the hub and the command executor: passes commands on, and sends back its reports."""

from __future__ import annotations

from collections.abc import Callable

from overlaptop.agent.control.executor import CommandExecutor
from overlaptop.agent.reporting.sender import Sender
from overlaptop.wire import commands
from overlaptop.wire.commands import CHANGED, ENDED_BADLY, ENDED_WELL, UNKNOWN


class CommandReceiver:
    """One per connection to the hub. On the agent's thread."""

    def __init__(
        self,
        executor: CommandExecutor,
        *,
        speaks_for_node: bool,
        notice: Callable[[str, str], None],
        on_end: Callable[[], None],
    ) -> None:
        """``speaks_for_node``: this rank sends the notices that are the same on all ranks of the node.

        ``notice(level, text)`` is for a person to read; ``on_end()``: a command has ended here.
        """
        self._executor = executor
        self._speaks_for_node = speaks_for_node
        self._notice = notice
        self._on_end = on_end
        self._asked_by = ""
        """Who sent the newest command that this rank accepted."""

    def serve(self, sender: Sender) -> None:
        """Take commands, and report how far they are."""
        for command in self._executor.serve(sender.commands):
            if self._speaks_for_node:
                self._asked_by = command.by
                self._notice("info", f"{commands.in_words(command)}, asked by {command.by}")
        self.send_reports(sender)

    def send_reports(self, sender: Sender) -> None:
        """Send the executor's reports, and a notice of how each command ended."""
        while self._executor.reports:
            report = self._executor.reports.popleft()
            sender.put_state(report)  # the newest again to the next hub: this one may be ending
            if report.state in (*ENDED_WELL, *ENDED_BADLY):
                self._on_end()
            # What is about one rank is the same on all of them.
            alone = self._speaks_for_node or not report.text.startswith("rank ")
            if report.state in ENDED_BADLY and alone:
                self._notice("warning", f"no {report.name}: {report.text}")
            elif report.state == UNKNOWN:
                self._notice("warning", f"not known whether {report.name} was obeyed: {report.text}")
            elif report.state == CHANGED and self._speaks_for_node:
                self._notice("info", f"{report.text}, asked by {self._asked_by}")
