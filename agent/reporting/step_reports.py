"""Sends the finished steps of one rank: totals of all, details of some while a dashboard watches."""

from collections import deque
from typing import TYPE_CHECKING

from overlaptop.agent.control.action import StepMarks
from overlaptop.agent.hooks.process_groups import members_of
from overlaptop.agent.reporting.sender import Sender

if TYPE_CHECKING:  # torch and numpy come with the job, not before it
    from overlaptop.agent.hooks.training_thread import TrainingThread
    from overlaptop.agent.sources.base import Source

RECENT_STEPS = 8
"""Steps kept; the shortest one counts as the length of a step."""
MAX_DETAILS = 4
"""Details sent at once when several measured steps arrive together."""
MAX_MEMBERS = 64
"""Larger groups are sent without their members: a dashboard never compares more ranks."""


class StepReports:
    """On the agent's thread."""

    def __init__(self) -> None:
        self.recent_ns: deque[int] = deque(maxlen=RECENT_STEPS)
        """Lengths of the last undisturbed steps."""
        self._details_due = 0
        """Steps whose detail may be sent now. It grows by one each round."""
        self._comparisons = 0
        """Comparisons of the cost meter when the cost was sent last."""

    def send(
        self,
        source: "Source",
        sender: Sender,
        marks: StepMarks,
        thread: "TrainingThread | None",
        skipped: int | None,
    ) -> None:
        """Send the steps that the source has finished, except step ``skipped``. ``thread``: tells how the
        training thread spent them.
        """
        from overlaptop.agent.reporting import reporter

        rank, schedule, own = sender.place.rank, source.schedule, []
        schedule.follow(sender.wanted)
        taken = source.take()
        if thread is not None:
            thread.sample()
        for measured in taken:
            if measured.step == skipped:
                continue
            mark = marks.of(measured.step)
            totals = reporter.totals(measured, rank, sender.dropped + source.lost, mark, thread)
            sender.put_step(totals)
            if not mark:
                self.recent_ns.append(totals.step_ns)
                own.append(measured)
        if schedule.cost.comparisons != self._comparisons:
            self._comparisons = schedule.cost.comparisons
            if (cost := reporter.own_cost(schedule, rank)) is not None:
                sender.put_state(cost)
        if not sender.wanted.detail:
            return
        self._details_due = min(self._details_due + 1, MAX_DETAILS)
        for measured in reporter.best_detailed(own, self._details_due):
            titles = {each.group for each in measured.collectives}
            sender.put_step(reporter.detail(measured, rank, members_of(titles, MAX_MEMBERS)))
            self._details_due -= 1
