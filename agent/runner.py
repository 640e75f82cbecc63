"""Runs the job's script as Python itself would, with the agent beside it.

The agent waits for the script's own ``import torch``: a script may set environment variables that torch
and numpy read on import, and they must still count.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import os
import sys
import types
from dataclasses import replace
from pathlib import Path
from types import ModuleType, TracebackType

import overlaptop.agent
from overlaptop.agent import options
from overlaptop.agent.failure import failure_of
from overlaptop.agent.importing import when_imported

HERE = str(Path(__file__).parent)


def main() -> None:
    """Parse the command line, start the agent, become the script."""
    command = options.parse(sys.argv[1:])
    target = command.target
    code = _module_code(target) if command.module else _script_code(target)
    sys.argv[:] = [code.co_filename if command.module else target, *command.arguments]
    # `python -m` put the working directory first; a script has its own folder there, a module has not.
    if not command.module and not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path(target).resolve().parent)
    if command.options.numa == "bind":  # the agent's own thread is to be bound as well
        from overlaptop.agent.telemetry import binding

        binding.bind()
    allowed = command.options.control or is_bundled(target, module=command.module)
    agent = overlaptop.agent.start(replace(command.options, control=allowed), target)
    when_imported("torch", agent.hook_torch)
    _hide_our_frames()
    try:
        _become(code, command.target if command.module else None)
    except BaseException as end:
        agent.failure = failure_of(end)
        raise


def _script_code(path: str) -> types.CodeType:
    """Compile a script; ends the process with Python's own words where it cannot be read."""
    try:
        source = Path(path).read_bytes()
    except OSError as fault:
        sys.stderr.write(
            f"{sys.executable}: can't open file {os.path.abspath(path)!r}: "  # noqa: PTH100 - as Python
            f"[Errno {fault.errno}] {fault.strerror}\n"
        )
        raise SystemExit(2) from None
    _hide_our_frames()  # a syntax error is shown as Python shows it
    full = os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118 - as Python: not normalised
    return compile(source, full, "exec", dont_inherit=True)


def _module_code(name: str) -> types.CodeType:
    """Find and compile a module as ``python -m`` does, with its words where it cannot."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
        code = spec.loader.get_code(spec.name) if spec is not None else None  # type: ignore[union-attr]
    except (ImportError, AttributeError, ValueError) as fault:
        sys.stderr.write(f"{sys.executable}: Error while finding module {name!r} ({fault})\n")
        raise SystemExit(1) from None
    if code is None:
        sys.stderr.write(f"{sys.executable}: No module named {name}\n")
        raise SystemExit(1)
    return code  # type: ignore[no-any-return]


def _become(code: types.CodeType, module_name: str | None) -> None:
    """Execute `code` as the real ``__main__``, so that pickling and multiprocessing find it there."""
    main_module = ModuleType("__main__")
    main_module.__file__ = code.co_filename
    main_module.__dict__["__cached__"] = None
    main_module.__dict__["__builtins__"] = builtins
    if module_name is not None:
        spec = importlib.util.find_spec(module_name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{module_name}.__main__")
        main_module.__spec__ = spec
        main_module.__package__ = spec.parent if spec is not None else None
        main_module.__loader__ = spec.loader if spec is not None else None
    else:
        main_module.__loader__ = importlib.machinery.SourceFileLoader("__main__", code.co_filename)
    sys.modules["__main__"] = main_module
    exec(code, main_module.__dict__)  # noqa: S102 - running the user's script is what this is for


def _hide_our_frames() -> None:
    """Show a traceback as it would be without us: no frame of runpy's start or of the agent's hooks."""
    shown = sys.excepthook

    def show(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        # What is shown is the exceptions' own tracebacks, whatever is passed beside them.
        for each in _chain(value):
            each.__traceback__ = _without_our_frames(each.__traceback__)
        shown(kind, value, value.__traceback__ if traceback is not None else None)

    if getattr(shown, "__module__", None) != __name__:
        sys.excepthook = show


def _chain(value: BaseException) -> list[BaseException]:
    """An exception and those that it came from."""
    chain: list[BaseException] = []
    waiting: list[BaseException | None] = [value]
    while waiting:
        each = waiting.pop()
        if each is not None and each not in chain:
            chain.append(each)
            waiting += (each.__cause__, each.__context__)
    return chain


def _without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The same traceback less the frames of this package and of the runpy that started it."""
    kept = []
    started = False
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        ours = filename.startswith(HERE)
        started = started or not (ours or filename == "<frozen runpy>")
        if started and not ours:
            kept.append(traceback)
        traceback = traceback.tb_next
    clean = None
    for each in reversed(kept):
        clean = TracebackType(clean, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return clean


def is_bundled(target: str, *, module: bool) -> bool:
    """Whether this job is one of the bundled workloads, by where its code lies."""
    if module:
        return target == "overlaptop.workloads" or target.startswith("overlaptop.workloads.")
    spec = importlib.util.find_spec("overlaptop.workloads")
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders:
        return False
    try:
        return Path(target).resolve().parent in {Path(folder).resolve() for folder in folders}
    except (OSError, RuntimeError):  # a loop of links
        return False
