"""Calls back when a module has been imported, without importing it."""

from __future__ import annotations

import importlib.machinery
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType

from overlaptop.agent.isolation.fault_barrier import warn


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Call ``then`` once: as soon as the module is there, on the thread that imports it; now, if it is."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _ImportWatch(name, then))


class _ImportWatch(MetaPathFinder):
    """Calls back once when a module has been imported.

    It stays among the finders and finds nothing then: Python walks along their list in place (up to 3.13),
    and another thread that imports just then would pass over a finder, were this one taken out.

    Libraries look whether a module is there (``importlib.util.find_spec("torch")``) long before anybody
    imports it: to be found is not to be imported, so this waits until the module is executed.
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
            # As importlib does, which passes over finders without this method.
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
            vars(loader).pop("exec_module", None)  # two may watch the same loader
            execute(module)  # where it fails, the script may try again
            then, self._then = self._then, None
            if then is not None:
                then()

        try:
            execute = loader.exec_module
            vars(loader)["exec_module"] = execute_and_tell
        except (AttributeError, TypeError):  # a loader of the job's own: an old one, a class, with slots
            warn(f"{self._name} comes by a loader of its own; call overlaptop.agent.attach() behind it")
