"""Batch norm in training that leaves the architecture as it is: it is folded into the weights of every step.

A layer W z + b in front of a ReLU has in training the weights

    W' = s W,   b' = b - s m,   s = g / sqrt(v + 1e-5),

with m and v the mean and the variance of W z over a batch, one for each filter or unit, and g a gain that is trained with W and
b. So the layer computes batch norm of W z, with gain g and shift b, and every loss sees a network of the original architecture:
bounds, attacks and linear regions are those of W' and b'. In a step m and v are those of the batch as it is, before any attack,
and gradients go through them. Elsewhere they are running means with momentum 0.1. In the end W' and b' take the place of W and
b.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from relucert.networks.layers.linear import Conv2d, Linear
from relucert.networks.network import Network
from relucert.networks.nodes import Affine, ReLU, Source, Switching
from relucert.networks.traversal import AnyNode, ForwardRule, Node, propagate

MOMENTUM, SMALL = 0.1, 1e-5


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer that is normalised: its node, the names of its parameters in the network, and the axis of its units."""

    node: int
    weight: str
    bias: str
    units: int
    axis: int


class FoldedNorms(nn.Module):
    """Gains and running statistics of the layers of a network that stand in front of a ReLU."""

    def __init__(self, net: Network):
        super().__init__()
        self.net = (net,)  # no submodule: the network has its own state
        self.layers = normalised_layers(net)
        like = net._like
        self.gains = nn.ParameterList(nn.Parameter(like.new_ones(layer.units)) for layer in self.layers)
        for place, layer in enumerate(self.layers):
            self.register_buffer(f"mean_{place}", like.new_zeros(layer.units))
            self.register_buffer(f"variance_{place}", like.new_ones(layer.units))

    def of_batch(self, x: Tensor) -> dict[str, Tensor]:
        """The weights of a step, by name, with gradients; the running statistics move towards those of the batch."""
        rule = _Statistics(self)
        propagate(self.net[0].graph, rule, {0: x}, [layer.node for layer in self.layers])
        return rule.weights

    @torch.no_grad()
    def settled(self) -> dict[str, Tensor]:
        """The weights with the running statistics, by name."""
        found: dict[str, Tensor] = {}
        parameters = dict(self.net[0].named_parameters())
        for place in range(len(self.layers)):
            mean, variance = self.get_buffer(f"mean_{place}"), self.get_buffer(f"variance_{place}")
            found |= self.folded(place, parameters, mean, variance)
        return found

    def folded(self, place: int, parameters: Mapping[str, Tensor], mean: Tensor, variance: Tensor) -> dict[str, Tensor]:
        """The weights of a layer for given statistics."""
        layer = self.layers[place]
        scale = self.gains[place] / (variance + SMALL).sqrt()
        weight = parameters[layer.weight]
        wide = scale.reshape(-1, *[1] * (weight.dim() - 1))
        return {layer.weight: weight * wide, layer.bias: parameters[layer.bias] - scale * mean}

    @torch.no_grad()
    def follow(self, place: int, mean: Tensor, variance: Tensor, count: int) -> None:
        """Move the running statistics of a layer; the variance as estimated from `count` numbers."""
        unbiased = variance * (count / max(1, count - 1))
        self.get_buffer(f"mean_{place}").lerp_(mean, MOMENTUM)
        self.get_buffer(f"variance_{place}").lerp_(unbiased, MOMENTUM)


def normalised_layers(net: Network) -> list[Layer]:
    """The linear layers and convolutions whose value every reader takes through a ReLU, with weights of their own."""
    names = {id(value): name for name, value in net.named_parameters()}
    readers: dict[int, list[AnyNode]] = {}
    for node in net.graph:
        for source in node.inputs:
            readers.setdefault(source, []).append(node)
    used = [source.identity for node in net.graph.affine_nodes for source in node.op.sources().values()]
    found = []
    for node in net.graph.affine_nodes:
        op = node.op
        if not isinstance(op, Linear | Conv2d) or op.bias is None:
            continue
        behind = readers.get(node.index, [])
        if not behind or not all(isinstance(other.op, ReLU) for other in behind):
            continue
        own = [_parameter(source) for source in (op.weight, op.bias)]
        shared = any(used.count(source.identity) > 1 for source in (op.weight, op.bias))
        if shared or any(value is None or not value.requires_grad for value in own):
            continue
        weight, bias = (names[id(value)] for value in own)
        found.append(Layer(node.index, weight, bias, len(op.bias.value), op.unit_axis))
    return found


def _parameter(source: Source) -> nn.Parameter | None:
    """The parameter that a source reads as it is, if it does."""
    return source.owner._parameters.get(source.name) if type(source) is Source else None


class _Statistics(ForwardRule[Tensor]):
    """Evaluation with the statistics of the batch; `weights` has the weights of all normalised layers by then."""

    def __init__(self, norms: FoldedNorms):
        self.norms = norms
        self.places = {layer.node: place for place, layer in enumerate(norms.layers)}
        self.parameters = dict(norms.net[0].named_parameters())
        self.weights: dict[str, Tensor] = {}

    def affine(self, node: Node[Affine], inputs: list[Tensor]) -> Tensor:
        place = self.places.get(node.index)
        if place is None:
            return node.op.apply(*inputs)
        layer, value = self.norms.layers[place], node.op.linear(*inputs)
        axis = layer.axis % value.dim()
        others = [other for other in range(value.dim()) if other != axis]
        variance, mean = torch.var_mean(value, others, correction=0)
        found = self.norms.folded(place, self.parameters, mean, variance)
        self.weights |= found
        self.norms.follow(place, mean, variance, value.numel() // layer.units)
        shape = [-1 if other == axis else 1 for other in range(value.dim())]
        scale = self.norms.gains[place] / (variance + SMALL).sqrt()
        return value * scale.reshape(shape) + found[layer.bias].reshape(shape)

    def switching(self, node: Node[Switching], value: Tensor) -> Tensor:
        return node.op.apply(value)
