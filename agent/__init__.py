"""The agent: measures one rank of a training job from within, as a barrier.

``torchrun -m overlaptop.agent train.py`` runs a script with the agent beside it; `attach` does the same
from inside a script or notebook. Importing this module imports neither torch nor numpy.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.options import AgentOptions
from overlaptop.timeline.lanes import parse_rule

if TYPE_CHECKING:  # the rest is imported inside the barrier: a broken installation ends no job
    from overlaptop.agent.agent import Agent
    from overlaptop.agent.knobs.script_knobs import DECLARED, ScriptKnob

    knob = DECLARED.declare

__all__ = ["AgentOptions", "ScriptKnob", "attach", "knob", "step"]

START_BARRIER = FaultBarrier(lambda _level, _text: None)
"""Guards the agent's start, before the agent has a barrier and a dashboard of its own."""

_agent: "Agent | None" = None


def attach(*, script: str | None = None, lanes: Sequence[str] = (), **options: Any) -> None:
    """Start the agent in this process, for launchers where ``-m`` does not fit.

    Call it before the first step; a second call does nothing. ``script`` names the job. ``lanes`` are rules
    as on the command line, such as ``comm=my_allreduce``. The other options are those of AgentOptions.

    Raises:
        ValueError: an option is out of range, or two options exclude each other.
        TypeError: there is no such option.
    """
    chosen = AgentOptions(lane_rules=tuple(map(parse_rule, lanes)), **options)

    def start() -> None:
        make(chosen, script or (sys.argv and sys.argv[0]) or "python").start()

    START_BARRIER.guarded("its start", start)()


def make(options: AgentOptions, script: str) -> "Agent":
    """Make this process's agent, or return the existing one. Call it inside START_BARRIER."""
    from overlaptop.agent.agent import Agent
    from overlaptop.jobs.files import temporary_folder

    global _agent  # a process has one agent, as it has one torch
    temporary_folder()  # before the script can set TMPDIR: dashboards look in the folder of the start
    if _agent is None:
        _agent = Agent(options, script)
    else:
        _agent.begin_in_fork(options, script)
    return _agent


def step() -> None:
    """End a step here: for loops without an optimizer, and for optimizers inside backward.

    After the first call, optimizers no longer end steps. Without an agent this does nothing.
    """
    if _agent is not None:
        _agent.step()


def __getattr__(name: str) -> Any:
    if name not in ("ScriptKnob", "knob"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from overlaptop.agent.knobs.script_knobs import DECLARED, ScriptKnob

    return ScriptKnob if name == "ScriptKnob" else DECLARED.declare


if not sys.platform.startswith("linux"):  # the agent needs unix sockets and /proc
    raise ImportError("overlaptop.agent needs Linux")
