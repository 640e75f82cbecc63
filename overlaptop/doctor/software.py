"""What is installed: the interpreter, overlaptop, torch, NCCL and CUPTI. Judged by what a probe reports."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from overlaptop import __version__
from overlaptop.agent.sources.cupti.holders import tool_in
from overlaptop.agent.sources.cupti.layouts import sizes_for
from overlaptop.doctor.facts import Facts
from overlaptop.doctor.findings import Finding, fault, ok, unknown, warning
from overlaptop.doctor.installed import to_install
from overlaptop.doctor.probing import ProbeReport, Section
from overlaptop.text import plural
from overlaptop.wire.protocol import PROTOCOL_VERSION

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 8)
_WITHOUT_RECORDS = "timelines come from CUDA events meanwhile, which do not see single kernels"
_ANOTHER_BUILD = "install another build of it"

_Lacking = Callable[[str, str, str], Finding]
"""A fault where the user named the interpreter, else a warning: jobs may have another one."""


def check_software(facts: Facts, report: ProbeReport) -> Iterator[Finding]:
    """Whether a job could train, and be watched, with the interpreter."""
    lacking = fault if facts.named else warning
    python, torch = report.sections.get("python"), report.sections.get("torch")
    if python is None:
        yield lacking("python", f"{facts.python}: {report.end}", "name another one with --python")
        return
    if _numbers(python["version"]) < OLDEST_PYTHON:
        yield lacking(
            "python",
            f"{facts.python} is Python {python['version']}",
            "overlaptop needs 3.11, name a newer one with --python",
        )
        return
    yield ok("python", f"{python['version']}, {facts.python}")
    yield _agent(facts, report, lacking)
    yield _torch(facts, report, lacking)
    if torch is not None and "version" in torch:
        yield _nccl(torch, lacking)
        if torch["distributed"] and torch["cuda"]:
            yield _cupti(facts, report)


def _agent(facts: Facts, report: ProbeReport, lacking: _Lacking) -> Finding:
    """Whether ranks that run under this interpreter have an agent, and one that we understand."""
    agent = report.sections.get("overlaptop")
    if agent is None:
        return unknown("agent", f"importing overlaptop with {facts.python}: {report.end}")
    if "error" in agent:
        return lacking(
            "agent", f"{facts.python} cannot import overlaptop ({agent['error']})", "pip install it there"
        )
    version, protocol, missing = agent["version"], agent["protocol"], agent["missing"]
    if protocol != PROTOCOL_VERSION:
        older = "this one" if protocol > PROTOCOL_VERSION else "that one"
        text = f"{facts.python} has overlaptop {version}, protocol {protocol}, this one speaks "
        return fault("agent", f"{text}{PROTOCOL_VERSION}", f"update {older}")
    if missing:
        text = f"{facts.python} has no {', '.join(missing)}, so ranks get no hub"
        return fault("agent", text, to_install(missing))
    return ok("agent", f"overlaptop {version}, {agent['path']}")


def _torch(facts: Facts, report: ProbeReport, lacking: _Lacking) -> Finding:
    torch = report.sections.get("torch")
    if torch is None:
        return unknown("torch", f"importing it: {report.end}")
    if "absent" in torch:
        return lacking(
            "torch",
            f"{facts.python} has none, so nothing trains with it",
            "`overlaptop doctor --python PATH` looks at another interpreter",
        )
    if "error" in torch:
        return lacking("torch", f"cannot be imported ({torch['error']})", "install it again")
    cuda, hip, gpus, cause = torch["cuda"], torch["hip"], torch["gpus"], torch["warning"]
    build = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "for the CPU"
    sees = f", sees {plural(gpus, 'GPU')}" if cuda or hip else ""
    text = f"{torch['version']}, {build}{sees}"
    if _numbers(torch["version"]) < OLDEST_TORCH:
        return warning("torch", text, "the agent is made for 2.8 and newer, update it")
    if facts.nvidia_gpus and not cuda:
        return warning("torch", f"{text}, but this machine has GPUs", "install a build of torch for CUDA")
    if cuda and not gpus and facts.nvidia_gpus:
        text += f" of {facts.nvidia_gpus}"
        hidden = facts.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None and not cause:
            return warning("torch", text, f"CUDA_VISIBLE_DEVICES is {hidden!r}, change it")
        text += f" ({cause})" if cause else ""
        return warning("torch", text, "this torch and the driver have to fit each other")
    return ok("torch", text)


def _nccl(torch: Section, lacking: _Lacking) -> Finding:
    if not torch["distributed"]:
        return lacking("nccl", "this torch has no torch.distributed", _ANOTHER_BUILD)
    if not torch["cuda"]:
        return ok("nccl", "RCCL, by ROCm" if torch["hip"] else "none: jobs on the CPU use gloo")
    if not torch["nccl"]:
        return warning("nccl", "this torch was built without it", _ANOTHER_BUILD)
    return ok("nccl", torch["nccl"])


def _cupti(facts: Facts, report: ProbeReport) -> Finding:
    """Whether the kernels source could be used: see overlaptop.agent.sources.cupti."""
    cupti, recording = report.sections.get("cupti"), report.sections.get("recording")
    if cupti is None:
        return unknown("cupti", f"looking for it: {report.end}")
    if "absent" in cupti:
        return warning("cupti", "this torch has not loaded libcupti", _WITHOUT_RECORDS)
    number = cupti.get("version")
    if number is None:
        why = cupti.get("error") or report.end
        return warning("cupti", f"{cupti['path']} does not say its version ({why})", _WITHOUT_RECORDS)
    try:
        sizes_for(number)
    except RuntimeError as reason:
        return warning("cupti", f"{reason} to overlaptop {__version__}", f"update it; {_WITHOUT_RECORDS}")
    if (tool := tool_in(facts.environ)) is not None:
        return warning(
            "cupti", f"{tool} holds it in what is started here", "start the job without that tool"
        )
    if recording is None:
        return unknown("cupti", f"version {number}; asked to record: {report.end}")
    refusal = recording["refusal"]
    if not refusal:
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


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
