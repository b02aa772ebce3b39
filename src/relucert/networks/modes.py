"""Which gradients torch computes for a while: weights as constants, and gradients inside `torch.inference_mode`.

Bounds and attacks are optimised by gradients, over something else than the weights, even if the caller disabled gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@contextmanager
def frozen_weights(module: nn.Module) -> Iterator[None]:
    """Switch the gradients of all parameters off, and restore each afterwards.

    >>> layer = nn.Linear(2, 1)
    >>> with frozen_weights(layer):
    ...     layer.weight.requires_grad
    False
    >>> layer.weight.requires_grad
    True
    """
    before = [(weight, weight.requires_grad) for weight in module.parameters()]
    try:
        for weight, _ in before:
            weight.requires_grad_(False)
        yield
    finally:
        for weight, required in before:
            weight.requires_grad_(required)


def outside_inference(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a function that needs gradients so that it can be called inside `torch.inference_mode`.

    The call leaves inference mode, and arguments that are inference tensors are copied.

    >>> @outside_inference
    ... def slope(x):
    ...     with torch.enable_grad():
    ...         return torch.autograd.grad((x.requires_grad_() ** 2).sum(), x)[0]
    >>> with torch.inference_mode():
    ...     slope(torch.ones(2))
    tensor([2., 2.])
    """

    @wraps(function)
    def called(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return function(*map(_own, args), **{name: _own(value) for name, value in kwargs.items()})  # type: ignore[arg-type]

    return called


def _own(value: object) -> object:
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value
