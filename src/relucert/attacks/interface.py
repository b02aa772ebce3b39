"""`attack`: the problem (a ball around every input), whoever solves it."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.attacks.pgd import PGD
from relucert.core.ball import Ball
from relucert.core.methods import Method, parse
from relucert.core.results import Adversarial
from relucert.networks.network import Network

FIXED: dict[str, type[PGD]] = {"pgd": PGD}


def attack(
    net: Network,
    x: Float[Tensor, " batch *input"],
    y: Int[Tensor, " batch"] | None,
    ball: Ball,
    method: str | Method = "pgd",
    generator: torch.Generator | None = None,
) -> Adversarial:
    """Look for a point of another class than y (by default: the predicted one) in the ball around every input.

    Every point that is returned as a success lies in ball and box, changes the decision when the network is run again,
    and has its distance recomputed; an input that is misclassified already has distance 0, a failure an infinite one.

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10).eval(), rc.dataset("digits")
    >>> found = attack(net, data.x_test[:20], data.y_test[:20], rc.Ball(2, 1.0), rc.PGD(steps=10))
    >>> bool((net.predict(found.x)[found.success] != data.y_test[:20][found.success]).all())
    True
    """
    chosen = parse(method, FIXED)
    net.check(x, y)
    net.require_eval("an attack")
    ball.check(x)
    with torch.no_grad():
        labels = net.predict(x) if y is None else y
    generator = generator or torch.Generator(device=x.device).manual_seed(chosen.seed)
    return chosen.attack(net, x, labels, ball, generator)
