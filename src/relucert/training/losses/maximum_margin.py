"""Cross-entropy plus the maximum margin regulariser (section 4 of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from relucert.geometry.region import LinearRegion
from relucert.networks.network import Network
from relucert.regularizers.mmr import MMRParameters, mmr_terms
from relucert.training._schedules import Schedule, ramp
from relucert.training.losses.loss import ExampleLosses, StepContext, Terms, depends_on_mode

Mix = Callable[[Network, Tensor, Tensor, torch.Generator], Tensor]
#: Given the numbers of hyperplanes and of classes: the name, the weight and the parameters of each regulariser in a loss.
Weighted = Callable[[int, int], Mapping[str, tuple[float, MMRParameters]]]


@dataclass(frozen=True, kw_only=True)
class MaximumMargin:
    """Minimise cross-entropy + lam * MMR, both on the same batch; `mix` replaces half of it by adversarial points.

    Without gamma_b the region term is left out (MMR-DD, Table 2 of the paper).
    """

    p: float
    lam: float
    gamma_b: float | None
    gamma_d: float
    schedule: Schedule
    mix: Mix | None = None

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        clean = len(x) if self.mix is None else len(x) - len(x) // 2
        x = x if self.mix is None else self.mix(net, x, y, context.generator)
        return margin_losses(net, x, y, self.weighted(context.progress)).terms(y, clean)

    def weighted(self, progress: float) -> Weighted:
        """The weight and the parameters of the regulariser at a share of the run."""

        def at(hyperplanes: int, classes: int) -> dict[str, tuple[float, MMRParameters]]:
            k_b, k_d = self.schedule.counts(progress, hyperplanes, classes)
            parameters = MMRParameters(p=self.p, gamma_b=self.gamma_b, gamma_d=self.gamma_d, k_b=k_b, k_d=k_d)
            return {"": (ramp(progress) * self.lam, parameters)}

        return at


def margin_losses(net: Network, x: Tensor, y: Tensor, weighted: Weighted) -> ExampleLosses:
    """Cross-entropy + the weighted sum of maximum margin regularisers, for every example."""
    penalty, parts, logits = margin_penalties(net, x, y, weighted)
    # The regulariser is about the network in eval mode; layers that depend on the mode need a second pass.
    outputs = net(x) if depends_on_mode(net) else logits
    loss = F.cross_entropy(outputs, y, reduction="none")
    return ExampleLosses(loss + penalty, {"cross-entropy": loss.detach().mean()} | parts, outputs)


def margin_penalties(
    net: Network, x: Tensor, y: Tensor, weighted: Weighted
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """The weighted sum of maximum margin regularisers for every example, its named parts, and the logits in eval mode."""
    region, values, logits = LinearRegion.evaluated(net, x)
    margins = region.margins_of(values, x)
    penalty, parts = logits.new_zeros(len(x)), {}
    for name, (weight, parameters) in weighted(region.count, net.classes).items():
        terms = mmr_terms(region, margins, logits, y, parameters)
        parts[f"decision{name}"] = terms.decision.detach().mean()
        if parameters.gamma_b is not None:
            parts[f"region{name}"] = terms.region.detach().mean()
            parts[f"exact{name}"] = (terms.d_d <= terms.d_b).to(logits.dtype).mean()
        penalty = penalty + weight * terms.total
    return penalty, parts, logits
