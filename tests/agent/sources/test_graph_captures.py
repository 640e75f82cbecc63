"""Captures of CUDA graphs are known, and kept off for a moment."""

import threading

import pytest
import torch

from overlaptop.agent.sources.graph_captures import GraphCaptureWatch

from .graphs import install_graphs


@pytest.fixture
def captures(monkeypatch) -> GraphCaptureWatch:
    install_graphs(monkeypatch)
    watch = GraphCaptureWatch()
    watch.install()
    assert torch.cuda.CUDAGraph.capture_begin.__doc__ == "Begin."
    return watch


def is_free(watch):
    with watch.held_off() as free:
        return free


@pytest.mark.parametrize("fault", [RuntimeError("no"), KeyboardInterrupt()])
def test_a_capture_that_could_not_begin_or_end_is_none(captures, fault):
    graph, begun = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    begun.capture_begin()
    graph.fault = begun.fault = fault
    for call in (graph.capture_begin, begun.capture_end):
        with pytest.raises(type(fault)):
            call()
    assert is_free(captures)


def test_a_capture_waits_until_it_is_no_longer_held_off(captures):
    graph = torch.cuda.CUDAGraph()
    thread = threading.Thread(target=graph.capture_begin)
    with captures.held_off() as free:
        assert free
        thread.start()
        thread.join(0.05)
        assert graph.calls == []
    thread.join(60)
    assert graph.calls
    assert not is_free(captures)
