"""From an `nn.Module` to a graph: torch.fx records the steps, a reader adds the nodes of each step.

The recorded steps are replayed on a small batch, so that shapes are known and anything that only depends on shapes
(`x.view(x.size(0), -1)`) is already a number. Steps without a reader (`networks/layers/`) are an
error that names all of them and where they stand: behind such a step the replay goes on with what torch computes.
"""

from __future__ import annotations

import dataclasses
import inspect
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError

from relucert.core.errors import InvalidInput, UnsupportedLayer
from relucert.networks.build.builder import Builder, refusal
from relucert.networks.build.values import Held, Traced
from relucert.networks.layers.arithmetic import Scale, Shift
from relucert.networks.layers.table import module_reader, overwrites, reader, supported
from relucert.networks.nodes import Shape, Source, transposed
from relucert.networks.traversal import Graph, Node


def trace(module: nn.Module, input_shape: Shape, mean: Source | None, std: Source | None, like: Tensor) -> Graph:
    """The graph of `module` applied to `(x - mean) / std`, for inputs of the dtype and device of `like`."""
    builder = Builder(module, input_shape, like)
    start = builder.input
    if mean is not None:
        start = builder.add(Shift(mean, -1, start.shape), start, name="input normalisation")
    if std is not None:
        start = builder.add(Scale(std, True, start.shape), start, name="input normalisation")
    return _Replay(builder, start).graph()


_TORCH = str(Path(torch.__file__).parent)

#: Modules that compute something else in train mode.
MODAL = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd, nn.RReLU)


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside `torch.compile`, `nn.DataParallel` or `DistributedDataParallel`.

    >>> layer = nn.Linear(2, 2)
    >>> unwrapped(nn.DataParallel(layer)) is layer
    True
    """
    while (inner := _inside(module)) is not None:
        module = inner
    return module


def _inside(module: nn.Module) -> nn.Module | None:
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    inner = module.module if isinstance(module, parallel) else getattr(module, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else None


def logits_of(output: Any) -> Any:
    """The logits of a module's output: the output itself, its entry or attribute `logits`, or the one value of a tuple."""
    if type(output) is tuple and len(output) == 1:
        return output[0]
    if isinstance(output, dict):
        return output.get("logits", output)
    return output if isinstance(output, Tensor | Traced) else getattr(output, "logits", output)


#: Sizes of batches for which a branch must go the same way.
BATCHES = (1, 2, 3, 10, 64, 100, 1000, 10**5, 10**8)


class _Value(fx.Proxy):
    """A recorded value: of several parts it has the number, so that a call can take each as an argument."""

    def __len__(self) -> int:
        return cast(_Tracer, self.tracer).parts(self)


class _Tracer(fx.Tracer):
    """Records compiled and parallel parts as what they hold, and takes branches on the shape of the input as the shape says."""

    proxy_buffer_attributes = True

    def __init__(self, input_shape: Shape):
        super().__init__()
        self.input_shape = input_shape

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Whether a condition holds that depends on the input's shape alone, whatever the batch; all others are errors."""
        try:
            found = {bool(self._of_shape(obj.node, batch)) for batch in BATCHES}
        except Exception:  # tensors without numbers have no truth value
            return super().to_bool(obj)
        return found.pop() if len(found) == 1 else super().to_bool(obj)

    def _of_shape(self, node: fx.Node, batch: int) -> Any:
        """What a recorded step makes of an input that has a shape, and no numbers; steps on weights are refused."""
        if node is next(iter(node.graph.nodes)):
            return torch.empty((batch, *self.input_shape), device="meta")
        if node.op not in ("call_function", "call_method"):
            raise UnsupportedLayer(f"{node.op} must not decide a branch")
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda other: self._of_shape(other, batch))  # type: ignore[misc]
        return _done(node, args, kwargs)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Value(node, self)

    def parts(self, obj: fx.Proxy) -> int:
        """The number of parts of a value, such as chunks, that the shape of the input decides; all else is an error."""
        try:
            found = self._of_shape(obj.node, BATCHES[-1])
        except Exception:
            found = None
        if not isinstance(found, list | tuple):
            way = "give its parts names instead, as in a, b = z.chunk(2, 1)"
            raise TraceError(f"the parts of {obj.node.name} are not known in advance: {way}")
        return len(found)

    def iter(self, obj: fx.Proxy) -> Iterator[fx.Proxy]:
        return iter([cast(Any, obj)[place] for place in range(self.parts(obj))])

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        inner = unwrapped(m)
        return super().call_module(inner, forward if inner is m else inner.forward, args, kwargs)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """A step with the lines of the module's code that make it; torch's own record of these imports its compilers."""
        node = super().create_node(*args, **kwargs)
        frames = traceback.extract_stack()
        first = next((place for place, frame in enumerate(frames) if frame.name == "forward"), len(frames))
        lines = [frame for frame in frames[first:] if not frame.filename.startswith((_TORCH, __file__))]
        node.stack_trace = "".join(traceback.format_list(lines)).strip() or None
        return node


