"""Losses that attacks maximise: functions of the logits that grow towards a change of decision.

    ce        log sum_(s != y) exp f_s - f_y
    dlr       (max_(s != y) f_s - f_y) / (f_(1) - f_(3))
    targeted  (f_t - f_y) / (f_(1) - (f_(3) + f_(4)) / 2)

where f_(i) is the i-th largest logit. `ce` is an increasing function of the cross-entropy: its gradient has the same direction,
but does not vanish in float32 when the softmax saturates. The other two (Croce and Hein 2020) are invariant to scaling and
shifting of the logits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.networks.network import Network

Loss = Callable[[Tensor], Tensor]


def margin(logits: Float[Tensor, " batch classes"], y: Int[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """max_(s != y) f_s - f_y, positive if the predicted class is not y."""
    own = logits.gather(1, y[:, None])[:, 0]
    return logits.scatter(1, y[:, None], -torch.inf).amax(1) - own


def cross_entropy(logits: Float[Tensor, " batch classes"], y: Int[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """log sum_(s != y) exp f_s - f_y, whose gradient has the direction of that of the cross-entropy."""
    own = logits.gather(1, y[:, None])[:, 0]
    return logits.scatter(1, y[:, None], -torch.inf).logsumexp(1) - own


def ratio(
    logits: Float[Tensor, " batch classes"], y: Int[Tensor, " batch"], target: Int[Tensor, " batch"] | None = None
) -> Float[Tensor, " batch"]:
    """The difference of logits ratio (DLR), towards the best other class or a given target.

    With three classes the smallest logit replaces the missing f_(4); with two classes there is no denominator.
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
    # Equal logits have the spread 0: avoid a division by zero.
    tiny = 1e-12 * logits.detach().abs().amax(1) + torch.finfo(logits.dtype).tiny
    return won / torch.maximum(spread, tiny)


def ascent(
    net: Network, z: Float[Tensor, " batch *input"], loss: Loss
) -> tuple[Float[Tensor, " batch *input"], Float[Tensor, " batch"], Float[Tensor, " batch classes"]]:
    """The gradients (batch, *input) of the losses of all examples, the losses and the logits."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        logits = net(z)
        values = loss(logits)
        (gradient,) = torch.autograd.grad(values.sum(), z)
    return gradient, values.detach(), logits.detach()
