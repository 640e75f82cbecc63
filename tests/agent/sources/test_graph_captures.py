"""Captures of CUDA graphs are known, and kept off for a moment."""

import threading

import torch

from overlaptop.agent.sources.graph_captures import GraphCaptureWatch

from .graphs import install_graphs


def test_a_capture_waits_until_it_is_no_longer_held_off(monkeypatch):
    install_graphs(monkeypatch)
    captures = GraphCaptureWatch()
    captures.install()
    graph = torch.cuda.CUDAGraph()
    thread = threading.Thread(target=graph.capture_begin)
    with captures.held_off() as free:
        assert free
        thread.start()
        thread.join(0.05)
        assert not graph.captures
    thread.join(60)
    assert graph.captures
    with captures.held_off() as free:
        assert not free
