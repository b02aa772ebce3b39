"""All families of layers, and what they declare together."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from relucert.networks.layers import (
    activations,
    arithmetic,
    clipping,
    entries,
    linear,
    normalisation,
    pooling,
    resizing,
    shapes,
    transposed,
)
from relucert.networks.layers.family import Family, ModuleReader, Restored

FAMILIES: tuple[Family, ...] = (
    linear.FAMILY,
    transposed.FAMILY,
    normalisation.FAMILY,
    pooling.FAMILY,
    activations.FAMILY,
    clipping.FAMILY,
    shapes.FAMILY,
    entries.FAMILY,
    resizing.FAMILY,
    arithmetic.FAMILY,
)


def module_reader(kind: type) -> ModuleReader | None:
    """The reader of a class of torch modules or of the nearest class that it derives from, None if there is none."""
    readers = _joined([family.modules for family in FAMILIES])
    return next((readers[parent] for parent in kind.__mro__ if parent in readers), None)


def reader(target: Any) -> Callable[..., Any] | None:
    """The reader of a function, or of a tensor method by its name; None if there is none."""
    tables = [family.methods if isinstance(target, str) else family.functions for family in FAMILIES]
    return _joined(tables).get(target)


def overwrites(target: Any) -> bool:
    """Whether a function or a tensor method overwrites its first argument."""
    return any(target in family.inplace for family in FAMILIES)


def restoring() -> Mapping[str, Callable[[Restored], nn.Module]]:
    """How a checkpoint restores a node, by the node's kind."""
    return _joined([family.restored for family in FAMILIES])


def supported() -> str:
    """All that tracing understands, in words."""
    layers = ", ".join(module.__name__ for family in FAMILIES for module in family.modules)
    forms = ", ".join(form for family in FAMILIES for form in family.forms)
    return f"Supported are {layers}, their functional forms, {forms}."


def _joined(tables: list[Any]) -> Any:
    return ChainMap(*map(dict, tables))
