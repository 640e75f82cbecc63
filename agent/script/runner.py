"""Runs the job's script as Python itself would, with the agent beside it.

The agent waits for the script's own ``import torch``: a script may first set environment variables that
torch and numpy read on import.
"""

import builtins
import importlib.util
import io
import os
import pkgutil
import runpy
import sys
import types
from contextlib import suppress
from dataclasses import replace
from importlib.machinery import (
    BuiltinImporter,
    FrozenImporter,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

import overlaptop.agent
from overlaptop.agent import options
from overlaptop.agent.isolation.patching import when_imported
from overlaptop.agent.script.failure import failure_of

if TYPE_CHECKING:  # imported inside the barrier, like everything that only the agent needs
    from overlaptop.agent.agent import Agent

HERE = str(Path(overlaptop.agent.__file__).parent)
RUNPY = runpy.run_module.__code__.co_filename
"""As in tracebacks: a frozen module's name, or a file's with ``-X frozen_modules=off``."""


def main() -> None:
    command = options.parse(sys.argv[1:])
    target = command.target
    path = None if command.module else _absolute(target)
    agent = None
    try:
        # A folder or an archive contains a module __main__. A script is read before anything else happens.
        package = path is not None and pkgutil.get_importer(path) is not None
        code = None if path is None or package else _script_code(path)
        agent = overlaptop.agent.START_BARRIER.guarded("its start", _make_agent)(command)
        sys.argv[:] = ["-m" if command.module else target, *command.arguments]
        _hand_over_imports(path if package else _searched_first(path))
        main_module = _new_main()
        if path is None or code is None:
            # The function that Python itself calls for -m, folders and archives.
            runpy._run_module_as_main(target if path is None else "__main__", alter_argv=path is None)  # type: ignore[attr-defined]  # noqa: SLF001
        else:
            main_module.__file__ = path
            main_module.__dict__["__cached__"] = None
            loader = SourceFileLoader if code.co_filename == path else SourcelessFileLoader
            main_module.__loader__ = loader("__main__", path)
            exec(code, main_module.__dict__)  # noqa: S102 - running the user's script is what this is for
    except BaseException as end:
        with suppress(Exception):  # the script may have replaced the hook
            _hide_our_start()
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
        return os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118
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


def _hand_over_imports(folder: str | None) -> None:
    """Give the script Python's usual sys.path: ``folder`` (or an archive), if any, is searched first.

    A script may import a random.py next to it. The agent has imported the standard library's random long
    before, and the script must not get that one: modules that it would find in ``folder`` are forgotten.
    The agent keeps them. Its later imports are its own modules, or modules that torch imports, too.
    """
    if not overlaptop.STARTED_BY_DASH_M and not sys.flags.safe_path:
        del sys.path[0]  # the folder of our caller, such as a profiler
    if folder is None:
        return
    imported = list(sys.modules)
    start = "runpy" if "runpy" in sys.modules else "overlaptop"  # a script has the earlier ones as well
    since = {name for name in imported[imported.index(start) :] if "." not in name}
    shadowed = {name for name in since - {"overlaptop", "__main__"} if _is_shadowed(name, folder)}
    if "typing" in shadowed:
        shadowed |= since & {"typing_extensions"}  # msgspec's copy uses another typing than the script's
    for name in imported:
        if name.partition(".")[0] in shadowed:
            del sys.modules[name]
    sys.path.insert(0, folder)


def _is_shadowed(name: str, folder: str) -> bool:
    if BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name):
        return False  # these precede any folder
    found = PathFinder.find_spec(name, [folder])
    # A folder without __init__.py counts only if nothing else is found.
    return found is not None and found.loader is not None


def _script_code(path: str) -> types.CodeType:
    try:
        source = Path(path).read_bytes()
    except OSError as fault:
        line = f"{sys.executable}: can't open file {path!r}: [Errno {fault.errno}] {fault.strerror}"
        sys.stderr.write(f"{line}\n")
        options.tell_torchrun(line)
        raise SystemExit(2) from None
    compiled: types.CodeType | None = pkgutil.read_code(io.BytesIO(source))  # as runpy does
    return compiled or compile(source, path, "exec", dont_inherit=True)


def _new_main() -> ModuleType:
    """Make a ``__main__`` like Python's own, so that pickling and multiprocessing find the script there."""
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    if "__annotations__" in vars(sys.modules["__main__"]):  # up to Python 3.13
        module.__annotations__ = {}
    sys.modules["__main__"] = module
    return module


def _hide_our_start() -> None:
    """Show the traceback as without us: no frames of the runpy that started us, nor our own behind it."""
    shown = sys.excepthook

    def show(kind: type[BaseException], value: BaseException, _: TracebackType | None) -> None:
        at = kept = value.__traceback__  # Python shows this one, not the one passed
        while at is not None and (file := at.tb_frame.f_code.co_filename).startswith((HERE, RUNPY)):
            at = at.tb_next
            if file.startswith(HERE):
                kept = at
        # The base class's method works even if the exception is a frozen dataclass.
        BaseException.with_traceback(value, kept)
        shown(kind, value, kept)

    sys.excepthook = show


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
