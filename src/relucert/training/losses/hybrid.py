"""The maximum margin regulariser added to a loss between adversarial training and training against intervals."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from relucert.networks.network import Network
from relucert.training.losses.expressive import Expressive
from relucert.training.losses.loss import StepContext, Terms
from relucert.training.losses.maximum_margin import MaximumMargin, margin_penalties


@dataclass(frozen=True, kw_only=True)
class Hybrid:
    """Minimise a loss of `expressive` + lam * MMR at the examples themselves: large regions, far decision hyperplanes."""

    expressive: Expressive
    margin: MaximumMargin

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        terms = self.expressive(net, x, y, context)
        penalty, parts, _ = margin_penalties(net, x, y, self.margin.weighted(context.progress))
        return replace(terms, loss=terms.loss + penalty.mean(), parts=terms.parts | parts)
