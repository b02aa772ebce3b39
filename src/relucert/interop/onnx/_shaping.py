"""Operators that reorder, repeat or choose entries: shapes, transposes, slices, splits, padding, concatenation."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

import numpy as np

from relucert.interop.onnx._graph import Array, Description, MixedBatch, Operation, Refused, Value, bounded, distinct


def flatten(to: Description, node: Operation) -> Value:
    """All axes from the given one on as one, and all before it as one."""
    z, axis = node.value(), int(node.attributes.get("axis", 1))
    if not -len(z.shape) <= axis <= len(z.shape):
        raise Refused(f"axis must lie in {-len(z.shape)}..{len(z.shape)}, got {axis}")
    axis = axis + len(z.shape) if axis < 0 else axis
    return to.reshaped(z, (math.prod(z.shape[:axis]), math.prod(z.shape[axis:])))


def reshape(to: Description, node: Operation) -> Value:
    """The same entries in another shape; 0 keeps a size, -1 is what is left."""
    z, given = node.value(), node.whole("shape", 1)
    if given is None:
        raise Refused("its shape must be constant")
    sizes = list(given)
    if not node.attributes.get("allowzero", 0):
        if any(size == 0 and place >= len(z.shape) for place, size in enumerate(sizes)):
            raise Refused(f"the shape {given} keeps axes that the value {z.shape} does not have")
        sizes = [z.shape[place] if size == 0 else size for place, size in enumerate(sizes)]
    total, known = math.prod(z.shape), math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) > 1 or any(size < -1 for size in sizes) or known == 0:
        raise Refused(f"the shape {given} must fit a value of shape {z.shape}")
    sizes = [total // known if size == -1 else size for size in sizes]
    if math.prod(sizes) != total:  # the batch may be meant to be 1
        raise MixedBatch(f"the shape {given} must fit a value of shape {z.shape}")
    return to.reshaped(z, sizes)


def squeeze(to: Description, node: Operation) -> Value:
    """Axes of size one taken away."""
    z, axes = node.value(), node.whole("axes", 1)
    rank = len(z.shape)
    gone = {i for i in range(1, rank) if z.shape[i] == 1} if axes is None else set(distinct(axes, rank))
    if any(z.shape[axis] != 1 for axis in gone):
        raise Refused(f"it takes away axes {axes} of shape {z.shape} that have more than one entry")
    return to.reshaped(z, [size for i, size in enumerate(z.shape) if i not in gone])


def unsqueeze(to: Description, node: Operation) -> Value:
    """New axes of size one."""
    z, axes = node.value(), node.whole("axes", 1)
    if axes is None:
        raise Refused("its axes must be constant")
    rank = len(z.shape) + len(axes)
    fresh = set(distinct(axes, rank))
    rest = iter(z.shape)
    return to.reshaped(z, [1 if i in fresh else next(rest) for i in range(rank)])


def transpose(to: Description, node: Operation) -> Value:
    """The axes in another order."""
    z = node.value()
    order = [int(axis) for axis in node.attributes.get("perm", range(len(z.shape))[::-1])]
    if sorted(order) != list(range(len(z.shape))):
        raise Refused(f"perm must list the axes of shape {z.shape}, got {order}")
    if order[0] != 0:
        if z.batch != 1 or z.shape[order[0]] != 1:
            raise MixedBatch("it moves the batch axis")
        # The batch and the axis that takes its place both have one entry.
        order = [0 if axis == order[0] else order[0] if axis == 0 else axis for axis in order]
    return to.add("permute", z, axes=[axis - 1 for axis in order[1:]])


def slice_(to: Description, node: Operation) -> Value:
    """Ranges along axes behind the batch."""
    z = node.value()
    starts, ends = node.whole("starts", 1), node.whole("ends", 2)
    if starts is None or ends is None or len(starts) != len(ends):
        raise Refused("its starts and ends must be constant, one of each for an axis")
    axes = node.whole("axes", 3) or list(range(len(starts)))
    steps = node.whole("steps", 4) or [1] * len(starts)
    if not len(axes) == len(steps) == len(starts) or 0 in steps:
        raise Refused("it needs one axis and one step, not zero, for each start")
    distinct(axes, len(z.shape))
    keys = [slice(None)] * len(z.inner)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        rank = len(z.shape)
        if -rank <= axis < rank and axis % rank == 0 and (start, step) == (0, 1) and end >= z.batch:
            continue  # the whole batch
        size = z.inner[z.axis(axis)]
        stop = None if step < 0 and end < -size else end
        keys[z.axis(axis)] = slice(start, stop, step)
    ranges = [list(key.indices(size)) for key, size in zip(keys, z.inner, strict=True)]
    if any(len(range(*one)) == 0 for one in ranges):
        raise Refused("it takes no entry")
    if any(step < 0 for _, _, step in ranges):
        return to.gathered(z, lambda table: table[tuple(keys)])
    return to.sliced(z, ranges)


def split(to: Description, node: Operation) -> list[Value]:
    """Parts along one axis."""
    z = node.value()
    axis, count = z.axis(int(node.attributes.get("axis", 0))), len(node.outputs)
    size = z.inner[axis]
    sizes = node.whole("split", 1)
    if int(node.attributes.get("num_outputs", count)) != count:
        raise Refused(f"num_outputs must be the number of outputs, {count}, got {node.attributes['num_outputs']}")
    if sizes is None:
        if "num_outputs" not in node.attributes and size % count:
            raise Refused(f"{size} entries must split into {count} equal parts")
        part = -(-size // count)
        sizes = [part] * (count - 1) + [size - part * (count - 1)]
    if len(sizes) != count or sum(sizes) != size or min(sizes) < 1:
        raise Refused(f"the sizes {sizes} must be positive and add up to {size}, one for each of {count} outputs")
    ends = [0, *accumulate(sizes)]
    return [
        to.sliced(z, [[low, high, 1] if i == axis else [0, n, 1] for i, n in enumerate(z.inner)])
        for low, high in pairwise(ends)
    ]


def gather(to: Description, node: Operation) -> Value:
    """Entries along one axis, by constant places."""
    z, index = node.value(), node.constant(1)
    axis = z.axis(int(node.attributes.get("axis", 0)))
    if not np.issubdtype(index.dtype, np.integer):
        raise Refused(f"its places must be whole numbers, got {index.dtype}")
    size = z.inner[axis]
    if index.size == 0 or index.min() < -size or index.max() >= size:
        raise Refused(f"its places must lie in {-size}..{size - 1}")
    bounded([math.prod(z.inner) // size, index.size])
    return to.gathered(z, lambda table: np.take(table, index, axis))


def concat(to: Description, node: Operation) -> Value:
    """Values, and constants, side by side along one axis."""
    if "axis" not in node.attributes:
        raise Refused("its axis is missing")
    first = next(one for one in node.inputs if isinstance(one, Value))
    axis = first.axis(int(node.attributes["axis"]))
    parts: list[Value] = []
    for place, one in enumerate(node.inputs):
        if isinstance(one, Value):
            parts.append(one)
            continue
        constant = node.constant(place)
        if constant.ndim != len(first.shape) or (len(constant) > 1 and not (constant == constant[:1]).all()):
            raise Refused(f"a constant must have the axes of the value, got shape {constant.shape}")
        parts.append(_made(to, first, constant[0]))
    return parts[0] if len(parts) == 1 else to.add("concat", *parts, axis=axis)


def _made(to: Description, z: Value, constant: Array) -> Value:
    """A constant as a value: one entry times zero, repeated, plus the constant."""
    zero = to.add("scale", to.gathered(z, lambda table: table.reshape(-1)[:1]), divide=False, number=0.0)
    spread = to.gathered(zero, lambda table: np.broadcast_to(table.reshape(()), constant.shape))
    return to.add("shift", spread, tensors={"constant": constant}, sign=1)


def pad(to: Description, node: Operation) -> Value:
    """Constants, or copies of entries, around a value; negative padding cuts off."""
    z, pads = node.value(), node.whole("pads", 1)
    mode = node.attributes.get("mode", "constant")
    if pads is None:
        raise Refused("its pads must be constant")
    rank, axes = len(z.shape), node.whole("axes", 3)
    axes = list(range(rank)) if axes is None else distinct(axes, rank)
    if len(pads) != 2 * len(axes):
        raise Refused(f"it needs two numbers for each axis, got {pads}")
    sides = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        sides[axis] = (pads[i], pads[len(axes) + i])
    if sides[0] != (0, 0):
        raise MixedBatch("it pads the batch axis")
    bounded([size + max(0, before) + max(0, behind) for size, (before, behind) in zip(z.shape, sides, strict=True)])
    inner = sides[1:]
    if any(min(side) < 0 for side in inner):
        kept = [
            (max(0, -before), size - max(0, -behind)) for size, (before, behind) in zip(z.inner, inner, strict=True)
        ]
        if any(low >= high for low, high in kept):
            raise Refused("it leaves no entry")
        z = to.sliced(z, [[low, high, 1] for low, high in kept])
        inner = [(max(0, before), max(0, behind)) for before, behind in inner]
    if mode in ("edge", "reflect", "wrap"):
        return to.gathered(z, lambda table: np.pad(table, inner, mode=mode))
    if mode != "constant":
        raise Refused(f"mode must be constant, edge, reflect or wrap, got {mode!r}")
    given = node.optional(2)
    value = float(node.attributes.get("value", 0.0) if given is None else given.reshape(()))
    made = to.add("pad", z, padding=[side for sides in reversed(inner) for side in sides])
    if value == 0:
        return made
    kind = str(z.sample.dtype).removeprefix("torch.")
    around = np.pad(np.zeros(z.inner, kind), inner, constant_values=value)
    return to.add("shift", made, tensors={"constant": around}, sign=1)


def expand(to: Description, node: Operation) -> Value:
    """A value repeated along axes of size one."""
    z, sizes = node.value(), node.whole("shape", 1)
    if sizes is None or any(size < 1 for size in sizes):
        raise Refused("its shape must be constant and positive")
    bounded(sizes)
    shape = np.broadcast_shapes(z.shape, tuple(sizes))
    if len(shape) != len(z.shape) or shape[0] != z.batch:
        raise MixedBatch(f"it repeats the examples of a batch: shape {z.shape} becomes {shape}")
    return to.broadcast(z, shape[1:])


def identity(to: Description, node: Operation) -> Value:
    """The value itself."""
    return node.value()


def dropout(to: Description, node: Operation) -> Value:
    """The value itself, as dropout is in eval mode."""
    if any(node.outputs[1:]):
        raise Refused("the mask of a dropout is not supported")
    if len(node.inputs) > 2 and np.any(node.optional(2) or False):
        raise Refused("dropout stays switched on: export the model in eval mode")
    return node.value()


def cast(to: Description, node: Operation) -> Value:
    """A cast to the dtype that the value has."""
    z = node.value()
    kinds = {1: "torch.float32", 11: "torch.float64"}
    if kinds.get(int(node.attributes.get("to", 0))) != str(z.sample.dtype):
        raise Refused("it changes the dtype of a value")
    return z
