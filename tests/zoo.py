"""Networks of every supported kind, small enough for float64 oracles: the tables of tests run over them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relucert.core.properties import Property, class_stays
from relucert.experiments.others import published as published
from relucert.networks.architectures import cnn, fc1, mlp, resnet
from relucert.networks.network import Network


def randomised(module: nn.Module, seed: int = 0) -> nn.Module:
    """Random weights, biases and batch statistics: nothing is left at a special value."""
    generator = torch.Generator().manual_seed(seed)
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d | nn.ConvTranspose2d):
            std = (2 / part.weight[0].numel()) ** 0.5
            nn.init.normal_(part.weight, std=std, generator=generator)
            if part.bias is not None:
                nn.init.normal_(part.bias, std=0.3, generator=generator)
        if isinstance(part, nn.PReLU):  # slopes below 0 and above 1
            part.weight.data = torch.linspace(-0.5, 1.5, part.num_parameters)
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(part.weight, mean=1, std=0.3, generator=generator)
            nn.init.normal_(part.bias, std=0.3, generator=generator)
            nn.init.normal_(part.running_mean, std=0.3, generator=generator)
            nn.init.uniform_(part.running_var, 0.5, 2.0, generator=generator)
    return module


class MaxPooled(nn.Module):
    """Convolution, ReLU, overlapping max pool with padding, functional style."""

    def __init__(self, pad: int = 1):
        super().__init__()
        self.conv, self.fc, self.pad = nn.Conv2d(1, 3, 3), nn.Linear(12, 3), pad

    def forward(self, x: Tensor) -> Tensor:
        z = F.max_pool2d(F.relu(self.conv(x)), 3, 2, self.pad, ceil_mode=True)
        return self.fc(z.view(z.size(0), -1))


class Leaky(nn.Module):
    """Leaky ReLU as module and as function, average pool."""

    def __init__(self):
        super().__init__()
        self.conv, self.act, self.fc = nn.Conv2d(1, 4, 3, padding=1), nn.LeakyReLU(0.2), nn.Linear(16, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = F.avg_pool2d(self.act(self.conv(x)), 3, 3, padding=1, count_include_pad=False)
        return self.out(F.leaky_relu(self.fc(torch.flatten(z, 1)), 0.05))


class Grouped(nn.Module):
    """Groups, dilation, uneven stride and 'same' padding of an even kernel."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 2, padding="same", groups=2)
        self.second = nn.Conv2d(4, 4, (3, 2), stride=(2, 3), padding=(2, 1), dilation=(2, 1), groups=4, bias=False)
        self.fc = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.second(self.first(x).relu()).relu().reshape(x.shape[0], -1))


class Dense(nn.Module):
    """Concatenation and a difference, constants, a mean instead of a pool."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(3, 2, 3, padding=1)
        self.register_buffer("shift", torch.linspace(0.1, 0.4, 2).reshape(2, 1, 1))
        self.scale = nn.Parameter(torch.tensor([1.5, 0.5]).reshape(2, 1, 1))
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu((self.first(x) - self.shift) * self.scale)
        b = torch.relu(self.second(torch.cat([x, a], dim=1)) - 0.5 * a)
        return 2 * self.fc(torch.cat((a, b, x), 1).mean((2, 3))) / 3.0 - 0.25


class Sequence(nn.Module):
    """A convolution of a sequence, a ReLU with any slope, chunks, values cut off, a product with a matrix."""

    def __init__(self):
        super().__init__()
        self.conv, self.act, self.fc = nn.Conv1d(1, 2, 3, stride=2, padding=1), nn.PReLU(2), nn.Linear(3, 3)
        self.matrix = nn.Parameter(torch.tensor([[1.0, -0.5, 0.3], [-0.7, 0.8, 0.2], [0.1, 0.4, -0.9]]))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.act(self.conv(x)).flatten(1).chunk(2, 1)
        return self.fc((F.relu6(9 * b - 1) - a) @ self.matrix.t())


class Transposed(nn.Module):
    """A transposed convolution, a slice, a max pool of fixed windows and a sum pool."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.ConvTranspose2d(1, 2, 2, stride=2, output_padding=1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv(x)[:, :, :4, :4:3]
        both = F.adaptive_max_pool2d(z, (2, 1)), F.relu(F.avg_pool2d(z, 2, divisor_override=1)).sum(3, keepdim=True)
        return self.fc(torch.cat(both, 2).flatten(1))


def dead_windows() -> nn.Module:
    """Convolution, ReLU, max pool where whole windows are dead, so that winners have no sign of their own."""
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))
    randomised(module, 5)
    with torch.no_grad():
        module[0].bias[0] -= 3.0  # type: ignore[operator]
    return module


def zero_bias() -> nn.Module:
    """No offsets at all: every hyperplane of the first layer goes through the origin."""
    module = randomised(mlp((4,), 3, [8, 6]), 6)
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)
    return module


#: name -> (module, input shape, mean, std)
_TABLE: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...], object, object]]] = {
    "linear": lambda: (randomised(nn.Sequential(nn.Linear(4, 3)), 0), (4,), None, None),
    "fc": lambda: (randomised(mlp((3,), 4, [10]), 1), (3,), None, None),
    "fc deep": lambda: (randomised(mlp((1, 2, 2), 3, [8, 7, 6]), 2), (1, 2, 2), 0.3, 0.7),
    "fc1": lambda: (randomised(fc1((1, 4, 4), 3, hidden=16), 3), (1, 4, 4), None, None),
    "cnn": lambda: (randomised(cnn((1, 8, 8), 3, filters=(2, 3), hidden=6), 4), (1, 8, 8), None, None),
    "cnn colour": lambda: (
        randomised(cnn((3, 9, 7), 3, filters=(2, 2), hidden=5), 4), (3, 9, 7), [0.5, 0.4, 0.3], [0.2, 0.3, 0.4],
    ),
    "residual": lambda: (randomised(resnet((1, 6, 6), 3, channels=2), 5), (1, 6, 6), None, None),
    "max pool": lambda: (randomised(MaxPooled(), 6), (1, 5, 5), None, 0.5),
    "leaky": lambda: (randomised(Leaky(), 7), (1, 5, 5), 0.1, None),
    "grouped": lambda: (randomised(Grouped(), 8), (2, 5, 5), None, None),
    "dense": lambda: (randomised(Dense(), 9), (1, 4, 4), None, None),
    "dead windows": lambda: (dead_windows(), (1, 5, 5), None, None),
    "zero bias": lambda: (zero_bias(), (4,), None, None),
    "sequence": lambda: (randomised(Sequence(), 13), (1, 5), None, None),
    "transposed": lambda: (randomised(Transposed(), 12), (1, 2, 2), None, None),
}  # fmt: skip

NETWORKS = tuple(_TABLE)


def network(name: str, dtype: torch.dtype = torch.float64) -> Network:
    """A network of the table, in eval mode."""
    module, shape, mean, std = _TABLE[name]()
    return Network(module.to(dtype), shape, mean, std).eval()  # type: ignore[arg-type]


def inputs(net: Network, count: int = 5, seed: int = 0) -> Tensor:
    """Random inputs in [0, 1] for a network."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, *net.input_shape, generator=generator, dtype=torch.float64).to(net.dtype)


def problem(name: str, count: int = 3) -> tuple[Network, Tensor, Property]:
    """A network of the zoo, inputs, and the question whether its classes stay."""
    net = network(name)
    x = inputs(net, count)
    return net, x, class_stays(net.predict(x), net.classes, dtype=torch.float64)
