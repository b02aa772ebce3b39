"""The paper's architectures for any input shape and number of classes, others of the field, and a small residual net for tests.

FC1 has one hidden layer of 1024 units, FC10 ten hidden layers (124, 7 x 104, 2 x 86), CNN is two convolutions
(16 and 32 filters 4 x 4, stride 2, padding 1) and a hidden layer of 100 units; CNN-wide has 32 and 64 filters and 256
units, as training with intervals asks for width. fc-2x256, fc-4x256 and fc-6x256 have hidden layers of 256 units, as the
networks of the verification competition have. Weights are drawn from a truncated normal
with He's variance 2 / fan-in, biases are zero (section 5 and appendix B of the paper).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relucert.core.errors import InvalidInput
from relucert.networks.network import Network, Numbers

Shape = Sequence[int]


def fc1(input_shape: Shape, classes: int, hidden: int = 1024) -> nn.Sequential:
    """One hidden layer."""
    return mlp(input_shape, classes, [hidden])


def fc10(input_shape: Shape, classes: int) -> nn.Sequential:
    """Ten hidden layers with 1024 units together."""
    return mlp(input_shape, classes, [124, *[104] * 7, *[86] * 2])


def mlp(input_shape: Shape, classes: int, hidden: Sequence[int]) -> nn.Sequential:
    """Hidden layers of the given widths with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(input_shape)
    for units in hidden:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, classes))


def cnn(input_shape: Shape, classes: int, filters: Sequence[int] = (16, 32), hidden: int = 100) -> nn.Sequential:
    """Strided convolutions, then one hidden layer."""
    if len(input_shape) != 3:
        raise InvalidInput(f"input_shape of a CNN must be (channels, height, width), got {tuple(input_shape)}")
    channels, height, width = input_shape
    layers: list[nn.Module] = []
    for count in filters:
        if min(height, width) < 2:
            raise InvalidInput(
                f"input_shape is too small for {len(filters)} strided convolutions: {tuple(input_shape)}"
            )
        layers += [nn.Conv2d(channels, count, 4, stride=2, padding=1), nn.ReLU()]
        channels, height, width = count, height // 2, width // 2
    flat = channels * height * width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def wide_cnn(input_shape: Shape, classes: int) -> nn.Sequential:
    """The paper's CNN with twice the filters and a hidden layer of 256 units."""
    return cnn(input_shape, classes, filters=(32, 64), hidden=256)


class Residual(nn.Module):
    """`relu(z + conv(relu(conv(z))))` with batch norm behind every convolution."""

    def __init__(self, channels: int):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, z: Tensor) -> Tensor:
        inner = F.relu(self.first_norm(self.first(z)))
        return F.relu(z + self.second_norm(self.second(inner)))


def resnet(input_shape: Shape, classes: int, channels: int = 8) -> nn.Sequential:
    """A small residual net with batch norm, max pool and global average pool."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Residual(channels),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, classes),
    )


ARCHITECTURES: dict[str, Callable[[Shape, int], nn.Module]] = {
    "fc1": fc1,
    "fc10": fc10,
    **{f"fc-{layers}x256": partial(mlp, hidden=[256] * layers) for layers in (2, 4, 6)},
    "cnn": cnn,
    "cnn-wide": wide_cnn,
    "resnet": resnet,
}


def initialise(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Draw every weight from a normal with variance 2 / fan-in, cut at two standard deviations; biases are zero."""
    for layer in _weighted(module):
        std = math.sqrt(2 / layer.weight[0].numel())
        nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std, generator=generator)
    return module


def initialise_for_intervals(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Draw every weight from a normal with standard deviation sqrt(2 pi) / fan-in; biases are zero.

    The widths of intervals then stay about the same from layer to layer (Shi et al., NeurIPS 2021).
    """
    for layer in _weighted(module):
        nn.init.normal_(layer.weight, std=math.sqrt(2 * math.pi) / layer.weight[0].numel(), generator=generator)
    return module


def _weighted(module: nn.Module) -> Iterator[nn.Linear | nn.Conv2d]:
    """The layers with weights, their biases set to zero."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            if part.bias is not None:
                nn.init.zeros_(part.bias)
            yield part


#: How first weights are drawn, by name: as the paper does, and for training against intervals.
STARTS = {"he": initialise, "ibp": initialise_for_intervals}


def build(
    name: str, input_shape: Shape, classes: int, *, seed: int = 0, mean: Numbers = None, std: Numbers = None,
    start: str = "he",
) -> Network:  # fmt: skip
    """A freshly initialised network by the name of its architecture; `fc-LxN` has L hidden layers of N units.

    `start` says how weights are drawn: "he", the paper's way, or "ibp", for training against intervals.

    >>> build("cnn", (1, 28, 28), 10).hidden_units, build("fc-3x20", (4,), 2).hidden_units
    (4804, 60)
    """
    layers = re.fullmatch(r"fc-(\d{1,3})x(\d{1,5})", name)
    if name not in ARCHITECTURES and (layers is None or "0" in (layers[1], layers[2])):
        raise InvalidInput(f"model must be one of {', '.join(ARCHITECTURES)}, got {name!r}")
    make = ARCHITECTURES.get(name) or partial(mlp, hidden=[int(layers[2])] * int(layers[1]))  # pyright: ignore[reportOptionalSubscript]
    with torch.random.fork_rng(devices=[]):  # torch initialises layers from its global generator: leave that as it was
        module = make(input_shape, classes)
    if start not in STARTS:
        raise InvalidInput(f"start must be one of {', '.join(STARTS)}, got {start!r}")
    STARTS[start](module, torch.Generator().manual_seed(seed))
    return Network(module, input_shape, mean, std)
