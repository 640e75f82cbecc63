"""CUDA graphs without a GPU."""

import torch


def install_graphs(patch):
    """Put them in torch's place: a class of its own for each test, which hooks may change."""

    class Graph:
        captures = False

        def capture_begin(self):
            self.captures = True

        def capture_end(self):
            self.captures = False

    patch.setattr(torch.cuda, "CUDAGraph", Graph)
