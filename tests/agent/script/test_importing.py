"""Calling back when a module has been imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

import pytest

from overlaptop.agent.script.importing import when_imported

NAME = "module_that_is_waited_for"


@pytest.fixture
def waited_for(tmp_path, monkeypatch):
    """Makes the module, and has what was called written down."""
    (tmp_path / f"{NAME}.py").write_text("is_there = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    called = []
    yield called
    sys.modules.pop(NAME, None)


def test_two_may_wait_for_the_same_module(waited_for):
    for number in range(2):
        when_imported(NAME, lambda number=number: waited_for.append(number))
    assert __import__(NAME).is_there
    assert sorted(waited_for) == [0, 1]


class Old(importlib.abc.Loader):
    """As loaders were made before Python 3.4, and still work up to 3.14."""

    def load_module(self, name):
        module = sys.modules[name] = types.ModuleType(name)
        module.is_there = True
        return module


class Static(importlib.abc.MetaPathFinder):
    """A class that is its own loader, of more than one module."""

    @staticmethod
    def exec_module(module):
        module.is_there = True

    create_module = staticmethod(lambda spec: None)


@pytest.mark.parametrize("loader", [Old(), Static])
def test_a_loader_that_cannot_be_watched_loads_as_it_would(waited_for, loader, monkeypatch):
    class Finder:
        find_spec = staticmethod(
            lambda name, *_: importlib.machinery.ModuleSpec(name, loader) if name == NAME else None
        )

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    when_imported(NAME, lambda: waited_for.append("once"))
    before = dict(vars(loader))
    assert importlib.import_module(NAME).is_there
    assert dict(vars(loader)) == before
