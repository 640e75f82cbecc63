"""The form of a launch request: the text typed for each workload. Pure."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from overlaptop.launch.request import LaunchPlan, LaunchRequest
from overlaptop.workloads.catalog import Workload
from overlaptop.workloads.options import Option, value_text


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One option as shown in a list."""

    option: Option
    value: str
    """The value to use."""
    given: bool
    """True if it was typed, else it is the default."""
    default: str


@dataclass
class FormState:
    """Written by the screen's actions, read by its widgets."""

    workload: Workload
    typed: dict[str, str] = field(default_factory=dict)
    """Typed options by workload: they stay when another workload is selected."""
    nproc: str = ""
    plan: LaunchPlan | None = None
    """The plan for the typed text; None until it is known."""

    @classmethod
    def beginning_with(cls, workloads: Sequence[Workload], request: LaunchRequest | None) -> "FormState":
        """Return a form filled with that request, so that the user can change one value."""
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
        return self.workload.name, self.options, self.nproc

    def request(self) -> LaunchRequest:
        """Return the typed request. Raises LaunchError if it is invalid."""
        return LaunchRequest.parse(self.workload.name, self.options, self.nproc)

    def rows(self) -> list[OptionRow]:
        """Return the options with their values; without a plan, the defaults on a CPU."""
        plan = self.plan if self.plan is not None and not self.plan.fault else None
        where, given = (plan.defaults, plan.given) if plan is not None else ("cpu", {})
        found = []
        for option in self.workload.options:
            default = option.default_on(where)
            value = given.get(option.name, default)
            texts = ["" if each is None else value_text(each) for each in (value, default)]
            found.append(OptionRow(option, texts[0], option.name in given, texts[1]))
        return found
