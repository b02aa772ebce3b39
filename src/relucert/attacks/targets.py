"""Targets: the classes that an attack aims at one by one, all at once as rows `(targets x batch, *input)`.

The rows are those of all examples for the first target, then those for the second, and so on.
"""

from __future__ import annotations

import math

from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.norms import dual
from relucert.geometry.hyperplane import free_distance
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms.row_norms import decision_norms
from relucert.geometry.witness import Witnesses


def class_distances(found: Witnesses) -> Float[Tensor, " batch classes"]:
    """The distances of x to the decision hyperplanes of its own region, without the box; inf for y itself."""
    region, _, logits = LinearRegion.evaluated(found.net, found.x)
    ahead = logits.gather(1, found.y[:, None]) - logits
    distance = free_distance(ahead, decision_norms(region, found.y, dual(found.p)))
    return distance.scatter(1, found.y[:, None], math.inf)


def nearest_classes(found: Witnesses, count: int | None) -> Int[Tensor, " batch targets"]:
    """The classes to which x is nearest where the network is linear around it, nearest first, at most `count`."""
    # A class out of reach is still one, unlike y itself.
    ranked = class_distances(found).nan_to_num(posinf=1e30).scatter(1, found.y[:, None], math.inf)
    most = ranked.shape[1] - 1
    return ranked.argsort(dim=1, stable=True)[:, : most if count is None else min(count, most)]


def lead(
    logits: Float[Tensor, " rows classes"], y: Int[Tensor, " rows"], target: Int[Tensor, " rows"]
) -> Float[Tensor, " rows"]:
    """By how much the target wins against y."""
    return (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None]))[:, 0]


def repeated(values: Tensor, many: int) -> Tensor:
    """The entries of all examples, once for each of `many` targets."""
    return values.repeat(many, *(1,) * (values.dim() - 1))
