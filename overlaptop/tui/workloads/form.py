"""The form of a launch request: what was typed for which workload. Pure."""

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

    workload: Workload
    typed: dict[str, str] = field(default_factory=dict)
    """Options as they were typed, by workload: going to another one and back loses nothing."""
    nproc: str = ""
    plan: LaunchPlan | None = None
    """Of what is typed now; None until it is known."""

    @classmethod
    def beginning_with(cls, workloads: Sequence[Workload], request: LaunchRequest | None) -> FormState:
        """With that request typed already, so that one figure of it can be changed."""
        named = {workload.name: workload for workload in workloads}
        if request is None or request.workload not in named:
            return cls(workloads[0])
        nproc = "" if request.nproc is None else str(request.nproc)
        return cls(named[request.workload], {request.workload: shlex.join(request.options)}, nproc)

    @property
    def options(self) -> str:
        return self.typed.get(self.workload.name, "")

    @property
    def words(self) -> tuple[str, str, str]:
        """All that was chosen and typed, whether it can be read or not."""
        return self.workload.name, self.options, self.nproc

    def request(self) -> LaunchRequest:
        """What is typed. Raises LaunchError where that cannot be read."""
        return LaunchRequest.parse(self.workload.name, self.options, self.nproc)

    def rows(self) -> list[OptionRow]:
        """Its options as they would be; without a plan, the defaults on a CPU."""
        plan = self.plan if self.plan is not None and not self.plan.fault else None
        where, given = (plan.defaults, plan.given) if plan is not None else ("cpu", {})
        found = []
        for option in self.workload.options:
            default = option.default_on(where)
            value = given.get(option.name, default)
            texts = ["" if each is None else value_text(each) for each in (value, default)]
            found.append(OptionRow(option, texts[0], option.name in given, texts[1]))
        return found
