"""`Network`: an `nn.Module` seen as a graph of affine and switching nodes, with inputs in pixels.

Beside it the ways in which others run a network: in float64 (`in_double`), with weights as constants (`frozen_weights`), with
gradients of inputs and bounds even if the caller has disabled gradients (`outside_inference`), with one thread
(`one_thread`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from relucert.core.ball import PIXELS
from relucert.core.errors import InvalidInput, UnsupportedLayer, WrongMode
from relucert.networks.build.tracing import MODAL, logits_of, mode_matters, trace, unwrapped
from relucert.networks.nodes import ReLU, Source, Switching
from relucert.networks.traversal import Graph, Node, look

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Numbers = float | Sequence[float] | Tensor | None


class Network(nn.Module):
    """A piecewise affine classifier: the given module applied to `(x - mean) / std`.

    The network shares the module's parameters: training one trains the other, and the graph always speaks of the current
    weights. `x` and every radius stay in pixels, whatever normalisation the module was trained with. The network has the mode
    of its module. In eval mode batch norm uses its running statistics; reasoning about a network whose batch norm or dropout is
    in train mode is an error, and without these the mode does not matter.

    Args:
        module: any composition of the supported layers, as modules or as functional calls.
        input_shape: the shape of one input, without the batch.
        mean: what is subtracted from the input: a number, or one for each channel.
        std: what the input is divided by: a number, or one for each channel.

    >>> from torch import nn
    >>> net = Network(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), input_shape=(1, 2, 2))
    >>> net.classes, net.hidden_units, [node.kind for node in net.graph]
    (2, 3, ['input', 'reshape', 'linear', 'relu', 'linear'])
    """

    graph: Graph
    #: The box of balls that were given none: that of pixels, or None where inputs are no pixels, as in a table.
    box: tuple[float, float] | None = PIXELS

    def __init__(self, module: nn.Module, input_shape: Sequence[int], mean: Numbers = None, std: Numbers = None):
        super().__init__()
        if not isinstance(module, nn.Module):
            raise InvalidInput(f"module must be an nn.Module, got {type(module).__name__}")
        if isinstance(module, Network):
            raise InvalidInput("module is already a Network")
        module = unwrapped(module)
        self.input_shape = _checked_shape(input_shape)
        self.module = module
        tensors = [*module.parameters(), *module.buffers()]
        kinds = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
        if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
            found = ", ".join(sorted(str(kind) for kind in kinds))
            raise InvalidInput(f"module must hold its weights in one dtype, float32 or float64, got {found}")
        like = torch.zeros((), dtype=next(iter(kinds), torch.float32), device=tensors[0].device if tensors else None)
        self.register_buffer("mean", _channels("mean", mean, self.input_shape, like))
        self.register_buffer("std", _channels("std", std, self.input_shape, like))
        if self.std is not None and not bool((self.std > 0).all()):
            raise InvalidInput(f"std must be positive, got {self.std.flatten().tolist()}")
        self.register_buffer("_like", like, persistent=False)
        self.graph = trace(
            module,
            self.input_shape,
            None if self.mean is None else Source(self, "mean"),
            None if self.std is None else Source(self, "std"),
            like,
        )
        self._overwrites_input = False
        self._compare()

    mean: Tensor | None
    std: Tensor | None
    _like: Tensor

    @property
    def training(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The mode of the module: a network has none of its own."""
        module = self._modules.get("module") if "_modules" in self.__dict__ else None
        return True if module is None else module.training

    @training.setter
    def training(self, mode: bool) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Modes are set in the module's parts, by `train` and `eval`."""

    # What it is.

    @property
    def classes(self) -> int:
        """The number of logits."""
        return self.graph[-1].shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, which inputs must have."""
        return self._like.dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._like.device

    @property
    def switches(self) -> tuple[Node[Switching], ...]:
        """The switching nodes (ReLU, leaky ReLU, max pool) in order."""
        return self.graph.switches

    @property
    def relus(self) -> tuple[Node[ReLU], ...]:
        """The ReLU and leaky ReLU nodes, in order."""
        return self.graph.relus

    @property
    def hidden_units(self) -> int:
        """The number of piecewise linear units: every ReLU, and every window of a max pool."""
        return self.graph.hidden_units()

    # What it computes.

    def forward(self, x: Tensor) -> Tensor:
        """The logits `(batch, classes)` of inputs in pixels, by the module itself."""
        look()
        if self.mean is not None:
            x = x - self.mean
        if self.std is not None:
            x = x / self.std
        if self._overwrites_input and self.mean is None and self.std is None:
            x = x.clone()
        output = self.module(x)
        return output if isinstance(output, Tensor) else logits_of(output)

    def logits(self, x: Tensor) -> Tensor:
        """The logits by the graph; equal to `forward` in eval mode up to rounding."""
        return self.graph.values(x, [len(self.graph) - 1])[len(self.graph) - 1]

    def preactivations(self, x: Tensor) -> list[Tensor]:
        """The inputs of every switching node, `(batch, *shape)` each."""
        places = [node.inputs[0] for node in self.switches]
        values = self.graph.values(x, places)
        return [values[place] for place in places]

    def pattern(self, x: Tensor) -> list[Tensor]:
        """The activation pattern: booleans for a ReLU, the winners' places for a max pool."""
        pairs = zip(self.switches, self.preactivations(x), strict=True)
        return [node.op.pattern(z) for node, z in pairs]

    def predict(self, x: Tensor) -> Tensor:
        """The class with the largest logit, `(batch,)`; of equal ones the first."""
        return self(x).argmax(1)

    # What it accepts.

    def check(self, x: Tensor, y: Tensor | None = None) -> None:
        """Raise a clear error unless x is a batch of finite inputs, and y a label for each of them."""
        if not isinstance(x, Tensor) or tuple(x.shape[1:]) != self.input_shape or x.dim() != len(self.input_shape) + 1:
            found, hint = _described(x, "x")
            hint = ": x[None] is a batch of one" if found == self.input_shape else hint
            raise InvalidInput(f"x must be a batch of inputs of shape {self.input_shape}, got {found}{hint}")
        if x.dtype != self.dtype:
            way = "x.to(net.dtype)" if x.is_floating_point() else "x.to(net.dtype) / 255, for pixels from 0 to 255,"
            raise InvalidInput(f"x must have the network's dtype {self.dtype}, got {x.dtype}: {way} has it")
        if x.device != self.device:
            raise InvalidInput(f"x must be on the network's device {self.device}, got {x.device}")
        finite = torch.isfinite(x).flatten(1).all(1)
        if not bool(finite.all()):
            raise InvalidInput(f"x must be finite, got NaN or infinity in example {int((~finite).nonzero()[0])}")
        if y is None:
            return
        self.require_classes("a label")
        if not isinstance(y, Tensor) or y.dim() != 1 or len(y) != len(x):
            found, hint = _described(y, "y")
            raise InvalidInput(f"y must hold one label for each of the {len(x)} examples, got {found}{hint}")
        if y.is_floating_point() or y.dtype == torch.bool:
            raise InvalidInput(
                f"y must hold whole numbers, got dtype {y.dtype}: classes count from 0, as y.long() has them"
            )
        wrong = (y < 0) | (y >= self.classes)
        if bool(wrong.any()):
            place = int(wrong.nonzero()[0])
            raise InvalidInput(f"y must lie in 0..{self.classes - 1}, got {int(y[place])} at example {place}")

    def require_classes(self, purpose: str) -> None:
        """Raise unless the network has two logits or more."""
        if self.classes < 2:
            raise InvalidInput(
                f"{purpose} needs a network of at least two logits, got {self.classes} output: its range over a ball is "
                "what relucert.output_range proves"
            )

    def require_eval(self, purpose: str) -> None:
        """Raise if a part in train mode computes something else than in eval mode: batch norm, dropout, code that reads it."""
        training = {name: part for name, part in self.named_modules() if part.training and part is not self}
        wrong = [name for name, part in training.items() if isinstance(part, MODAL)]
        if not wrong and training and mode_matters(self.module, self.input_shape):
            wrong = list(training)
        if wrong:
            raise WrongMode(f"{purpose} needs the network in eval mode (call net.eval()), got {wrong[0]} in train mode")

    # What it was checked for.

    @torch.no_grad()
    def _compare(self) -> None:
        """Run module and graph on the same inputs: they differ where tracing misread the module."""
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(2, *self.input_shape, generator=generator, dtype=torch.float64).to(self._like)
        modes = [(part, part.training) for part in self.modules()]
        self.eval()
        try:
            handed = x.clone()
            ours, theirs = self.graph.values(x, range(len(self.graph))), self(handed)
            self._overwrites_input = not torch.equal(handed, x)
        finally:
            for part, training in modes:
                part.training = training
        scale = max(float(value.abs().max()) for value in ours.values() if value.numel())
        logits = ours[len(self.graph) - 1]
        gap = float((logits - theirs).abs().max()) if logits.shape == theirs.shape else float("inf")
        limit = 1e-3 if self.dtype == torch.float32 else 1e-9
        if not gap <= limit * (1 + scale):
            raise UnsupportedLayer(
                f"module {type(self.module).__name__} computes something else than its recorded layers (logits differ by "
                f"{gap:.3g}): it may change values in place, or depend on state that is not a parameter or a buffer"
            )

    def extra_repr(self) -> str:
        return f"input_shape={self.input_shape}, classes={self.classes}, hidden_units={self.hidden_units}"


