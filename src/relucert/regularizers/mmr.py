"""The maximum margin regulariser: large linear regions, far decision hyperplanes (section 4 of the paper).

    MMR(x) = 1/k_B sum_(i <= k_B) max(0, 1 - d_B^i(x) / gamma_B) + 1/k_D sum_(i <= k_D) max(0, 1 - d_D^i(x) / gamma_D)

with the i-th smallest distances to faces of the region Q(x) and, signed, to decision hyperplanes; k = 1 is equation 3 of the
paper, larger k equation 4. The activation pattern is a constant, the gradient is otherwise exact, and nothing is added to
norms or distances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.errors import InvalidInput
from relucert.core.norms import check_p
from relucert.geometry.distances import decision_distances, free_distances
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms.row_norms import BUDGET
from relucert.networks.network import Network


@dataclass(frozen=True)
class MMR:
    """Both parts of the regulariser, each (batch,), and the distances d_B and signed d_D that it saw."""

    region: Tensor
    decision: Tensor
    d_b: Tensor
    d_d: Tensor

    @property
    def total(self) -> Float[Tensor, " batch"]:
        """Region part plus decision part."""
        return self.region + self.decision


def mmr(
    net: Network,
    x: Float[Tensor, " batch *input"],
    y: Int[Tensor, " batch"],
    p: float,
    gamma_b: float,
    gamma_d: float,
    k_b: int = 1,
    k_d: int = 1,
    budget: int = BUDGET,
) -> Float[Tensor, " batch"]:
    """The maximum margin regulariser of every example, differentiable in the weights.

    k_d may be the number of classes, as in the paper's runs: all differences enter, and their sum is divided by k_d.

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10).eval(), rc.dataset("digits")
    >>> loss = mmr(net, data.x_test[:5], data.y_test[:5], p=2, gamma_b=0.3, gamma_d=0.3, k_b=10, k_d=10)
    >>> loss.shape, bool((loss >= 0).all())
    (torch.Size([5]), True)
    """
    p = check_p(p)
    net.check(x, y)
    net.require_eval("mmr")
    region, values, logits = LinearRegion.evaluated(net, x)
    margins = region.margins_of(values, x)
    return mmr_parts(region, margins, logits, y, p, gamma_b, gamma_d, k_b, k_d, budget=budget).total


def mmr_parts(
    region: LinearRegion,
    margins: Float[Tensor, " batch faces"],
    logits: Float[Tensor, " batch classes"],
    y: Int[Tensor, " batch"],
    p: float,
    gamma_b: float,
    gamma_d: float,
    k_b: int = 1,
    k_d: int = 1,
    *,
    faces: bool = True,
    budget: int = BUDGET,
) -> MMR:
    """The regulariser from values that a forward pass has made already (`LinearRegion.evaluated`).

    Without `faces` the region part is zero and its distances are not computed, the paper's MMR-DD.
    """
    for name, value in (("gamma_b", gamma_b), ("gamma_d", gamma_d)):
        if not 0 < value < math.inf:
            raise InvalidInput(f"{name} must be a positive number, got {value!r}")
    _check_count("k_d", k_d, logits.shape[1], "the number of classes")
    if faces:
        _check_count("k_b", k_b, margins.shape[1], "the number of faces")
        near, classes = free_distances(region, margins, logits, y, p, budget)
        d_b = near.topk(k_b, largest=False, sorted=False).values
        pushed = (1 - d_b / gamma_b).clamp(min=0).sum(1) / k_b
        nearest = d_b.detach().amin(1)
    else:
        classes = decision_distances(region, logits, y, p, budget)
        pushed = nearest = logits.new_zeros(len(y))
    d_d = classes.topk(k_d, largest=False, sorted=False).values
    hinge = (1 - d_d / gamma_d).clamp(min=0)
    # A difference that is a negative constant has no hyperplane, and nothing in the weights to move it by.
    hinge = torch.where(d_d == -math.inf, torch.zeros_like(hinge), hinge)
    return MMR(pushed, hinge.sum(1) / k_d, nearest, classes.detach().amin(1))


def _check_count(name: str, value: int, limit: int, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise InvalidInput(f"{name} must be a whole number in 1..{limit}, {what}, got {value!r}")
