"""What every step of a module means: the tables at the end are the complete list of what is understood."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relucert.core.errors import InvalidInput
from relucert.networks import affine, switching, unweighted
from relucert.networks.affine import Literal, Source
from relucert.networks.building import BATCH, Builder, Held, Traced


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, list | tuple):
        return (int(value[0]), int(value[-1]))
    return (int(value), int(value))


def _linear(t: Builder, z: Traced, weight: Any, bias: Any = None) -> Traced:
    source = t.tensor(weight, "weight")
    assert source is not None
    return t.add(affine.Linear(source, t.tensor(bias, "bias"), z.shape), z)


def _conv2d(
    t: Builder, z: Traced, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Traced:  # fmt: skip
    source = t.tensor(weight, "weight")
    assert source is not None
    if len(z.shape) != 3:
        raise InvalidInput(f"{t.where()} (conv2d) needs an input (channels, height, width), got shape {z.shape}")
    dilation = _pair(dilation)
    if padding == "valid":
        padding = 0
    if padding == "same":
        total = [step * (size - 1) for step, size in zip(dilation, source.value.shape[2:], strict=True)]
        padding = (total[0] // 2, total[1] // 2)
        if total[0] % 2 or total[1] % 2:  # torch puts the odd one at the far side
            z = t.add(unweighted.Pad(z.shape, (0, total[1] % 2, 0, total[0] % 2)), z)
    op = affine.Conv2d(
        source,
        t.tensor(bias, "bias"),
        z.shape,
        stride=_pair(stride),
        padding=_pair(padding),
        dilation=dilation,
        groups=groups,
    )
    return t.add(op, z)


def _batch_norm(
    t: Builder, z: Traced, mean: Any, var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: Any = 0.1, eps: float = 1e-5,
) -> Traced:  # fmt: skip
    mean, var = t.tensor(mean, "running mean"), t.tensor(var, "running variance")
    if training or mean is None or var is None:
        raise t.unsupported("batch norm needs running statistics")
    return t.add(affine.BatchNorm(mean, var, t.tensor(weight, "weight"), t.tensor(bias, "bias"), eps, z.shape), z)


def _avg_pool2d(
    t: Builder, z: Traced, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Traced:  # fmt: skip
    op = unweighted.AvgPool2d(
        z.shape,
        kernel=_pair(kernel_size),
        stride=_pair(kernel_size if stride is None or stride == [] else stride),
        padding=_pair(padding),
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        divisor=divisor_override,
    )
    return t.add(op, z)


def _adaptive_avg_pool2d(t: Builder, z: Traced, output_size: Any) -> Traced:
    sizes = output_size if isinstance(output_size, list | tuple) else (output_size, output_size)
    height, width = (own if size is None else size for size, own in zip(sizes, z.shape[1:], strict=True))
    return t.add(unweighted.AdaptiveAvgPool2d(z.shape, (height, width)), z)


def _max_pool2d(
    t: Builder, z: Traced, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Traced:  # fmt: skip
    if return_indices:
        raise t.unsupported("return_indices=True")
    op = switching.MaxPool2d(
        z.shape,
        kernel=_pair(kernel_size),
        stride=_pair(kernel_size if stride is None or stride == [] else stride),
        padding=_pair(padding),
        dilation=_pair(dilation),
        ceil_mode=ceil_mode,
    )
    return t.add(op, z)


def _relu(t: Builder, z: Traced, inplace: bool = False) -> Traced:
    return t.add(switching.ReLU(z.shape), z)


def _leaky_relu(t: Builder, z: Traced, negative_slope: float = 0.01, inplace: bool = False) -> Traced:
    if not 0 <= negative_slope <= 1:
        raise t.unsupported(f"negative_slope must lie in [0, 1], got {negative_slope}")
    return t.add(switching.ReLU(z.shape, float(negative_slope)), z)


def _clamp(t: Builder, z: Traced, min: Any = None, max: Any = None) -> Traced:
    if not isinstance(min, int | float) or min != 0 or max is not None:
        raise t.unsupported("clamp is a ReLU only with min=0 and without max")
    return t.add(switching.ReLU(z.shape), z)


def _nothing(t: Builder, z: Traced, *args: Any, **kwargs: Any) -> Traced:
    return z


def _dropout(t: Builder, z: Traced, p: float = 0.5, training: bool = True, inplace: bool = False) -> Traced:
    if training:
        raise t.unsupported("dropout stays switched on in eval mode (pass training=self.training)")
    return z


def _reshaped(t: Builder, z: Traced, sample: Tensor) -> Traced:
    if sample.shape[:1] != (BATCH,):
        raise t.unsupported("it mixes the examples of a batch")
    shape = tuple(sample.shape[1:])
    return z if shape == z.shape else t.add(unweighted.Reshape(z.shape, shape), z)


def _view(t: Builder, z: Traced, *shape: Any, **kwargs: Any) -> Traced:
    sizes = kwargs.get("shape", shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape)
    return _reshaped(t, z, z.sample.reshape(*sizes))


def _flatten(t: Builder, z: Traced, start_dim: int = 0, end_dim: int = -1) -> Traced:
    return _reshaped(t, z, z.sample.flatten(start_dim, end_dim))


def _squeeze(t: Builder, z: Traced, *dim: Any, **kwargs: Any) -> Traced:
    return _reshaped(t, z, z.sample.squeeze(*dim, **kwargs))


def _unsqueeze(t: Builder, z: Traced, dim: int) -> Traced:
    return _reshaped(t, z, z.sample.unsqueeze(dim))


def _axes(t: Builder, z: Traced, dims: Any) -> tuple[int, ...]:
    """Axes counted without the batch."""
    given = dims if isinstance(dims, list | tuple) else (dims,)
    axes = tuple(int(dim) % z.sample.dim() - 1 for dim in given)
    if -1 in axes:
        raise t.unsupported("it works along the batch axis")
    return axes


def _permute(t: Builder, z: Traced, *dims: Any) -> Traced:
    order = dims[0] if len(dims) == 1 and isinstance(dims[0], list | tuple) else dims
    if int(order[0]) % z.sample.dim() != 0:
        raise t.unsupported("it moves the batch axis")
    return t.add(unweighted.Permute(z.shape, _axes(t, z, tuple(order[1:]))), z)


def _transpose(t: Builder, z: Traced, dim0: int, dim1: int) -> Traced:
    first, second = _axes(t, z, (dim0, dim1))
    order = list(range(len(z.shape)))
    order[first], order[second] = order[second], order[first]
    return t.add(unweighted.Permute(z.shape, tuple(order)), z)


def _mean(t: Builder, z: Traced, dim: Any = None, keepdim: bool = False, axis: Any = None) -> Traced:
    dim = axis if dim is None else dim
    if dim is None:
        raise t.unsupported("it averages over the batch")
    return t.add(unweighted.Mean(z.shape, _axes(t, z, dim), keepdim), z)


def _pad(t: Builder, z: Traced, pad: Any, mode: str = "constant", value: Any = None) -> Traced:
    if mode != "constant" or value not in (None, 0):
        raise t.unsupported(f"only zero padding is, got mode={mode!r}, value={value}")
    if len(pad) > 2 * len(z.shape):
        raise t.unsupported("it pads the batch axis")
    return t.add(unweighted.Pad(z.shape, tuple(int(side) for side in pad)), z)


def _cat(t: Builder, tensors: Any, dim: int = 0, axis: int | None = None) -> Traced:
    if not all(isinstance(part, Traced) for part in tensors):
        raise t.unsupported("it joins the input with a constant")
    (place,) = _axes(t, tensors[0], dim if axis is None else axis)
    return t.add(unweighted.Concat([part.shape for part in tensors], place), *tensors)


def _add(t: Builder, a: Any, b: Any, *, alpha: Any = 1, sign: int = 1) -> Traced:
    if alpha != 1:
        raise t.unsupported(f"alpha must be 1, got {alpha}")
    if isinstance(a, Traced) and isinstance(b, Traced):
        if a.shape != b.shape:
            raise t.unsupported(f"it adds values of different shapes, {a.shape} and {b.shape}")
        return t.add(unweighted.Add(a.shape, (1, sign)), a, b)
    if isinstance(a, Traced):
        return _same_shape(t, a, affine.Shift(t.constant(b), sign, a.shape))
    if sign < 0:  # c - z
        b = t.add(affine.Scale(Literal(-1.0), False, b.shape), b)
    return _same_shape(t, b, affine.Shift(t.constant(a), 1, b.shape))


def _sub(t: Builder, a: Any, b: Any, *, alpha: Any = 1) -> Traced:
    return _add(t, a, b, alpha=alpha, sign=-1)


def _mul(t: Builder, a: Any, b: Any) -> Traced:
    if isinstance(a, Traced) and isinstance(b, Traced):
        raise t.unsupported("it multiplies two values that both depend on the input")
    z, c = (a, b) if isinstance(a, Traced) else (b, a)
    return _same_shape(t, z, affine.Scale(t.constant(c), False, z.shape))


def _div(t: Builder, a: Any, b: Any) -> Traced:
    if not isinstance(a, Traced) or isinstance(b, Traced):
        raise t.unsupported("it divides by a value that depends on the input")
    return _same_shape(t, a, affine.Scale(t.constant(b), True, a.shape))


def _neg(t: Builder, z: Traced) -> Traced:
    return t.add(affine.Scale(Literal(-1.0), False, z.shape), z)


def _same_shape(t: Builder, z: Traced, op: affine.Shift | affine.Scale) -> Traced:
    made = t.add(op, z)
    if made.shape != z.shape:
        raise t.unsupported(f"the constant changes the shape from {z.shape} to {made.shape}")
    return made


def _select(t: Builder, z: Traced, dim: int, index: Any) -> Traced:
    source = t.tensor(index, "index")
    if len(z.shape) != 1 or _axes(t, z, dim) != (0,):
        raise t.unsupported(f"it selects along one of several axes (flatten the value first), got shape {z.shape}")
    assert source is not None
    places, size = source.value, z.shape[0]
    if places.dtype not in (torch.int32, torch.int64):
        raise t.unsupported(f"its index must hold whole numbers, got dtype {places.dtype}")
    if places.numel() == 0 or not bool(((places >= -size) & (places < size)).all()):
        found = f"{int(places.min())}..{int(places.max())}" if places.numel() else "none"
        raise InvalidInput(f"{t.where()}: index must hold places in {-size}..{size - 1}, got {found}")
    return t.add(affine.Gather(source, z.shape), z)


def _item(t: Builder, z: Traced, key: Any) -> Traced:
    whole = isinstance(key, tuple) and len(key) == 2 and key[0] == slice(None)
    if not whole or not isinstance(key[1], Held):
        raise t.unsupported("entries can be taken by an index buffer alone, as z[:, index] of a flat value")
    return _select(t, z, 1, key[1])


def _attribute(t: Builder, z: Traced, name: str) -> Any:
    if name in ("shape", "ndim", "dtype", "device"):
        return getattr(z.sample, name)
    raise t.unsupported(f"it reads the attribute {name!r}")


def _held(part: nn.Module, name: str) -> Held | None:
    return None if getattr(part, name, None) is None else Held(Source(part, name))


def _conv_module(t: Builder, part: nn.Conv2d, z: Traced) -> Traced:
    if part.padding_mode != "zeros":
        raise t.unsupported(f"padding_mode must be 'zeros', got {part.padding_mode!r}")
    weight, bias = _held(part, "weight"), _held(part, "bias")
    return _conv2d(t, z, weight, bias, part.stride, part.padding, part.dilation, part.groups)


def _batch_norm_module(t: Builder, part: Any, z: Traced) -> Traced:
    mean, var, weight, bias = (_held(part, name) for name in ("running_mean", "running_var", "weight", "bias"))
    return _batch_norm(t, z, mean, var, weight, bias, eps=part.eps)


def _avg_pool_module(t: Builder, part: nn.AvgPool2d, z: Traced) -> Traced:
    return _avg_pool2d(
        t, z, part.kernel_size, part.stride, part.padding, part.ceil_mode, part.count_include_pad, part.divisor_override
    )


def _max_pool_module(t: Builder, part: nn.MaxPool2d, z: Traced) -> Traced:
    return _max_pool2d(
        t, z, part.kernel_size, part.stride, part.padding, part.dilation, part.ceil_mode, part.return_indices
    )


MODULES: dict[type, Callable[[Builder, Any, Traced], Traced]] = {
    nn.Linear: lambda t, part, z: _linear(t, z, _held(part, "weight"), _held(part, "bias")),
    nn.Conv2d: _conv_module,
    nn.BatchNorm1d: _batch_norm_module,
    nn.BatchNorm2d: _batch_norm_module,
    nn.AvgPool2d: _avg_pool_module,
    nn.AdaptiveAvgPool2d: lambda t, part, z: _adaptive_avg_pool2d(t, z, part.output_size),
    nn.MaxPool2d: _max_pool_module,
    nn.ReLU: lambda t, part, z: _relu(t, z),
    nn.LeakyReLU: lambda t, part, z: _leaky_relu(t, z, part.negative_slope),
    nn.Flatten: lambda t, part, z: _flatten(t, z, part.start_dim, part.end_dim),
    nn.Unflatten: lambda t, part, z: _reshaped(t, z, part(z.sample)),
    nn.ZeroPad2d: lambda t, part, z: _pad(t, z, part.padding),
    nn.Identity: lambda t, part, z: z,
    nn.Dropout: lambda t, part, z: z,
    nn.Dropout1d: lambda t, part, z: z,
    nn.Dropout2d: lambda t, part, z: z,
}

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    F.linear: _linear,
    F.conv2d: _conv2d,
    torch.conv2d: _conv2d,
    F.batch_norm: _batch_norm,
    F.avg_pool2d: _avg_pool2d,
    F.adaptive_avg_pool2d: _adaptive_avg_pool2d,
    F.max_pool2d: _max_pool2d,
    torch.max_pool2d: _max_pool2d,
    F.relu: _relu,
    F.relu_: _relu,
    torch.relu: _relu,
    torch.relu_: _relu,
    F.leaky_relu: _leaky_relu,
    F.leaky_relu_: _leaky_relu,
    torch.clamp: _clamp,
    torch.clamp_min: _clamp,
    F.dropout: _dropout,
    F.dropout2d: _dropout,
    F.pad: _pad,
    torch.flatten: _flatten,
    torch.reshape: _view,
    torch.squeeze: _squeeze,
    torch.unsqueeze: _unsqueeze,
    torch.permute: _permute,
    torch.transpose: _transpose,
    torch.mean: _mean,
    torch.cat: _cat,
    torch.concat: _cat,
    torch.concatenate: _cat,
    torch.add: _add,
    torch.sub: _sub,
    torch.mul: _mul,
    torch.div: _div,
    torch.neg: _neg,
    operator.add: _add,
    operator.iadd: _add,
    operator.sub: _sub,
    operator.isub: _sub,
    operator.mul: _mul,
    operator.imul: _mul,
    operator.truediv: _div,
    operator.itruediv: _div,
    operator.neg: _neg,
    operator.getitem: _item,
    torch.index_select: _select,
    getattr: _attribute,
}

METHODS: dict[Any, Callable[..., Any]] = {
    "relu": _relu,
    "relu_": _relu,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "view": _view,
    "reshape": _view,
    "flatten": _flatten,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "permute": _permute,
    "transpose": _transpose,
    "mean": _mean,
    "contiguous": _nothing,
    "clone": _nothing,
    "add": _add,
    "add_": _add,
    "sub": _sub,
    "sub_": _sub,
    "mul": _mul,
    "mul_": _mul,
    "div": _div,
    "div_": _div,
    "neg": _neg,
    "index_select": _select,
    "size": lambda t, z, *dim: z.sample.size(*dim),
    "dim": lambda t, z: z.sample.dim(),
}

INPLACE = {
    F.relu_, torch.relu_, F.leaky_relu_, operator.iadd, operator.isub, operator.imul, operator.itruediv,
    "relu_", "add_", "sub_", "mul_", "div_",
}  # fmt: skip