def as_network(net: nn.Module, x: Tensor) -> Network:
    """The network itself, or the network of a module whose inputs are those of the batch x.

    >>> as_network(nn.Linear(4, 2), torch.zeros(3, 4)).input_shape
    (4,)
    """
    if isinstance(net, Network):
        return net
    if not isinstance(net, nn.Module):
        file, fitted = isinstance(net, str | Path), hasattr(net, "fit") and hasattr(net, "predict")
        hint = ": relucert.load reads files" if file else ": relucert.from_sklearn makes one of it" if fitted else ""
        raise InvalidInput(f"net must be a Network or an nn.Module, got {type(net).__name__}{hint}")
    if not isinstance(x, Tensor) or x.dim() < 2:
        found, hint = _described(x, "x")
        raise InvalidInput(f"x must be a batch of inputs (batch, *input), got {found}{hint}")
    return Network(net, tuple(x.shape[1:]))


def _described(value: object, name: str) -> tuple[object, str]:
    """What a value is, for a message, and how to make a tensor of it."""
    if isinstance(value, Tensor):
        return tuple(value.shape), ""
    arrays = isinstance(value, list | tuple) or hasattr(value, "__array__")
    return type(value).__name__, f": torch.as_tensor({name}) makes a tensor of it" if arrays else ""


