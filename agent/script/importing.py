"""Calls back when a module has been imported, without importing it itself."""

import importlib.machinery
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType

from overlaptop.agent.isolation.fault_barrier import warn


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
