"""Target classes of targeted attacks, which run in one batch of rows `(targets x batch, *input)`.

The rows of all examples for the first target come first, then those for the second, and so on.
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


def class_distances(witnesses: Witnesses) -> Float[Tensor, " batch classes"]:
    """The distances of x to the decision hyperplanes of its region, without the box; inf for y itself."""
    region, _, logits = LinearRegion.evaluated(witnesses.net, witnesses.x)
    ahead = logits.gather(1, witnesses.y[:, None]) - logits
    distance = free_distance(ahead, decision_norms(region, witnesses.y, dual(witnesses.p)))
    return distance.scatter(1, witnesses.y[:, None], math.inf)


def nearest_classes(witnesses: Witnesses, count: int | None) -> Int[Tensor, " batch targets"]:
    """The classes in the order of `class_distances`, nearest first, at most `count`."""
    # Classes at distance inf stay candidates, unlike y itself.
    ranked = class_distances(witnesses).nan_to_num(posinf=1e30).scatter(1, witnesses.y[:, None], math.inf)
    most = ranked.shape[1] - 1
    return ranked.argsort(dim=1, stable=True)[:, : most if count is None else min(count, most)]


def lead(
    logits: Float[Tensor, " rows classes"], y: Int[Tensor, " rows"], target: Int[Tensor, " rows"]
) -> Float[Tensor, " rows"]:
    """f_t - f_y, positive if the target t has the larger logit."""
    return (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None]))[:, 0]


def repeated(values: Tensor, many: int) -> Tensor:
    """The entries of all examples, repeated once for each of `many` targets."""
    return values.repeat(many, *(1,) * (values.dim() - 1))
