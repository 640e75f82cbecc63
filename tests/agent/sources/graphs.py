"""CUDA graphs without a GPU."""

import torch


class FakeGraph:
    def __init__(self):
        self.calls = []
        self.fault = None

    def capture_begin(self, pool=None, capture_error_mode="global"):
        """Begin."""
        self.calls.append(("begin", pool, capture_error_mode))
        if self.fault:
            raise self.fault

    def capture_end(self):
        self.calls.append("end")
        if self.fault:
            raise self.fault


def install_graphs(patch):
    """Put them in torch's place: a class of its own for each test, which hooks may change."""
    patch.setattr(torch.cuda, "CUDAGraph", type("CUDAGraph", (FakeGraph,), dict(FakeGraph.__dict__)))