def in_double(net: Network) -> Network:
    """The network with its weights in float64: a copy, or the network itself if it is in float64 already."""
    return net if net.dtype == torch.float64 else copy.deepcopy(net).double()


def in_single(net: Network) -> Network | None:
    """A copy of a network in float64 with the same weights in float32; None where float32 does not have them."""
    found = copy.deepcopy(net).float()
    pairs = zip([*net.parameters(), *net.buffers()], [*found.parameters(), *found.buffers()], strict=True)
    return found if all(torch.equal(wide, narrow.to(wide.dtype)) for wide, narrow in pairs) else None


@contextmanager
def frozen_weights(module: nn.Module) -> Iterator[None]:
    """Switch the gradients of all parameters off, and restore each afterwards.

    >>> layer = nn.Linear(2, 1)
    >>> with frozen_weights(layer):
    ...     layer.weight.requires_grad
    False
    >>> layer.weight.requires_grad
    True
    """
    before = [(weight, weight.requires_grad) for weight in module.parameters()]
    try:
        for weight, _ in before:
            weight.requires_grad_(False)
        yield
    finally:
        for weight, required in before:
            weight.requires_grad_(required)


def outside_inference(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a function that needs gradients so that it can be called inside `torch.inference_mode`.

    The call leaves inference mode, and arguments that are inference tensors are copied.

    >>> @outside_inference
    ... def slope(x):
    ...     with torch.enable_grad():
    ...         return torch.autograd.grad((x.requires_grad_() ** 2).sum(), x)[0]
    >>> with torch.inference_mode():
    ...     slope(torch.ones(2))
    tensor([2., 2.])
    """

    @wraps(function)
    def called(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return function(*map(_own, args), **{name: _own(value) for name, value in kwargs.items()})  # type: ignore[arg-type]

    return called


def _own(value: object) -> object:
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        sizes = tuple(int(size) for size in shape)
    except (TypeError, ValueError):
        sizes = ()
    if not sizes or any(size < 1 for size in sizes):
        raise InvalidInput(f"input_shape must list positive sizes such as (1, 28, 28), got {shape!r}")
    return sizes


def _channels(name: str, value: Numbers, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
    """A number, or one number for each channel, shaped to broadcast against one input."""
    if value is None:
        return None
    tensor = torch.as_tensor(value, dtype=torch.float64).to(like)
    if tensor.dim() == 1 and len(tensor) == shape[0] and len(shape) > 1:
        tensor = tensor.reshape(-1, *(1,) * (len(shape) - 1))
    axes = tensor.dim() in (0, len(shape))
    fits = axes and all(one in (1, size) for one, size in zip(reversed(tensor.shape), reversed(shape), strict=False))
    if not fits or not bool(torch.isfinite(tensor).all()):
        raise InvalidInput(f"{name} must be a finite number or one for each channel of {shape}, got {value!r}")
    return tensor


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of torch for a while: several beside any other load wait for each other most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def single_threaded(found: Iterator[Result]) -> Iterator[Result]:
    """The same results, with one thread of torch for what happens between two of them."""
    while True:
        with one_thread():
            try:
                result = next(found)
            except StopIteration:
                return
        yield result
