"""Layers that are made of other kinds of nodes, or came later: graphs compute what modules compute, and bounds hold."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import relucert as rc
from asserts import assert_sound
from relucert.core.errors import InvalidInput, UnsupportedLayer
from relucert.core.properties import class_stays
from relucert.networks.checkpoints import digest, load, save
from relucert.networks.layers import resizing
from relucert.networks.layers.clipping import at_least, at_most
from relucert.networks.layers.transposed import ConvTranspose2d
from relucert.networks.network import Network
from relucert.networks.nodes import Affine
from zoo import inputs, randomised


class Calls(nn.Module):
    """A function between two linear maps, with tensors to use."""

    def __init__(self, function: Callable):
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 8), nn.LazyLinear(3), function
        self.matrix, self.row = nn.Parameter(torch.randn(8, 5)), nn.Parameter(torch.randn(8))
        self.slopes = nn.Parameter(torch.tensor([-0.5, 1.75]))
        self.filter = nn.Parameter(torch.randn(2, 3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self, 3 * self.first(x)).flatten(1))


CALLS: dict[str, Callable] = {
    "clamp": lambda m, z: z.clamp(-0.5, 0.75),
    "clamp below": lambda m, z: torch.clamp(z, min=0.25),
    "clamp above": lambda m, z: z.clamp(max=0.25),
    "clip": lambda m, z: torch.clip(z, 0, 1),
    "relu6": lambda m, z: F.relu6(4 * z),
    "hardtanh": lambda m, z: F.hardtanh(z),
    "hardsigmoid": lambda m, z: F.hardsigmoid(z),
    "softshrink": lambda m, z: F.softshrink(z, 0.3),
    "abs": lambda m, z: torch.abs(z) - abs(z - 0.5),
    "maximum": lambda m, z: torch.maximum(z, m.row),
    "maximum of values": lambda m, z: torch.maximum(z, -z.reshape(-1, 2, 4).transpose(1, 2).flatten(1)),
    "minimum": lambda m, z: torch.minimum(m.row, z),
    "minimum of values": lambda m, z: z.minimum(1 - z),
    "steep leak": lambda m, z: F.leaky_relu(z, 1.5),
    "falling leak": lambda m, z: F.leaky_relu(z, -0.25),
    "prelu": lambda m, z: F.prelu(z.reshape(-1, 2, 4), m.slopes),
    "matmul": lambda m, z: z @ m.matrix,
    "matmul transposed": lambda m, z: (z @ m.matrix) @ m.matrix.t(),
    "matmul turned": lambda m, z: torch.matmul(torch.mm(z, m.matrix), m.matrix.T).matmul(m.matrix),
    "matmul swapped": lambda m, z: (z @ m.matrix) @ m.matrix.transpose(0, 1),
    "addmm": lambda m, z: torch.addmm(m.row, z @ m.matrix, m.matrix.t()),
    "by its size": lambda m, z: z.reshape(-1, m.row.shape[0]) / m.row.size(0),
    "sum": lambda m, z: z.reshape(-1, 2, 4).sum(2),
    "sum pool": lambda m, z: F.avg_pool2d(z.reshape(-1, 1, 2, 4), 2, divisor_override=1),
    "slice": lambda m, z: z[:, 1:7:2],
    "slice of axes": lambda m, z: z.reshape(-1, 2, 2, 2)[:, 1, ..., None, :1],
    "chunk": lambda m, z: torch.cat(z.chunk(3, 1)[::-1], 1),
    "split": lambda m, z: z.split([3, 5], 1)[1],
    "split evenly": lambda m, z: torch.split(z, 4, dim=1)[0],
    "narrow": lambda m, z: z.narrow(1, 2, 3),
    "select": lambda m, z: z.reshape(-1, 2, 4).select(1, -1),
    "unbind": lambda m, z: z.reshape(-1, 2, 4).unbind(1)[1],
    "conv1d": lambda m, z: F.conv1d(torch.cat([z, z[:, :4]], 1).reshape(-1, 3, 4), m.filter, stride=2, padding=1),
    "max pool of sequences": lambda m, z: F.max_pool1d(z.reshape(-1, 2, 4), 2),
    "average of sequences": lambda m, z: F.avg_pool1d(z.reshape(-1, 2, 4), 3, 1, 1),
    "adaptive max pool": lambda m, z: F.adaptive_max_pool2d(z.reshape(-1, 1, 2, 4), (1, 2)),
    "nearest": lambda m, z: F.interpolate(z.reshape(-1, 2, 2, 2), (4, 6)),
    "nearest of sequences": lambda m, z: F.interpolate(z.reshape(-1, 2, 4), scale_factor=2, mode="nearest-exact"),
    "stack": lambda m, z: torch.stack([z.reshape(-1, 2, 4), F.relu(z).reshape(-1, 2, 4)], -1),
    "stack of one": lambda m, z: torch.stack([z], dim=1),
    "repeated": lambda m, z: z.reshape(-1, 2, 4).repeat_interleave(3, 1),
    "shuffled": lambda m, z: F.pixel_unshuffle(F.pixel_shuffle(z.reshape(-1, 4, 1, 2), 2), (2)),
}  # fmt: skip
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d same": (lambda: nn.Conv1d(2, 4, 4, padding="same", groups=2), (2, 6)),
    "conv with borders": (lambda: nn.Conv2d(2, 3, (3, 2), (2, 3), (1, 2), (1, 2)), (2, 6, 5)),
    "conv1d dilated": (lambda: nn.Conv1d(2, 3, 2, stride=2, dilation=2, bias=False), (2, 7)),
    "conv transpose": (lambda: nn.ConvTranspose2d(2, 4, 3, (2, 3), 1, (1, 2), groups=2, dilation=(2, 1)), (2, 3, 2)),
    "conv transpose wide": (lambda: nn.ConvTranspose2d(1, 2, 2, 1, 0, 1, dilation=2, bias=False), (1, 3, 2)),
    "prelu": (lambda: nn.PReLU(3), (3, 2, 2)),
    "prelu of one slope": (lambda: nn.PReLU(), (5,)),
    "rrelu": (lambda: nn.RReLU(), (5,)),
    "relu6": (lambda: nn.ReLU6(), (5,)),
    "hardtanh": (lambda: nn.Hardtanh(-0.2, 0.3), (5,)),
    "max pool of sequences": (lambda: nn.MaxPool1d(3, 2, 1, ceil_mode=True), (2, 6)),
    "average of sequences": (lambda: nn.AvgPool1d(3, 2, 1, count_include_pad=False), (2, 6)),
    "adaptive max pool": (lambda: nn.AdaptiveMaxPool2d((2, None)), (1, 4, 3)),
    "upsample": (lambda: nn.Upsample(scale_factor=(2, 3)), (2, 2, 3)),
    "upsample nearest": (lambda: nn.UpsamplingNearest2d(size=(4, 4)), (1, 2, 2)),
    "pixel shuffle": (lambda: nn.PixelShuffle(2), (8, 1, 2)),
    "pixel unshuffle": (lambda: nn.PixelUnshuffle(2), (2, 4, 2)),
}  # fmt: skip


def called(name: str) -> Network:
    torch.manual_seed(0)
    module = Calls(CALLS[name])
    module(torch.zeros(2, 6))
    return Network(module.double(), (6,)).eval()


def layered(name: str) -> Network:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    module = nn.Sequential(make(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    module(torch.zeros(2, *shape))
    return Network(randomised(module).double(), shape).eval()


NETS = {f"call {name}": (called, name) for name in CALLS} | {f"layer {name}": (layered, name) for name in LAYERS}


@pytest.mark.parametrize("name", NETS)
def test_graphs_checkpoints_and_bounds(name: str, tmp_path) -> None:
    make, own = NETS[name]
    net = make(own)
    x = 2 * inputs(net, 6) - 1
    torch.testing.assert_close(net.logits(x), net.module(x), rtol=1e-12, atol=1e-12)
    generator = torch.Generator().manual_seed(0)
    for node in net.graph.affine_nodes:
        z = [torch.randn(3, *shape, generator=generator, dtype=torch.float64) for shape in node.op.in_shapes]
        y = torch.randn(3, *node.shape, generator=generator, dtype=torch.float64)
        for back in (node.op.transpose(y), Affine.transpose(node.op, y)):
            pairs = sum((a * b).sum() for a, b in zip(z, back, strict=True))
            torch.testing.assert_close((node.op.linear(*z) * y).sum(), pairs, rtol=1e-11, atol=1e-11)
        none = [torch.zeros_like(part[:1]) for part in z]
        assert torch.equal(node.op.offset(y), node.op.apply(*none))
        assert not node.op.homogeneous or not bool(node.op.offset(y).any())
        size = [part.abs() for part in z]
        assert bool((node.op.linear(*z).abs() <= node.op.absolute(*size) * (1 + 1e-12)).all())
        assert bool((node.op.apply(*z).abs() <= node.op.magnitude(*size) * (1 + 1e-12)).all())
    save(net, tmp_path / "net.safetensors")
    again = load(tmp_path / "net.safetensors")
    assert digest(again) == digest(net)
    torch.testing.assert_close(again(x), net(x), rtol=1e-12, atol=1e-12)
    ball = rc.Ball(math.inf, 0.2, (-1.0, 1.0))
    prop = class_stays(net.predict(x), net.classes, dtype=torch.float64)
    points = ball.sample(x, torch.Generator().manual_seed(0), 30)
    for method in (rc.IBP(), rc.CROWN()):
        with torch.no_grad():
            bounds, margins = method.solve(net, x, ball, prop)
        assert_sound(net, x, ball, bounds, prop, margins, points)


def test_gradients_reach_slopes_and_shared_matrices() -> None:
    for name, tensor in (("prelu", "slopes"), ("matmul transposed", "matrix"), ("conv1d", "filter")):
        net = called(name)
        x = 2 * inputs(net, 3) - 1
        weight = getattr(net.module, tensor)
        (ours,) = torch.autograd.grad(net.logits(x).square().sum(), weight)
        (theirs,) = torch.autograd.grad(net(x).square().sum(), weight)
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_intervals_of_clipped_values_are_exact() -> None:
    net = Network(nn.Sequential(nn.Hardtanh(-0.25, 0.5), nn.Linear(2, 2)), (2,)).double().eval()
    with torch.no_grad():
        net.module[1].weight.copy_(torch.eye(2))
        net.module[1].bias.zero_()
    found = rc.bounds(net, torch.zeros(1, 2).double(), rc.Ball(math.inf, 2.0, None), "ibp").logits
    torch.testing.assert_close(found.lower, torch.full((1, 2), -0.25).double(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.upper, torch.full((1, 2), 0.5).double(), rtol=1e-12, atol=1e-12)
    assert callable(at_least)
    assert callable(at_most)


def test_sizes_that_do_not_fit_are_named() -> None:
    with pytest.raises(InvalidInput, match=r"prelu\) must have one slope or 4, one for each channel, got 2"):
        Network(nn.Sequential(nn.PReLU(2), nn.Linear(4, 2)), (4,))
    with pytest.raises(InvalidInput, match=r"conv1d\) needs an input \(channels, length\)"):
        Network(nn.Sequential(nn.Conv1d(1, 1, 2), nn.Flatten()), (1, 2, 2))
    with pytest.raises(InvalidInput, match=r"conv_transpose2d\) needs an input \(channels, height, width\)"):
        Network(nn.Sequential(nn.ConvTranspose2d(1, 1, 2), nn.Flatten()), (1, 4))
    with pytest.raises(UnsupportedLayer, match="windows of an adaptive max pool must have one size"):
        Network(nn.Sequential(nn.AdaptiveMaxPool2d(2), nn.Flatten()), (1, 3, 4))
    with pytest.raises(InvalidInput, match="must fit shape"):
        Network(Calls(lambda m, z: z[:, 9]), (6,))
    assert ConvTranspose2d.kind == "conv_transpose2d"


def test_enlarged_images_that_have_no_reader_are_named() -> None:
    for layer, what in (
        (nn.Upsample(scale_factor=2, mode="bilinear"), "only the mode 'nearest' is, got 'bilinear': it is affine"),
        (nn.Upsample(size=(3, 4)), r"sizes must become multiples of themselves, got \(2, 2\) and \(3, 4\)"),
        (nn.Upsample(scale_factor=100), "entries are repeated 1 to 64 times, got 100"),
        (nn.PixelShuffle(3), r"it needs images with a multiple of 3 \* 3 channels, got shape \(4, 2, 2\)"),
        (nn.PixelUnshuffle(3), "it needs images with sizes that are multiples of 3"),
    ):
        with pytest.raises(UnsupportedLayer, match=what):
            Network(nn.Sequential(layer, nn.Flatten()), (4, 2, 2))
    for call, what in (
        (lambda m, z: torch.stack([z, z]), "values of one shape along an axis behind the batch"),
        (lambda m, z: z.repeat_interleave(2)[None], "all entries along one axis equally often"),
    ):
        module = Calls(call)
        module(
            torch.zeros(2, 6)
        )  # stacked, the batch of two is another shape than in tracing: the stack is named all the same
        with pytest.raises(UnsupportedLayer, match=what):
            Network(module, (6,))
    assert len(resizing.FAMILY.modules) == 3


# Modules inside others, and outputs with a name.


def test_wrapped_modules_are_unwrapped() -> None:
    inner = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    kinds = [node.kind for node in Network(inner, (4,)).graph]
    for outer in (nn.DataParallel(inner), torch.compile(inner), torch.compile(nn.DataParallel(inner))):
        net = Network(outer, (4,))
        assert net.module is inner
        assert [node.kind for node in net.graph] == kinds
    parts = nn.Sequential(torch.compile(inner[0]), nn.DataParallel(inner[1]), inner[2])
    assert [node.kind for node in Network(parts, (4,), 0.5).graph][1:] == ["shift", *kinds[1:]]


@dataclasses.dataclass
class Output:
    logits: Tensor
    hidden: Tensor | None = None


class Ordered(OrderedDict):
    """An output whose entries are attributes too."""

    def __getattr__(self, name: str) -> Tensor:
        if name not in self:
            raise AttributeError(name)
        return self[name]


class Classifier(nn.Module):
    """The way of larger libraries: optional arguments, and an output with several entries."""

    def __init__(self, wrap: Callable):
        super().__init__()
        self.first, self.last, self.wrap = nn.Linear(4, 5), nn.Linear(5, 3), wrap

    def forward(self, pixels: Tensor, labels: Tensor | None = None, return_dict: bool = True, **rest: object):
        z = torch.relu(self.first(pixels))
        logits = self.last(z)
        if labels is not None:
            return F.cross_entropy(logits, labels)
        return self.wrap(logits, z) if return_dict else logits


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits, z: {"logits": logits, "hidden": z},
        lambda logits, z: Output(logits, z),
        lambda logits, z: Output(logits=logits),
        lambda logits, z: Ordered(logits=logits, hidden=z),
        lambda logits, z: (logits,),
    ],
)
def test_outputs_with_logits_are_taken(wrap: Callable) -> None:
    net = Network(Classifier(wrap), (4,)).eval()
    x = inputs(net, 3)
    assert net(x).shape == (3, 3)
    torch.testing.assert_close(net(x), net.logits(x))
    assert rc.certify(net, x, net.predict(x), rc.Ball(2, 1e-5), "crown").verdict == [rc.Verdict.ROBUST] * 3


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_outputs_without_logits_are_refused_with_a_way_out() -> None:
    for wrap in (lambda logits, z: (logits, z), lambda logits, z: {"out": logits}):
        with pytest.raises(UnsupportedLayer, match=r"as the entry `logits` of its output, got .*: wrap it in a module"):
            Network(Classifier(wrap), (4,))
    with pytest.raises(
        UnsupportedLayer, match=r"compiled by torch\.jit, .*: take the module that was compiled, or export it"
    ):
        Network(torch.jit.script(nn.Linear(4, 3)), (4,))


class Parts(nn.Module):
    """Parts of a value are arguments of a call, are counted, and are gone through."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(2, 3)

    def forward(self, z: Tensor) -> Tensor:
        parts = z.chunk(2, 1)
        first, *others = [torch.relu(part) for part in z.split([1, 1, 2], 1)]
        return self.last(torch.maximum(*parts) * len(parts) - others[-1] + torch.cat([first, others[0]], 1))


