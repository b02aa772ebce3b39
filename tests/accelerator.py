"""A fake accelerator: tensors that hold numbers, say that they are on another device, and refuse what a real device refuses.

Inside `fake_accelerator()` the device `DEVICE` exists. Operations on its tensors are computed on the CPU. As on a real device,
tensors of two devices do not mix, but for numbers (tensors without axes) and positions on the CPU that index a tensor of the
device; `.numpy()` is an error; and a tensor of the CPU is not written in place by one of the device, but for copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

#: A device type that this build of torch knows, that needs no driver, and whose gradients are computed by the CPU's queue.
DEVICE = torch.device("lazy", 0)

aten = torch.ops.aten
_COPIES = {aten._to_copy.default, aten.copy_.default}
_INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


class OnDevice(Tensor):
    """A tensor of the fake accelerator; `held` has its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        made = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.held!r})"

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert a tensor of the accelerator to numpy: copy it to the CPU first")

    def tolist(self) -> Any:
        return self.held.tolist()

    def __array__(self, *_: Any) -> Any:
        return self.numpy()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Sends functions that make tensors on the device, and copies to it, the same way."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Makes tensors of Python numbers on the CPU first: torch itself does so below the level of operations."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return function(*args, **kwargs).to(device)
        if function is Tensor.new_tensor and isinstance(args[0], OnDevice):
            return torch.tensor(*args[1:], **({"dtype": args[0].dtype} | kwargs)).to(DEVICE)
        return function(*args, **kwargs)


def _run(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    values = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
    ours = [value for value in values if isinstance(value, OnDevice)]
    wanted = kwargs.get("device")
    kwargs = {
        name: torch.device("cpu") if name == "device" and value is not None else value for name, value in kwargs.items()
    }
    if wanted is not None:
        wrapped = torch.device(wanted).type == DEVICE.type
    else:
        wrapped = bool(ours)
    if function is aten.copy_.default:
        wrapped = isinstance(args[0], OnDevice)
    elif function not in _COPIES and ours:
        others = [value for value in values if not isinstance(value, OnDevice) and value.dim() > 0]
        if function in _INDEXED and isinstance(args[0], OnDevice):
            positions = {id(value) for value in args[1] if value is not None}
            others = [value for value in others if id(value) not in positions]
        if others:
            raise RuntimeError(f"expected all tensors on one device, but {function} got lazy:0 and cpu")
    plain = tree_map(lambda value: value.held if isinstance(value, OnDevice) else value, (args, kwargs))
    result = function(*plain[0], **plain[1])
    if not function._schema.returns:
        return None
    if _in_place(function):
        return args[0]
    return tree_map(lambda value: OnDevice(value) if wrapped and type(value) is Tensor else value, result)


def _in_place(function: Any) -> bool:
    """Whether the result is the first argument, changed."""
    first = function._schema.arguments[:1]
    return bool(first) and first[0].alias_info is not None and first[0].alias_info.is_write


@contextmanager
def fake_accelerator() -> Iterator[torch.device]:
    """Make the device exist for a while."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    # A parameter that is converted becomes another one: its old `held` would stay behind its new dtype.
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with _Mode(), _Functions():
            yield DEVICE
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
