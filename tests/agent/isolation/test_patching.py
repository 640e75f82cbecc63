"""Calls of torch's functions are noted, and the job's log says which cannot be."""

from __future__ import annotations

import torch

from overlaptop.agent.isolation.patching import note_calls
from overlaptop.agent.sources.profilers import KinetoWatch


def test_what_torch_has_is_noted_without_a_word(monkeypatch, caplog):
    noted = []
    monkeypatch.setattr(torch.autograd.profiler, "_disable_profiler", lambda: "disabled")
    note_calls(torch.autograd.profiler, "_disable_profiler", lambda: noted.append(True), after=True)
    assert torch.autograd.profiler._disable_profiler() == "disabled"
    assert (noted, caplog.messages) == ([True], [])


def test_what_this_torch_lacks_is_said_in_the_job_s_log_and_the_rest_is_watched(monkeypatch, caplog):
    module = torch.autograd.profiler
    for name in ("_prepare_profiler", "_enable_profiler"):
        monkeypatch.setattr(module, name, lambda: "started")
    monkeypatch.delattr(module, "_disable_profiler")
    said = []
    KinetoWatch(said.append).install()
    (text,) = caplog.messages
    assert "this torch has no torch.autograd.profiler._disable_profiler" in text
    assert module._prepare_profiler() == "started"
    assert said == [True]
