"""What a model that is split over ranks computes, by one process that has all of it.

Each gives rank 0's figures of each step. Random numbers depend on the device that draws them.
"""

import torch
from torch.nn import functional


def tensor_parallel(options, steps, ranks, device):
    """Layers with whole weights."""
    from overlaptop.workloads import tensor_parallel as workload

    width, hidden = options.width, 4 * options.width
    random = torch.Generator(device).manual_seed(options.seed)
    weights = []
    for _ in range(options.layers):
        weights.append(torch.randn(width, hidden, generator=random, device=device) / width**0.5)
        weights.append(torch.randn(hidden, width, generator=random, device=device) / hidden**0.5)
    count = options.requests if options.decode else options.tokens
    replicas = []
    for replica in range(options.replicas):
        random = torch.Generator(device).manual_seed(options.seed * options.replicas + replica + 1)
        replicas.append(torch.randn(count, width, generator=random, device=device))
    # What rank 0 has of its replica's tokens.
    split = ranks // options.replicas if options.sequence_parallel else 1
    figures = []
    for _ in range(steps):
        weights = [each.requires_grad_() for each in weights]
        made = []
        for tokens in replicas:
            for up, down in zip(weights[::2], weights[1::2], strict=True):
                product = functional.layer_norm(tokens, (width,)) @ up
                tokens = tokens + functional.gelu(product) @ down
            made.append(tokens)
        figures.append(made[0][: count // split].square().mean().item())
        if options.decode:
            replicas = [functional.layer_norm(tokens, (width,)).detach() for tokens in made]
            continue
        sum(tokens.square().mean() / len(made) for tokens in made).backward()
        weights = [(each - workload.LEARNING_RATE * each.grad).detach() for each in weights]
    return figures


def pipeline(options, steps, ranks, device):
    """All layers in one place."""
    from overlaptop.workloads import job
    from overlaptop.workloads import pipeline as workload

    alone = workload.build(options, job.Place(0, 1, torch.device(device)))
    model = torch.nn.Sequential(*alone)
    random = torch.Generator(device).manual_seed(options.seed + 1)
    batch, target = torch.randn(2, options.batch, options.width, generator=random, device=device)
    losses = []
    for _ in range(steps):
        model.zero_grad()
        loss = functional.mse_loss(model(batch), target)
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= workload.LEARNING_RATE * parameter.grad
    return losses


def expert_parallel(options, steps, ranks, device):
    """All experts in one place."""
    from overlaptop.workloads import expert_parallel as workload
    from overlaptop.workloads import job

    places = [job.Place(rank, ranks, torch.device(device)) for rank in range(ranks)]
    layers = [
        [workload.Layer(options, place, number) for place in places] for number in range(options.layers)
    ]
    randoms = [torch.Generator().manual_seed(options.seed * ranks + rank) for rank in range(ranks)]
    rows = [torch.randn(options.tokens, options.width, generator=random).to(device) for random in randoms]
    drawn = workload.chances(ranks, options.skew)
    losses = []
    for _ in range(steps):
        of_ranks = []
        for random, tokens in zip(randoms, rows, strict=True):
            for of_rank in layers:
                experts = drawn.multinomial(options.tokens, replacement=True, generator=random).to(device)
                normed = functional.layer_norm(tokens, tokens.shape[-1:])
                shared = of_rank[0].shared
                tokens = tokens + functional.gelu(normed @ shared.up) @ shared.down
                for number, layer in enumerate(of_rank):
                    made = functional.gelu(normed @ layer.own.up) @ layer.own.down
                    tokens = tokens + made * (experts == number)[:, None]
            of_ranks.append(tokens.square().mean())
        losses.append(of_ranks[0].item())
        parameters = [
            each
            for of_rank in layers
            for layer in (of_rank[0].shared, *(layer.own for layer in of_rank))
            for each in layer.parameters()
        ]
        gradients = torch.autograd.grad(sum(of_ranks) / ranks, parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter -= workload.LEARNING_RATE * gradient
    return losses


def gemm_overlap(options, steps, ranks, device):
    """Both products with whole operands."""
    random = torch.Generator(device).manual_seed(options.seed)

    def whole(rows, columns):
        return torch.randn(rows, columns, generator=random, device=device) / rows**0.5

    m, n, k = options.m, options.n, options.k
    tokens, up, hidden, down = whole(m, k), whole(k, n), whole(m, n), whole(n, k)
    product = tokens @ up.chunk(ranks, 1)[0]
    own = (hidden @ down).chunk(ranks)[0]
    return [(product.abs().mean() + own.abs().mean()).item()] * steps
