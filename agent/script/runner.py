"""Runs the job's script as Python itself would, with the agent beside it.

The agent waits for the script's own ``import torch``: a script may first set environment variables that
torch and numpy read on import.
"""

import builtins
import importlib.machinery
import importlib.util
import marshal
import os
import pkgutil
import runpy
import sys
import types
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

import overlaptop.agent
from overlaptop.agent import options
from overlaptop.agent.script import path as script_path
from overlaptop.agent.script.failure import failure_of
from overlaptop.agent.script.importing import when_imported

if TYPE_CHECKING:  # imported inside the barrier, like everything that only the agent needs
    from overlaptop.agent.agent import Agent

HERE = str(Path(overlaptop.agent.__file__).parent)
RUNPY = runpy.run_module.__code__.co_filename
"""As in tracebacks: a frozen module's name, or a file's with ``-X frozen_modules=off``."""
PYC_HEADER_BYTES = 16


def main() -> None:
    command = options.parse(sys.argv[1:])
    target = command.target
    path = None if command.module else _absolute(target)
    # A folder or an archive contains a module __main__. A script is read before anything else happens.
    package = path is not None and pkgutil.get_importer(path) is not None
    code = None if path is None or package else _script_code(path)
    agent = overlaptop.agent.START_BARRIER.guarded("its start", _make_agent)(command)
    _hide_our_frames()
    sys.argv[:] = ["-m" if command.module else target, *command.arguments]
    script_path.begin(path if package else _searched_first(path))
    main_module = _new_main()
    try:
        if path is None or code is None:
            # The function that Python itself calls for -m, folders and archives.
            runpy._run_module_as_main(target if path is None else "__main__", alter_argv=path is None)  # type: ignore[attr-defined]  # noqa: SLF001
        else:
            _execute(code, path, main_module)
    except BaseException as end:
        with suppress(Exception):  # the script may have replaced the hook
            _hide_our_frames()
        if agent is not None:
            with suppress(Exception):  # the script's own SystemExit class may raise when inspected
                agent.failure = failure_of(end)
        raise


def _make_agent(command: options.CommandLine) -> "Agent":
    allowed = command.options.control or is_bundled(command.target, module=command.module)
    agent = overlaptop.agent.make(replace(command.options, control=allowed), command.target)
    when_imported("torch", agent.start)
    return agent


def _absolute(path: str) -> str:
    """Return an absolute path as Python does: not normalised, and unchanged if the directory is gone."""
    try:
        folder = os.getcwd()  # noqa: PTH109
        return folder if path == "." else os.path.join(folder, path)  # noqa: PTH118
    except OSError:
        return path


def _searched_first(path: str | None) -> str | None:
    """Return the first entry of sys.path: the script's folder with links resolved, else the current one."""
    if sys.flags.safe_path:
        return None
    if path is not None:
        return str(Path(path).resolve().parent)
    try:
        return os.getcwd()  # noqa: PTH109 - it may be deleted
    except OSError:
        return None


def _script_code(path: str) -> types.CodeType:
    """Compile a script, or load a compiled one. If it cannot be read, exit with Python's own message."""
    try:
        source = Path(path).read_bytes()
    except OSError as fault:
        line = f"{sys.executable}: can't open file {path!r}: [Errno {fault.errno}] {fault.strerror}"
        sys.stderr.write(f"{line}\n")
        options.tell_torchrun(line)
        raise SystemExit(2) from None
    _hide_our_frames()  # show a syntax error as Python does
    # Python, too, decides by the name, or by the first half of the magic number.
    if not path.endswith(".pyc") and source[:2] != importlib.util.MAGIC_NUMBER[:2]:
        return compile(source, path, "exec", dont_inherit=True)
    if not source.startswith(importlib.util.MAGIC_NUMBER):
        raise RuntimeError("Bad magic number in .pyc file")
    code: types.CodeType = marshal.loads(source[PYC_HEADER_BYTES:])  # noqa: S302 - the user's own script
    return code


def _new_main() -> ModuleType:
    """Make a ``__main__`` like Python's own, so that pickling and multiprocessing find the script there."""
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    if "__annotations__" in vars(sys.modules["__main__"]):  # up to Python 3.13
        module.__annotations__ = {}
    sys.modules["__main__"] = module
    return module


def _execute(code: types.CodeType, path: str, module: ModuleType) -> None:
    module.__file__ = path
    module.__dict__["__cached__"] = None
    compiled = path.endswith(".pyc") or code.co_filename != path
    loader = importlib.machinery.SourcelessFileLoader if compiled else importlib.machinery.SourceFileLoader
    module.__loader__ = loader("__main__", path)
    exec(code, module.__dict__)  # noqa: S102 - running the user's script is what this is for


def _hide_our_frames() -> None:
    """Show tracebacks as without us: no frames of runpy's start or of the agent's hooks."""
    shown = sys.excepthook

    def show(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        # Python shows the exceptions' own tracebacks, not the one passed.
        for each in _chain(value):
            # The base class's method works even if the exception is a frozen dataclass.
            BaseException.with_traceback(each, _without_our_frames(each.__traceback__))
        shown(kind, value, value.__traceback__ if traceback is not None else None)

    if getattr(shown, "__module__", None) != __name__:
        sys.excepthook = show


def _chain(value: BaseException) -> list[BaseException]:
    """Return an exception, its causes and contexts, and the members of groups."""
    chain: list[BaseException] = []
    waiting: list[BaseException | None] = [value]
    while waiting:
        each = waiting.pop()
        if each is not None and all(each is not known for known in chain):  # == may run the script's code
            chain.append(each)
            waiting += (each.__cause__, each.__context__)
            if isinstance(each, BaseExceptionGroup):
                waiting += each.exceptions
    return chain


def _without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of this package and of the runpy that started it."""
    kept: list[TracebackType] = []
    started = False
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if not filename.startswith(HERE):
            kept.append(traceback)
            started = started or filename != RUNPY
        elif not started:
            kept.clear()  # frames of our own start; a later runpy is the script's
        traceback = traceback.tb_next
    clean = None
    for each in reversed(kept):
        clean = TracebackType(clean, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return clean


def is_bundled(target: str, *, module: bool) -> bool:
    """Whether this job is a bundled workload, by the location of its code."""
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