def mode_matters(module: nn.Module, input_shape: Shape) -> bool:
    """Whether the code of a module reads its mode, as `F.dropout(z, training=self.training)` does."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        recorded = []
        for mode in (True, False):
            module.train(mode)
            steps = _recorded(module, input_shape).nodes
            recorded.append([(step.op, str(step.target), str(step.args), str(step.kwargs)) for step in steps])
    except Exception:  # train mode runs other code, which cannot be recorded
        return True
    finally:
        for part, training in modes:
            part.training = training
    return recorded[0] != recorded[1]


def _recorded(module: nn.Module, input_shape: Shape) -> fx.Graph:
    """The steps of a module's forward with one input, other parameters at their defaults."""
    before = set(vars(module))
    parameters = list(inspect.signature(module.forward).parameters.values())
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    rest = {one.name: one.default for one in parameters[1:] if one.kind not in kinds and one.default is not one.empty}
    try:
        return _Tracer(input_shape).trace(module, concrete_args=rest or None)
    finally:
        for name in set(vars(module)) - before:  # tensors made in forward, which the tracer leaves there
            delattr(module, name)


class _Replay:
    """One pass over the recording: `env` holds what every recorded value is."""

    def __init__(self, builder: Builder, start: Traced):
        self.builder, self.module, self.start = builder, builder.module, start
        self.refused: list[str] = []

    def graph(self) -> Graph:
        modes = [(part, part.training) for part in self.module.modules()]
        try:
            # In eval mode, as certificates mean it: dropout is nothing and batch norm uses its running statistics.
            self.module.eval()
            recording = self._record()
        finally:
            for part, training in modes:
                part.training = training
        env: dict[fx.Node, Any] = {}
        output: Any = None
        for node in recording.nodes:
            self.builder.current = node
            if node.op == "output":
                output = fx.map_arg(node.args[0], lambda other: env[other])
            else:
                env[node] = self._tried(node, env)
        if self.refused:
            raise UnsupportedLayer(refusal(self.refused))
        output = logits_of(output)
        if not isinstance(output, Traced) or len(output.shape) != 1:
            shape = output.shape if isinstance(output, Traced) else type(output).__name__
            raise UnsupportedLayer(
                f"module {type(self.module).__name__} must return one tensor of logits (batch, classes), or have it as the "
                f"entry `logits` of its output, got {shape}: wrap it in a module that returns the logits alone"
            )
        return _prune(self.builder.nodes, output.index)

    def _record(self) -> fx.Graph:
        if isinstance(self.module, torch.jit.ScriptModule):
            raise UnsupportedLayer(
                f"module {type(self.module).__name__} is compiled by torch.jit, whose code cannot be traced: take the module "
                "that was compiled, or export it to ONNX and read the file by relucert.load"
            )
        try:
            return _recorded(self.module, self.start.shape)
        except Exception as error:
            raise UnsupportedLayer(
                f"module {type(self.module).__name__} cannot be traced: {error}. Its forward must take one tensor and "
                f"run the same layers for every input, without branches on values. {supported()}"
            ) from error

    def _tried(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        """The value of a step; of a step that is refused, what torch computes, so that later steps are looked at too."""
        try:
            return self._step(node, env)
        except UnsupportedLayer as error:
            self.refused.append(str(error))
            try:
                return self._computed(node, env)
            except Exception:
                raise UnsupportedLayer(refusal(self.refused)) from error
        except InvalidInput as error:
            if self.refused:  # what lies behind a refused step may have a wrong shape: the step is the reason
                raise UnsupportedLayer(refusal(self.refused)) from error
            raise

    def _computed(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda other: _tensor(env[other]))  # type: ignore[misc]
        with torch.no_grad():
            if node.op == "call_module":
                made = self.module.get_submodule(str(node.target))(*args, **kwargs)
            else:
                made = self._plain(node, args, kwargs)
        return self.builder.opaque(made)

    def _step(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        if node.op == "placeholder" and str(node.target).startswith("*"):
            return {} if str(node.target).startswith("**") else ()
        if node.op == "placeholder":
            if any(value is self.start for value in env.values()):
                if node.args:  # a second argument with a default
                    return node.args[0]
                raise self.builder.unsupported("forward must take one tensor")
            return self.start
        if node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            if not hasattr(self.module.get_submodule(owner), name):
                raise self.builder.unsupported("it makes a tensor in forward; register it as a buffer instead")
            return Held(Source(self.module.get_submodule(owner), name))
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda other: env[other])  # type: ignore[misc]
        if node.op == "call_module":
            part = self.module.get_submodule(str(node.target))
            read = module_reader(type(part))
            if read is None or not args or not isinstance(args[0], Traced):
                raise self.builder.unsupported()
            made = read(self.builder, part, args[0])
            inplace = bool(getattr(part, "inplace", False))
        else:
            if not _touches((args, kwargs), Traced):
                if _touches((args, kwargs), Held):
                    return self._held(node, args)
                return self._plain(node, args, kwargs)
            if isinstance(node.target, type) and dataclasses.is_dataclass(node.target):  # an output with fields
                names = [one.name for one in dataclasses.fields(node.target)]
                return dict(zip(names, args, strict=False)) | kwargs
            read = reader(node.target)
            if read is None:
                raise self.builder.unsupported()
            try:
                made = read(self.builder, *args, **kwargs)
            except UnsupportedLayer:
                raise
            except TypeError as error:  # an argument that the reader does not know
                raise self.builder.unsupported(f"with these arguments ({error})") from error
            inplace = bool(kwargs.get("inplace")) or overwrites(node.target)
            inplace = inplace or (node.target in (F.relu, F.leaky_relu) and args[-1] is True)
        if inplace and node.args and isinstance(node.args[0], fx.Node):
            env[node.args[0]] = made  # whoever reads the old value later sees the new one
        return made

    def _held(self, node: fx.Node, args: Any) -> Any:
        """A step on a tensor of the module: the transpose of a matrix, or its shape."""
        value, attribute = args[0], args[1] if node.target is getattr else None
        if isinstance(value, Held):
            matrix = value.source.value.dim() == 2
            if matrix and (node.target in ("t", torch.t) or attribute in ("T", "mT")):
                return Held(transposed(value.source))
            if matrix and node.target in ("transpose", torch.transpose) and {i % 2 for i in args[1:]} == {0, 1}:
                return Held(transposed(value.source))
            if node.target == "size" or attribute in ("shape", "dtype", "device", "ndim"):
                found = value.source.value
                return getattr(found, attribute) if attribute else found.size(*args[1:])
        raise self.builder.unsupported("it computes on parameters or buffers in forward; keep the result as a buffer")

    def _plain(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """A step on shapes and numbers only: just do it."""
        return _done(node, args, kwargs)


def _done(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """What the function or method of a step returns."""
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _tensor(value: Any) -> Any:
    return value.sample if isinstance(value, Traced) else value.source.value if isinstance(value, Held) else value


def _touches(tree: Any, kind: type) -> bool:
    if isinstance(tree, list | tuple):
        return any(_touches(part, kind) for part in tree)
    if isinstance(tree, dict):
        return any(_touches(part, kind) for part in tree.values())
    return isinstance(tree, kind)


def _prune(nodes: list[Node], output: int) -> Graph:
    """Keep what the output needs, in the same order."""
    needed, stack = {0}, [output]
    while stack:
        index = stack.pop()
        if index not in needed:
            needed.add(index)
            stack.extend(nodes[index].inputs)
    place = {old: new for new, old in enumerate(sorted(needed))}
    kept = [nodes[old] for old in sorted(needed)]
    return Graph(
        tuple(
            Node(place[node.index], node.name, node.op, tuple(place[i] for i in node.inputs), node.shape)
            for node in kept
        )
    )
