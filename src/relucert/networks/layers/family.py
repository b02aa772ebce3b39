"""What a family of layers declares, for tracing and for checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from relucert.networks.build.values import Held, Traced
from relucert.networks.nodes import Source

#: Called with the builder, the torch module and the value that the module reads.
ModuleReader = Callable[[Any, Any, Traced], Traced]


@dataclass(frozen=True)
class Restored:
    """A node as a checkpoint describes it: its numbers, its tensors by role, and the shapes of its inputs."""

    settings: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    in_shapes: Sequence[Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Family:
    """Layers that belong together.

    `modules`, `functions` and `methods` have a reader for every torch module, function and tensor method: it adds nodes to a
    builder and returns the value of the last. `inplace` are functions and methods that overwrite their first argument.
    `restored` makes a torch module from the description of a node, by the node's kind. `forms` names what can be written
    without a torch module, for the message about layers that are not supported.
    """

    modules: Mapping[type[nn.Module], ModuleReader] = field(default_factory=dict)
    functions: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    methods: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    inplace: frozenset[Any] = frozenset()
    restored: Mapping[str, Callable[[Restored], nn.Module]] = field(default_factory=dict)
    forms: tuple[str, ...] = ()


def pair(value: Any) -> tuple[int, int]:
    """A number for both axes, or one for each."""
    if isinstance(value, list | tuple):
        return (int(value[0]), int(value[-1]))
    return (int(value), int(value))


def arguments(defaults: Mapping[str, Any], args: Sequence[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name: `args` in the order of `defaults`, then `given`; TypeError for what does not fit.

    >>> arguments({"stride": 1, "padding": 0}, [2], {})
    {'stride': 2, 'padding': 0}
    """
    names = list(defaults)
    if len(args) > len(names):
        raise TypeError(f"takes {len(names)} arguments behind the input, got {len(args)}")
    found = dict(zip(names, args, strict=False))
    for name, value in given.items():
        if name not in defaults or name in found:
            raise TypeError(f"unexpected argument {name!r}")
        found[name] = value
    return {**defaults, **found}


def held(part: nn.Module, name: str) -> Held | None:
    """A parameter or a buffer of a module, None where the module has none of that name."""
    return None if getattr(part, name, None) is None else Held(Source(part, name))


def with_tensors(layer: nn.Module, tensors: Mapping[str, Tensor], names: Mapping[str, str] | None = None) -> nn.Module:
    """A layer that holds the given tensors: parameters as parameters, others as buffers."""
    for role, value in tensors.items():
        name = (names or {}).get(role, role)
        delattr(layer, name)
        if isinstance(value, nn.Parameter):
            layer.register_parameter(name, value)
        else:
            layer.register_buffer(name, value)
    return layer


def hold(layer: nn.Module, name: str, constant: Tensor | float) -> None:
    """Give a layer a constant: a parameter, a buffer or a number."""
    if isinstance(constant, Tensor) and not isinstance(constant, nn.Parameter):
        layer.register_buffer(name, constant)
    else:
        setattr(layer, name, constant)
