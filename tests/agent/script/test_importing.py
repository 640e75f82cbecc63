"""Calling back when a module has been imported."""

from __future__ import annotations

import importlib.util
import sys

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


def test_another_thread_that_looks_for_the_module_while_it_is_imported_harms_nothing(waited_for):
    when_imported(NAME, lambda: waited_for.append("once"))
    finder = sys.meta_path[0]
    spec = importlib.util.find_spec(NAME)
    module = sys.modules[NAME] = importlib.util.module_from_spec(spec)
    # The other thread did not see it in sys.modules, and asks the finders only now.
    assert finder.find_spec(NAME, None) is not None
    spec.loader.exec_module(module)
    assert module.is_there
    assert waited_for == ["once"]
    assert finder not in sys.meta_path


def test_two_may_wait_for_the_same_module(waited_for):
    for number in range(2):
        when_imported(NAME, lambda number=number: waited_for.append(number))
    assert __import__(NAME).is_there
    assert sorted(waited_for) == [0, 1]
