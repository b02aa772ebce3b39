"""Checks of the description of a network in a file, before anything is built of it: sizes, shapes, and the work of a layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from relucert.core.errors import InvalidInput
from relucert.records.untrusted import shape_of

#: How many nodes a network may have, how many numbers all of them, and how many products an evaluation.
NODES = 10_000
NUMBERS = 2**27
PRODUCTS = 2**37
#: The largest number among the settings of a layer.
LARGEST = 2**31


def check_description(description: Any, tensors: Mapping[str, Tensor]) -> None:
    """Raise unless the description of a network can be built: nodes read earlier nodes, and neither size nor work explodes."""
    _require(isinstance(description, dict), "description must be an object", description)
    nodes, trainable = description.get("nodes"), description.get("trainable")
    _require(isinstance(nodes, list) and 2 <= len(nodes) <= NODES, f"nodes must be a list of 2 to {NODES}", nodes)
    _require(
        isinstance(trainable, list) and all(isinstance(name, str) for name in trainable),
        "trainable must be texts",
        trainable,
    )
    _require(
        description.get("input_shape") == nodes[0].get("shape"),
        "input_shape must be that of the first node",
        description,
    )
    numbers = products = 0
    for place, node in enumerate(nodes):
        _check_node(place, node, tensors)
        size = math.prod(shape_of(node["shape"], f"node {place}"))
        numbers += size
        products += size * _terms(node, nodes, tensors) if place else 0
        _require(numbers <= NUMBERS, f"nodes must have at most {NUMBERS} numbers together", numbers)
        _require(products <= PRODUCTS, f"nodes must take at most {PRODUCTS} products together", products)


def _check_node(place: int, node: Any, tensors: Mapping[str, Tensor]) -> None:
    """Raise unless a node has the fields of one, and reads nodes before it and tensors of the file."""
    what = f"node {place}"
    _require(
        isinstance(node, dict) and isinstance(node.get("kind"), str), f"{what} must be an object with a kind", node
    )
    inputs: Any = node.get("inputs")
    _require(
        isinstance(inputs, list) and all(type(source) is int and 0 <= source < place for source in inputs),
        f"{what} must read earlier nodes", inputs,
    )  # fmt: skip
    if place == 0:
        return
    _require(len(inputs) > 0, f"{what} must read a node", inputs)
    settings: Any = node.get("settings")
    used: Any = node.get("tensors")
    _require(isinstance(settings, dict), f"{what} must have settings", settings)
    _require(
        all(_bounded(value) for value in settings.values()), f"{what} must have settings below {LARGEST}", settings
    )
    _require(
        isinstance(used, dict) and all(isinstance(name, str) and name in tensors for name in used.values()),
        f"{what} must use tensors of the file", used,
    )  # fmt: skip


def _bounded(value: Any) -> bool:
    """Whether a setting is None, a truth value, a text, a number of bounded size, or a list of such numbers."""
    if isinstance(value, list):
        return len(value) <= NODES and all(_bounded(part) and not isinstance(part, list) for part in value)
    return value is None or isinstance(value, str) or (isinstance(value, int | float) and abs(value) < LARGEST)


def _terms(node: dict[str, Any], nodes: list[dict[str, Any]], tensors: Mapping[str, Tensor]) -> int:
    """A bound of the number of terms in every entry of a node."""
    weight = tensors.get(node["tensors"].get("weight", ""))
    if weight is not None and weight.dim() > 1:
        return weight[0].numel() + 1
    kernel = node["settings"].get("kernel")
    if isinstance(kernel, list) and all(isinstance(side, int) for side in kernel):
        return abs(math.prod(kernel)) + 1
    if "size" in node["settings"] or "axes" in node["settings"]:
        return math.prod(nodes[node["inputs"][0]]["shape"]) // max(1, math.prod(node["shape"])) * 4 + 4
    return len(node["inputs"])


def _require(holds: bool, rule: str, value: Any) -> None:
    if not holds:
        text = repr(value)
        raise InvalidInput(f"{rule}, got {text if len(text) <= 80 else text[:77] + '...'}")
