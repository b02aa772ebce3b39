"""What attacks climb: functions of the logits that grow as the decision comes closer to a change.

    ce        log sum_(s != y) exp f_s - f_y
    dlr       (max_(s != y) f_s - f_y) / (f_(1) - f_(3))
    targeted  (f_t - f_y) / (f_(1) - (f_(3) + f_(4)) / 2)

where f_(i) is the i-th largest logit. The first grows where the cross-entropy grows and has the direction of its gradient, and
unlike that of a saturated softmax its gradient does not vanish in float32. The other two (Croce and Hein 2020) do not change
when the logits are scaled or shifted.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.networks.network import Network

Loss = Callable[[Tensor], Tensor]


def margin(logits: Float[Tensor, " batch classes"], y: Int[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """By how much the best other class wins: positive where the decision is another than y."""
    own = logits.gather(1, y[:, None])[:, 0]
    return logits.scatter(1, y[:, None], -torch.inf).amax(1) - own


def cross_entropy(logits: Float[Tensor, " batch classes"], y: Int[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """A smooth margin over all other classes, with the direction of the cross-entropy's gradient."""
    own = logits.gather(1, y[:, None])[:, 0]
    return logits.scatter(1, y[:, None], -torch.inf).logsumexp(1) - own


def ratio(
    logits: Float[Tensor, " batch classes"], y: Int[Tensor, " batch"], target: Int[Tensor, " batch"] | None = None
) -> Float[Tensor, " batch"]:
    """The difference of logits ratio, towards the best other class or a given one.

    With too few classes for the denominator the last logit takes the missing places; of two classes the difference alone
    is left.
    """
    classes = logits.shape[1]
    if target is None:
        won = margin(logits, y)
    else:
        won = (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None]))[:, 0]
    if classes < 3:
        return won
    ranked = logits.sort(1, descending=True).values
    third = ranked[:, 2] if target is None else (ranked[:, 2] + ranked[:, min(3, classes - 1)]) / 2
    spread = ranked[:, 0] - third
    # Equal logits have no spread, and all that is asked of the scale is that it be one.
    tiny = 1e-12 * logits.detach().abs().amax(1) + torch.finfo(logits.dtype).tiny
    return won / torch.maximum(spread, tiny)


def ascent(
    net: Network, z: Float[Tensor, " batch *input"], loss: Loss
) -> tuple[Float[Tensor, " batch *input"], Float[Tensor, " batch"], Float[Tensor, " batch classes"]]:
    """The gradient of every example's loss, the losses and the logits."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        logits = net(z)
        values = loss(logits)
        (gradient,) = torch.autograd.grad(values.sum(), z)
    return gradient, values.detach(), logits.detach()
