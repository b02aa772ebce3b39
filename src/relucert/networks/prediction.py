"""Predictions on many inputs, a piece at a time so that memory stays small."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.core.errors import InvalidInput
from relucert.networks.network import Network

PIECE = 1000


@torch.no_grad()
def predictions(net: Network, x: Float[Tensor, " batch *input"]) -> Int[Tensor, " batch"]:
    """The predicted class of every input."""
    net.check(x)
    return torch.cat([net.predict(piece) for piece in x.split(PIECE)]) if len(x) else x.new_zeros(0, dtype=torch.long)


def error(net: Network, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"]) -> float:
    """The share of inputs whose predicted class is not their label."""
    if len(x) == 0:
        raise InvalidInput("x must hold at least one example to have an error; found none")
    net.check(x, y)
    net.require_eval("measuring an error")
    return int((predictions(net, x) != y).sum()) / len(y)


def changed(logits: Float[Tensor, " batch classes"], y: Int[Tensor, " batch"]) -> Bool[Tensor, " batch"]:
    """Where another class than y wins by more than rounding.

    The same input in another batch may come out some units in the last place apart, so a narrower win is none.
    """
    own = logits.gather(1, y[:, None])[:, 0]
    other = logits.scatter(1, y[:, None], -torch.inf).amax(1)
    slack = 32 * torch.finfo(logits.dtype).eps * logits.abs().amax(1)
    return other - own > slack
