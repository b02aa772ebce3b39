"""The maximum margin regulariser: large linear regions, far decision hyperplanes (section 4 of the paper).

    MMR(x) = 1/k_B sum_(i <= k_B) max(0, 1 - d_B^i(x) / gamma_B) + 1/k_D sum_(i <= k_D) max(0, 1 - d_D^i(x) / gamma_D)

with d_B^i the i-th smallest distance to a hyperplane of a unit and d_D^i the i-th smallest signed distance to a decision
hyperplane, both within the affine map of the region Q(x); k = 1 is equation 3 of the paper, larger k equation 4. The
activation pattern counts as a constant; the gradient is otherwise exact, and nothing is added to norms or distances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from relucert.core.errors import InvalidInput
from relucert.core.norms import check_p
from relucert.geometry.distances import decision_distances
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms.row_norms import BUDGET
from relucert.geometry.screening import Nearest, screened_distances, smallest
from relucert.networks.network import as_network


@dataclass(frozen=True, kw_only=True)
class MMRParameters:
    """The parameters of MMR: the norm p, the distances gamma_B and gamma_D, and the numbers k_B and k_D of hyperplanes.

    Without gamma_b the region term is left out (the paper's MMR-DD).
    """

    p: float
    gamma_b: float | None
    gamma_d: float
    k_b: int = 1
    k_d: int = 1

    def __post_init__(self) -> None:
        for name in ("gamma_b", "gamma_d"):
            value = getattr(self, name)
            if not (name == "gamma_b" and value is None) and not 0 < value < math.inf:
                raise InvalidInput(f"{name} must be a positive number, got {value!r}")


@dataclass(frozen=True)
class MMRTerms:
    """The region term and the decision term of MMR, and the distances d_B and (signed) d_D; each has shape (batch,).

    A d_D beyond gamma_d may be a lower bound.
    """

    region: Tensor
    decision: Tensor
    d_b: Tensor
    d_d: Tensor

    @property
    def total(self) -> Float[Tensor, " batch"]:
        """Region term plus decision term."""
        return self.region + self.decision


def mmr(
    net: nn.Module,
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

    gamma_b and gamma_d are distances in pixels beyond which a hyperplane costs nothing; k_b and k_d are the numbers of
    nearest hyperplanes that enter. k_d may be the number K of classes, as in the paper's runs: all K - 1 differences of
    logits enter, and their sum is divided by K. In train mode as in eval mode batch norm counts with its running statistics,
    and dropout does not count. A module is traced at every call: wrap it in a `Network` before training.

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10).eval(), rc.dataset("digits")
    >>> loss = mmr(net, data.x_test[:5], data.y_test[:5], p=2, gamma_b=0.3, gamma_d=0.3, k_b=10, k_d=10)
    >>> loss.shape, bool((loss >= 0).all())
    (torch.Size([5]), True)
    """
    p, net = check_p(p), as_network(net, x)
    net.check(x, y)
    parameters = MMRParameters(p=p, gamma_b=gamma_b, gamma_d=gamma_d, k_b=k_b, k_d=k_d)
    region, values, logits = LinearRegion.evaluated(net, x)
    return mmr_terms(region, region.margins_of(values, x), logits, y, parameters, budget).total


def mmr_terms(
    region: LinearRegion,
    margins: Float[Tensor, " batch hyperplanes"],
    logits: Float[Tensor, " batch classes"],
    y: Int[Tensor, " batch"],
    parameters: MMRParameters,
    budget: int = BUDGET,
) -> MMRTerms:
    """The terms of MMR from the values of a forward pass: `LinearRegion.evaluated`, and `region.margins_of`.

    Without gamma_b the region term and its distances are zero and are not computed.
    """
    p, k_b, k_d = parameters.p, parameters.k_b, parameters.k_d
    _check_count("k_d", k_d, logits.shape[1], "the number of classes")
    if parameters.gamma_b is not None:
        _check_count("k_b", k_b, margins.shape[1], "the number of hyperplanes")
        # Hyperplanes beyond gamma cost nothing, and only the nearest k enter: rows of all others are not made.
        wanted = Nearest(k_b, parameters.gamma_b), Nearest(k_d, parameters.gamma_d, smallest=False)
        units, classes = screened_distances(region, margins, logits, y, p, wanted, budget)
        d_b = smallest(units, k_b)
        region_term = (1 - d_b / parameters.gamma_b).clamp(min=0).sum(1) / k_b
        nearest = d_b.detach().amin(1)
    else:
        classes = decision_distances(region, logits, y, p, budget)
        region_term = nearest = logits.new_zeros(len(y))
    d_d = classes.topk(k_d, largest=False, sorted=False).values
    hinge = (1 - d_d / parameters.gamma_d).clamp(min=0)
    # A difference of logits that is a negative constant has no hyperplane, and no gradient.
    hinge = torch.where(d_d == -math.inf, torch.zeros_like(hinge), hinge)
    return MMRTerms(region_term, hinge.sum(1) / k_d, nearest, classes.detach().amin(1))


def _check_count(name: str, value: int, limit: int, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise InvalidInput(f"{name} must be a whole number in 1..{limit}, {what}, got {value!r}")
