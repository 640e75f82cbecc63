"""What is installed: the interpreter, overlaptop, torch, NCCL and CUPTI. Judged by what a probe reports."""

from __future__ import annotations

import re
from collections.abc import Iterator

from overlaptop import __version__
from overlaptop.agent.sources.cupti.holders import tool_in
from overlaptop.agent.sources.cupti.layouts import sizes_for
from overlaptop.doctor.facts import Facts
from overlaptop.doctor.findings import Finding, fault, ok, unknown, warning
from overlaptop.doctor.installed import to_install
from overlaptop.doctor.probing import ProbeReport, Section
from overlaptop.wire.protocol import PROTOCOL_VERSION

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 8)
_WITHOUT_RECORDS = "timelines come from CUDA events meanwhile, which do not see single kernels"


def check_software(facts: Facts, report: ProbeReport) -> Iterator[Finding]:
    """Whether a job could train, and be watched, with the interpreter."""
    python = report.section("python")
    version = None if python is None else python.text("version")
    if version is None:
        yield _fault_if_named(
            facts, "python", f"{facts.python}: {report.end}", "name another one with --python"
        )
        return
    if _numbers(version) < OLDEST_PYTHON:
        yield _fault_if_named(
            facts,
            "python",
            f"{facts.python} is Python {version}",
            "overlaptop needs 3.11, name a newer one with --python",
        )
        return
    yield ok("python", f"{version}, {facts.python}")
    yield from _agent(facts, report)
    yield from _torch(facts, report)


def _agent(facts: Facts, report: ProbeReport) -> Iterator[Finding]:
    """Whether ranks that run under this interpreter have an agent, and one that we understand."""
    agent = report.section("overlaptop")
    if agent is None:
        yield unknown("agent", f"importing overlaptop with {facts.python}: {report.end}")
        return
    version, protocol = agent.text("version"), agent.number("protocol")
    if version is None or protocol is None:
        yield _fault_if_named(
            facts,
            "agent",
            f"{facts.python} cannot import overlaptop ({agent.text('error')})",
            "pip install it there",
        )
    elif protocol != PROTOCOL_VERSION:
        yield fault(
            "agent",
            f"{facts.python} has overlaptop {version}, protocol {protocol}, this one speaks "
            f"{PROTOCOL_VERSION}",
            f"update {'this one' if protocol > PROTOCOL_VERSION else 'that one'}",
        )
    elif missing := agent.texts("missing"):
        yield fault(
            "agent", f"{facts.python} has no {', '.join(missing)}, so ranks get no hub", to_install(missing)
        )
    else:
        yield ok("agent", f"overlaptop {version}, {agent.text('path')}")


def _torch(facts: Facts, report: ProbeReport) -> Iterator[Finding]:
    torch = report.section("torch")
    if torch is None:
        yield unknown("torch", f"importing it: {report.end}")
        return
    if torch.flag("absent"):
        yield _fault_if_named(
            facts,
            "torch",
            f"{facts.python} has none, so nothing trains with it",
            "`overlaptop doctor --python PATH` looks at another interpreter",
        )
        return
    version = torch.text("version")
    if version is None:
        yield _fault_if_named(
            facts, "torch", f"cannot be imported ({torch.text('error')})", "install it again"
        )
        return
    yield _torch_itself(facts, torch, version)
    if not torch.flag("distributed"):
        yield _fault_if_named(
            facts, "nccl", "this torch has no torch.distributed", "install another build of it"
        )
        return
    nccl = torch.text("nccl")
    if torch.text("cuda") is None:
        yield ok("nccl", f"{'RCCL, by ROCm' if torch.text('hip') else 'none: jobs on the CPU use gloo'}")
    elif nccl is None:
        yield warning("nccl", "this torch was built without it", "install another build of it")
    else:
        yield ok("nccl", nccl)
    if torch.text("cuda") is not None:
        yield from _cupti(facts, report)


def _torch_itself(facts: Facts, torch: Section, version: str) -> Finding:
    cuda, hip, gpus = torch.text("cuda"), torch.text("hip"), torch.number("gpus") or 0
    build = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "for the CPU"
    sees = f", sees {gpus} {'GPU' if gpus == 1 else 'GPUs'}" if cuda or hip else ""
    text = f"{version}, {build}{sees}"
    if _numbers(version) < OLDEST_TORCH:
        return warning("torch", text, "the agent is made for 2.8 and newer, update it")
    if facts.nvidia_gpus and not cuda:
        return warning("torch", f"{text}, but this machine has GPUs", "install a build of torch for CUDA")
    if cuda and not gpus and facts.nvidia_gpus:
        cause = torch.text("warning")
        hidden = facts.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None and cause is None:
            return warning(
                "torch", f"{text} of {facts.nvidia_gpus}", f"CUDA_VISIBLE_DEVICES is {hidden!r}, change it"
            )
        return warning(
            "torch",
            f"{text} of {facts.nvidia_gpus}{f' ({cause})' if cause else ''}",
            "this torch and the driver have to fit each other",
        )
    return ok("torch", text)


def _cupti(facts: Facts, report: ProbeReport) -> Iterator[Finding]:
    """Whether the kernels source could be used: see overlaptop.agent.sources.cupti."""
    cupti = report.section("cupti")
    if cupti is None:
        yield unknown("cupti", f"looking for it: {report.end}")
        return
    if cupti.flag("absent"):
        yield warning("cupti", "this torch has not loaded libcupti", _WITHOUT_RECORDS)
        return
    number = cupti.number("version")
    if number is None:
        yield warning(
            "cupti",
            f"{cupti.text('path')} does not say its version ({cupti.text('error') or report.end})",
            _WITHOUT_RECORDS,
        )
        return
    try:
        sizes_for(number)
    except RuntimeError as reason:
        yield warning("cupti", f"{reason} to overlaptop {__version__}", f"update it; {_WITHOUT_RECORDS}")
        return
    if (tool := tool_in(facts.environ)) is not None:
        yield warning(
            "cupti", f"{tool} holds it in what is started here", "start the job without that tool"
        )
        return
    yield _recording(facts, report, number)


def _recording(facts: Facts, report: ProbeReport, number: int) -> Finding:
    recording = report.section("recording")
    if recording is None:
        return unknown("cupti", f"version {number}; asked to record: {report.end}")
    refusal = recording.text("refusal")
    if refusal is None:
        return ok("cupti", f"version {number}, its records are known, and it records")
    if "PRIVILEGE" in refusal.upper():
        return warning(
            "cupti",
            f"version {number} may not be used by this user ({refusal})",
            "have root set NVreg_RestrictProfilingToAdminUsers=0 for the module nvidia, or give the "
            f"container CAP_SYS_ADMIN; {_WITHOUT_RECORDS}",
        )
    if not facts.nvidia_gpus and not facts.nvidia_devices:
        return ok("cupti", f"version {number}, its records are known; there is no GPU here to record")
    return warning("cupti", f"version {number} does not record ({refusal})", _WITHOUT_RECORDS)


def _fault_if_named(facts: Facts, check: str, text: str, remedy: str) -> Finding:
    """A fault where the user named the interpreter, else a warning: jobs may have another one."""
    return (fault if facts.named else warning)(check, text, remedy)


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
