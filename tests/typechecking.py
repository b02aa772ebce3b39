"""Shapes are checked at every call while tests run: jaxtyping's import hook puts `checked` around functions of the package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import beartype


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its shape annotations checked; other annotations are pyright's task."""
    shapes = {name: hint for name, hint in getattr(function, "__annotations__", {}).items() if "[Tensor, " in str(hint)}
    if not shapes:
        return function
    function.__annotations__ = shapes
    return beartype(function)
