"""The graph under construction: what the steps of a trace add their nodes to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from relucert.core.errors import InvalidInput, UnsupportedLayer
from relucert.networks.build.values import BATCH, Held, Traced
from relucert.networks.layers.table import supported
from relucert.networks.nodes import Affine, Literal, Shape, Source, Switching
from relucert.networks.traversal import Node

#: Layers and functions that are curved: no combination of ReLUs computes them.
NOT_PIECEWISE_AFFINE = frozenset({
    "sigmoid", "logsigmoid", "tanh", "softmax", "logsoftmax", "softmin", "log_softmax", "gelu", "silu", "swish",
    "mish", "elu", "celu", "selu", "softplus", "softsign", "tanhshrink", "hardswish", "glu", "exp", "log", "sqrt",
    "rsqrt", "pow", "square", "sin", "cos", "erf", "norm", "layernorm", "layer_norm", "groupnorm", "group_norm",
    "instancenorm1d", "instancenorm2d", "instance_norm", "rmsnorm", "localresponsenorm", "multiheadattention",
    "scaled_dot_product_attention", "lstm", "gru", "rnn",
})  # fmt: skip
WAY_OUT = (
    "Replace such a step by ReLUs, linear layers and pools, or end the module before it (logits need no softmax); a piecewise "
    "affine layer that is missing is added as docs/add-a-layer.md shows"
)


def _why(word: str) -> str:
    if word.lower() in NOT_PIECEWISE_AFFINE:
        return "it is not piecewise affine"
    return "relucert has no reader for it"


def refusal(reasons: list[str]) -> str:
    """One message about all steps that are refused."""
    head = "" if len(reasons) == 1 else f"{len(reasons)} steps are not supported: "
    return f"{head}{'; '.join(reasons)}. {WAY_OUT}. {supported()}"


class Builder:
    """The nodes made so far, and the step of the recording that is being understood."""

    def __init__(self, module: nn.Module, input_shape: Shape, like: Tensor):
        self.module = module
        self.nodes: list[Node] = [Node(0, "input", None, (), input_shape)]
        self.current: fx.Node | None = None
        generator = torch.Generator().manual_seed(0)
        sample = torch.rand(BATCH, *input_shape, generator=generator, dtype=torch.float64)
        self.input = Traced(0, sample.to(like))

    def add(self, op: Affine | Switching, *inputs: Traced, name: str | None = None) -> Traced:
        """Append a node and run it on the small batch."""
        label = name or self.where()
        with torch.no_grad():
            try:
                sample = op.apply(*(value.sample for value in inputs))
            except RuntimeError as error:
                shapes = ", ".join(str(value.shape) for value in inputs)
                raise InvalidInput(f"{label} ({op.kind}) does not take an input of shape {shapes}: {error}") from error
        if sample.dim() < 1 or sample.shape[0] != BATCH:
            raise self.unsupported("it mixes the examples of a batch")
        index = len(self.nodes)
        self.nodes.append(Node(index, label, op, tuple(value.index for value in inputs), tuple(sample.shape[1:])))
        return Traced(index, sample)

    def where(self) -> str:
        """The place of the current step, in the words of the user's module."""
        node = self.current
        if node is None:
            return "input"
        if node.op == "call_module":
            return f"layer {str(node.target)!r}"
        label = getattr(node.target, "__name__", str(node.target))
        label = label if label != "fn" else node.name  # torch's dispatched functions have no name of their own
        stack = (node.stack_trace or "").strip().splitlines()
        places = [line.strip() for line in stack if line.strip().startswith("File")]
        place = next((line for line in reversed(places) if "/torch/" not in line.replace("\\", "/")), "")
        return f"call of {label!r}" + (f" at {place.split('/')[-1].replace(chr(34), '')}" if place else "")

    def unsupported(self, reason: str | None = None) -> UnsupportedLayer:
        node = self.current
        assert node is not None
        what = ""
        if node.op == "call_module":
            what = f" ({type(self.module.get_submodule(str(node.target))).__name__})"
        steps = [other for other in node.graph.nodes if other.op.startswith("call")]
        step = steps.index(node) if node in steps else 0
        place = f"{self.where()}{what}, step {step + 1} of {type(self.module).__name__}"
        return UnsupportedLayer(f"{place}, is not supported: {reason or _why(self._word(node))}")

    def _word(self, node: fx.Node) -> str:
        if node.op == "call_module":
            return type(self.module.get_submodule(str(node.target))).__name__
        return str(getattr(node.target, "__name__", node.target))

    def opaque(self, made: Any) -> Any:
        """Values that no node makes, behind a step that is refused."""
        if isinstance(made, list | tuple):
            return tuple(self.opaque(one) for one in made)
        return Traced(0, made) if isinstance(made, Tensor) else made

    def tensor(self, value: Any, name: str) -> Source | None:
        """A weight: a parameter or buffer of the module, or None."""
        if value is None:
            return None
        if isinstance(value, Held):
            return value.source
        raise self.unsupported(f"its {name} is computed in forward instead of being a parameter or a buffer")

    def constant(self, value: Any) -> Source | Literal:
        """A number or a tensor that does not depend on the input."""
        if isinstance(value, Held):
            return value.source
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Literal(float(value))
        raise self.unsupported(
            "it combines the input with something that is neither a number, a parameter nor a buffer"
        )