def test_parts_are_unpacked_where_the_shape_says_how_many_there_are() -> None:
    module = Parts().double()
    net = Network(module, (4,))
    x = inputs(net, 5)
    torch.testing.assert_close(net.logits(x), module(x))

    class Rows(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return torch.stack([torch.relu(row) for row in z])

    with pytest.raises(UnsupportedLayer, match="the parts of z are not known in advance: give its parts names instead"):
        Network(Rows(), (4,))


class Branching(nn.Module):
    """A module that looks at its input before it computes."""

    def __init__(self, condition: Callable):
        super().__init__()
        self.first, self.second, self.condition = nn.Linear(4, 3), nn.Linear(4, 3), condition

    def forward(self, z: Tensor) -> Tensor:
        return self.first(torch.relu(z)) if self.condition(self, z) else self.second(torch.relu(z))


SHAPES = {
    "channels": lambda module, z: z.shape[1] == 4,
    "other channels": lambda module, z: z.shape[1] != 4,
    "sizes": lambda module, z: z.dim() == 2 and z.size(-1) > 3,
    "rank": lambda module, z: z.ndim > 2,
    "reshaped": lambda module, z: z.flatten(1).shape[1] + 1 == 5,
}
VALUES = {
    "values": lambda module, z: z.sum() > 0,
    "weights": lambda module, z: module.first.weight.sum() + z.sum() > 0,
    "batch of one": lambda module, z: z.shape[0] == 1,
    "large batch": lambda module, z: z.shape[0] > 2,
    "batch above 50": lambda module, z: z.shape[0] > 50,
    "batch of a hundred": lambda module, z: z.shape[0] == 100,
    "result": lambda module, z: module.first(z).argmax() == 0,
}


@pytest.mark.parametrize("name", SHAPES)
def test_branches_on_the_shape_of_the_input_are_taken(name: str) -> None:
    module = Branching(SHAPES[name]).double()
    net = Network(module, (4,))
    x = inputs(net, 5)
    torch.testing.assert_close(net.logits(x), module(x))
    taken = module.first if name in ("channels", "sizes", "reshaped") else module.second
    torch.testing.assert_close(net.logits(x), taken(torch.relu(x)))
    net.train().require_eval("a certificate")  # the mode does not matter


@pytest.mark.parametrize("name", VALUES)
def test_branches_on_values_weights_and_the_batch_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedLayer, match="Branching cannot be traced: symbolically traced variables"):
        Network(Branching(VALUES[name]), (4,))


# Refusals.


class Curved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.b, self.norm = nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.b(self.act(self.a(x))))
        return torch.cumsum(self.norm(z) * z, 1)


def test_all_steps_that_are_refused_are_listed_at_once() -> None:
    with pytest.raises(UnsupportedLayer) as caught:
        Network(Curved(), (4,))
    text = str(caught.value)
    assert text.startswith("5 steps are not supported: ")
    for part in (
        "layer 'act' (GELU), step 2 of Curved, is not supported: it is not piecewise affine",
        "call of 'tanh' at test_layers.py",
        "layer 'norm' (LayerNorm), step 5",
        "it multiplies two values that both depend on the input",
        "relucert has no reader for it",
        "Replace such a step by ReLUs",
        "Supported are Linear",
    ):
        assert part in text
    assert text.count("Supported are") == 1
