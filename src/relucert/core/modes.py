"""Gradients although the caller has switched them off: bounds and attacks are optimised by them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

Given = ParamSpec("Given")
Found = TypeVar("Found")


def outside_inference(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """The function for callers within `torch.inference_mode`, too: it leaves that, and takes copies of tensors made there.

    >>> @outside_inference
    ... def slope(x):
    ...     with torch.enable_grad():
    ...         return torch.autograd.grad((x.requires_grad_() ** 2).sum(), x)[0]
    >>> with torch.inference_mode():
    ...     slope(torch.ones(2))
    tensor([2., 2.])
    """

    @wraps(function)
    def called(*given: Given.args, **named: Given.kwargs) -> Found:
        if not torch.is_inference_mode_enabled():
            return function(*given, **named)
        with torch.inference_mode(False), torch.no_grad():
            return function(*map(_own, given), **{name: _own(value) for name, value in named.items()})  # type: ignore[arg-type]

    return called


def _own(value: object) -> object:
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value
