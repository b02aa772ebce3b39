"""The cross-Lipschitz regulariser of Hein and Andriushchenko (NeurIPS 2017), with which the paper compares MMR.

    Omega(x) = 1/K^2 sum_(l, m) ||grad f_l(x) - grad f_m(x)||_2^2

The gradients of the logits at x are the rows V_l of the region's affine map: this is the local formulation, defined for
every network. Since sum_(l, m) ||V_l - V_m||^2 = 2 K sum_l ||V_l - mean V||^2, K rows suffice. One hidden layer needs no
rows: with weights U of the layer, W of the logits, gates g and C = W - mean W,

    Omega(x) = 2/K  g^T ((U U^T) * (C^T C)) g,

with one matrix for all examples. This is the formula of the original article.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from relucert.geometry.region import LinearRegion
from relucert.networks.affine_map import Step, chain
from relucert.networks.network import as_network


def cross_lipschitz(net: nn.Module, x: Float[Tensor, " batch *input"]) -> Float[Tensor, " batch"]:
    """Omega of every example, differentiable in the weights for a fixed activation pattern.

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10).eval(), rc.dataset("digits")
    >>> cross_lipschitz(net, data.x_test[:5]).shape
    torch.Size([5])
    """
    net = as_network(net, x)
    net.check(x)
    net.require_eval("cross_lipschitz")
    net.require_classes("cross_lipschitz")
    return cross_lipschitz_of(LinearRegion.at(net, x))


def cross_lipschitz_of(region: LinearRegion) -> Float[Tensor, " batch"]:
    """Omega from linear regions that are known already."""
    steps = chain(region.net.graph)
    if steps is not None and len(steps) == 2 and all(step.conv is None for step in steps):
        return _one_hidden_layer(region, steps)
    classes = region.net.classes
    eye = torch.eye(classes, dtype=region.net.dtype, device=region.net.device)
    centred = eye - 1 / classes
    rows = region.logits_rows(centred.expand(len(region), classes, classes))
    return 2 / classes * rows.square().flatten(1).sum(1)


def _one_hidden_layer(region: LinearRegion, steps: list[Step]) -> Float[Tensor, " batch"]:
    inner, outer = (step.weight() for step in steps)
    centred = outer - outer.mean(0)
    (node,) = region.net.graph.relus
    gate = node.op.gate(region.patterns[0], region.net.dtype).flatten(1)
    form = (inner @ inner.T) * (centred.T @ centred)
    return 2 / len(outer) * ((gate @ form) * gate).sum(1)
