"""The form of a launch request: the workload under the cursor and what was typed for it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from overlaptop.launch.request import LaunchPlan, LaunchRequest
from overlaptop.workloads.catalog import Workload
from overlaptop.workloads.options import Option, value_text


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One option as a list shows it."""

    option: Option
    value: str
    """What it would be."""
    given: bool
    """It was typed; else it is the default."""
    default: str


@dataclass
class FormState:
    """Written by the screen's actions, read by its widgets."""

    workloads: Sequence[Workload]
    at: int = 0
    typed: dict[str, str] = field(default_factory=dict)
    """Options as they were typed, by workload: going to another one and back loses nothing."""
    nproc: str = ""
    plan: LaunchPlan | None = None
    """Of what is typed now; None until it is known."""

    @classmethod
    def beginning_with(cls, workloads: Sequence[Workload], request: LaunchRequest | None) -> FormState:
        """With that request typed already, so that one figure of it can be changed."""
        form = cls(workloads)
        names = [workload.name for workload in workloads]
        if request is not None and request.workload in names:
            form.at = names.index(request.workload)
            form.typed[request.workload] = shlex.join(request.options)
            form.nproc = "" if request.nproc is None else str(request.nproc)
        return form

    @property
    def workload(self) -> Workload:
        return self.workloads[self.at]

    @property
    def options(self) -> str:
        return self.typed.get(self.workload.name, "")

    @property
    def words(self) -> tuple[str, str, str]:
        """All that was chosen and typed, whether it can be read or not."""
        return self.workload.name, self.options, self.nproc

    def move(self, rows: int) -> None:
        """Another workload; stops at either end."""
        self.at = min(max(self.at + rows, 0), len(self.workloads) - 1)
        self.plan = None

    def request(self) -> LaunchRequest:
        """What is typed. Raises LaunchError where that cannot be read."""
        return LaunchRequest.parse(self.workload.name, self.options, self.nproc)

    def rows(self) -> list[OptionRow]:
        """Its options as they would be; without a plan, the defaults on a CPU."""
        plan = self.plan if self.plan is not None and not self.plan.fault else None
        where = plan.defaults if plan is not None else "cpu"
        given = plan.given if plan is not None else {}
        found = []
        for option in self.workload.options:
            default = option.default_on(where)
            default_text = "" if default is None else value_text(default)
            value = value_text(given[option.name]) if option.name in given else default_text
            found.append(OptionRow(option, value, option.name in given, default_text))
        return found
