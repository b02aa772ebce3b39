"""Gradients inside `torch.inference_mode`: bounds and attacks are optimised by gradients even if the caller disabled them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


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
