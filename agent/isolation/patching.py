"""Replaces a torch function by a wrapper: the agent can see some calls in no other way.

Waits for a module's import, without importing it itself. And keeps torch.compile from compiling the agent's
hooks. While compiled code runs, Dynamo traces each Python function called outside of a graph, including
hooks and kernels that C++ calls. A strategy set on a function's code object makes Dynamo run it as it is.
Setting it imports nothing and costs nothing in a job that compiles nothing.
"""

import functools
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any, TypeVar

from overlaptop.agent.isolation.fault_barrier import warn

F = TypeVar("F", bound=Callable[..., Any])


def replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace ``owner.name`` by ``wrap(original)``, with the original's name and docstring."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(transparent(wrap(original))))


def note_calls(owner: Any, name: str, note: Callable[..., Any], *, after: bool = False) -> None:
    """Call ``note`` with the positional arguments of each call of ``owner.name``: before it, or after it
    even if it raises. If this torch has no such function, the job's log says so.
    """

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:
        def noted_call(*args: Any, **kwargs: Any) -> Any:
            if not after:
                note(*args)
                return call(*args, **kwargs)
            try:
                return call(*args, **kwargs)
            finally:
                note(*args)

        return noted_call

    if hasattr(owner, name):
        replace(owner, name, noting)
    else:
        warn(f"this torch has no {owner.__name__}.{name}: the agent cannot see its calls")


@contextmanager
def own_handle_numbers() -> Iterator[None]:
    """Give the hooks registered here numbers below 0. Torch numbers all hooks of a process in order, and a
    model that is saved whole contains the numbers of its hooks.
    """
    from torch.utils.hooks import RemovableHandle

    global _handle_number
    job_number, RemovableHandle.next_id = RemovableHandle.next_id, _handle_number
    try:
        yield
    finally:
        _handle_number, RemovableHandle.next_id = RemovableHandle.next_id, job_number


_handle_number = -(1 << 30)  # The agent's next hook number


def uncompiled(function: F) -> F:
    """Have Dynamo run ``function`` and all its callees uncompiled: for the agent's own code."""
    return _run_as_is(function, callees=True)


def transparent(function: F) -> F:
    """Have Dynamo run ``function`` uncompiled but compile its callees: for wrappers of the job's code."""
    return _run_as_is(function, callees=False)


def _run_as_is(function: F, *, callees: bool) -> F:
    # The public torch.compiler.disable imports Dynamo, which costs each job a second.
    try:
        from torch._C._dynamo import eval_frame

        action = eval_frame._FrameAction  # noqa: SLF001
        strategy = eval_frame._FrameExecStrategy(  # noqa: SLF001
            action.SKIP, action.SKIP if callees else action.DEFAULT
        )
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
    except (ImportError, AttributeError):  # this torch has another name for it; most jobs compile nothing
        pass
    return function


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Call ``then`` once: when the module is imported, on the importing thread; now if it already is."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _ImportWatch(name, then))


class _ImportWatch(MetaPathFinder):
    """Calls back once when a module has been imported.

    Afterwards it stays among the finders and finds nothing. Python (up to 3.13) iterates over their list in
    place, so removing a finder could make another thread's import skip the next one.

    Libraries call ``importlib.util.find_spec("torch")`` long before anybody imports torch. So being found
    does not count: the callback waits until the module is executed.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then: Callable[[], None] | None = then
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if self._then is None or fullname != self._name or getattr(self._asking, "others", False):
            return None
        self._asking.others = True
        try:
            # As in importlib, which skips finders without this method.
            finds = [getattr(finder, "find_spec", None) for finder in tuple(sys.meta_path)]
            found = (find(fullname, path, target) for find in finds if find is not None)
            spec = next((each for each in found if each is not None), None)
        finally:
            self._asking.others = False
        if spec is not None and spec.loader is not None:
            self._watch(spec.loader)
        return spec

    def _watch(self, loader: Loader) -> None:
        def execute_and_tell(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # two watches may share a loader
            execute(module)  # if it fails, the script may try again
            then, self._then = self._then, None
            if then is not None:
                then()

        try:
            execute = loader.exec_module
            vars(loader)["exec_module"] = execute_and_tell
        except (AttributeError, TypeError):  # the job's own loader: an old one, a class, or with slots
            warn(f"{self._name} comes by a loader of its own; call overlaptop.agent.attach() behind it")
