"""Operators on single entries: sums, products with constants, ReLUs with any slope, clips."""

from __future__ import annotations

import numpy as np

from relucert.interop.onnx._graph import Array, Description, Operation, Refused, Value


def add(to: Description, node: Operation) -> Value:
    """A sum of values and constants."""
    return _sum(to, node, 1)


def subtract(to: Description, node: Operation) -> Value:
    """A difference of values and constants."""
    return _sum(to, node, -1)


def _sum(to: Description, node: Operation, sign: int) -> Value:
    total = node.inputs[0]
    for place in range(1, len(node.inputs)):
        other = node.inputs[place]
        if isinstance(total, Value) and isinstance(other, Value):
            total = to.add("add", *_alike(to, total, other), signs=[1, sign])
        elif isinstance(total, Value):
            total = shifted(to, total, node.constant(place), sign)
        elif isinstance(other, Value) and isinstance(total, np.ndarray):
            other = other if sign > 0 else negated(to, other)
            total = shifted(to, other, total)
        elif isinstance(total, np.ndarray) and isinstance(other, np.ndarray):
            total = total + other if sign > 0 else total - other
        else:
            raise Refused("its inputs must be values and constants")
    return total if isinstance(total, Value) else node.value()


def _alike(to: Description, one: Value, other: Value) -> tuple[Value, Value]:
    """Two values in the shape to which they broadcast."""
    shape = np.broadcast_shapes(one.inner, other.inner)
    if len(one.inner) != len(other.inner):
        raise Refused(f"it combines values of different numbers of axes, {one.inner} and {other.inner}")
    return to.broadcast(one, shape), to.broadcast(other, shape)


def _constant(to: Description, z: Value, constant: Array) -> tuple[Value, Array]:
    """A constant without the batch axis, and the value in the shape to which both broadcast."""
    constant = to.without_batch(constant, z)
    return to.broadcast(z, np.broadcast_shapes(z.inner, constant.shape)), constant


def shifted(to: Description, z: Value, constant: Array, sign: int = 1) -> Value:
    """`z + c` or `z - c`."""
    z, constant = _constant(to, z, constant)
    return to.add("shift", z, tensors={"constant": constant}, sign=sign)


def negated(to: Description, z: Value) -> Value:
    """`-z`."""
    return to.add("scale", z, divide=False, number=-1.0)


def multiply(to: Description, node: Operation) -> Value:
    """A product of a value and a constant."""
    place = 0 if isinstance(node.inputs[0], Value) else 1
    if isinstance(node.inputs[1 - place], Value):
        raise Refused("it multiplies two values that both depend on the input")
    z, constant = _constant(to, node.value(place), node.constant(1 - place))
    return to.add("scale", z, tensors={"constant": constant}, divide=False)


def divide(to: Description, node: Operation) -> Value:
    """A quotient of a value and a constant."""
    if isinstance(node.inputs[1], Value):
        raise Refused("it divides by a value that depends on the input")
    z, constant = _constant(to, node.value(), node.constant(1))
    if (constant == 0).any():
        raise Refused("it divides by zero")
    return to.add("scale", z, tensors={"constant": constant}, divide=True)


def negate(to: Description, node: Operation) -> Value:
    """`-z`."""
    return negated(to, node.value())


def _relu(to: Description, z: Value, slope: float = 0.0) -> Value:
    return to.add("relu", z, slope=slope)


def relu(to: Description, node: Operation) -> Value:
    """`max(z, 0)`."""
    return _relu(to, node.value())


def leaky_relu(to: Description, node: Operation) -> Value:
    """A ReLU with a slope on its negative side."""
    return _sloped(to, node.value(), np.asarray(node.attributes.get("alpha", 0.01), np.float64))


def prelu(to: Description, node: Operation) -> Value:
    """A ReLU with one slope for every entry, or for all of them."""
    z = node.value()
    slope = to.without_batch(node.constant(1), z)
    if np.broadcast_shapes(z.inner, slope.shape) != z.inner:
        raise Refused(f"its slopes must broadcast to the value's shape {z.inner}, got {slope.shape}")
    if slope.size and (slope == slope.flat[0]).all() and 0 <= slope.flat[0] <= 1:
        return _relu(to, z, float(slope.flat[0]))
    slope = slope.reshape((1,) * (len(z.inner) - slope.ndim) + slope.shape)
    return to.add("leak", z, _relu(to, z), tensors={"slope": slope})


def _sloped(to: Description, z: Value, slope: Array) -> Value:
    number = float(slope)
    if not np.isfinite(number):
        raise Refused(f"alpha must be finite, got {number}")
    return _relu(to, z, number) if 0 <= number <= 1 else to.add("leak", z, _relu(to, z), number=number)


def clip(to: Description, node: Operation) -> Value:
    """`min(max(z, low), high)`, made of ReLUs; an end that cuts off no number of the dtype is left out."""
    z = node.value()
    ends = []
    for name, place in (("min", 1), ("max", 2)):
        given = node.attributes.get(name) if node.opset < 11 else node.optional(place)
        if isinstance(given, np.ndarray) and (
            given.ndim or str(given.dtype) != str(z.sample.dtype).removeprefix("torch.")
        ):
            raise Refused(f"{name} must be one number of the input's dtype, got {given.dtype} {given.shape}")
        ends.append(None if given is None else float(np.asarray(given).reshape(())))
    return clipped(to, z, *ends)


def clipped(to: Description, z: Value, low: float | None, high: float | None) -> Value:
    """`min(max(z, low), high)`."""
    limit = float(np.finfo(np.float32).max if z.sample.dtype.itemsize == 4 else np.finfo(np.float64).max)
    if (low is not None and np.isnan(low)) or (high is not None and np.isnan(high)):
        raise Refused("its ends must be numbers, got NaN")
    if low is not None and high is not None and low > high:
        raise Refused(f"min must be at most max, got {low} and {high}")
    if low is not None and low > -limit:
        z = _moved(to, _relu(to, _moved(to, z, low, -1)), low)
    if high is not None and high < limit:
        over = _relu(to, _moved(to, negated(to, z), high))
        z = _moved(to, negated(to, over), high)
    return z


def _moved(to: Description, z: Value, number: float, sign: int = 1) -> Value:
    return z if number == 0 else to.add("shift", z, sign=sign, number=number)


def hard_sigmoid(to: Description, node: Operation) -> Value:
    """`min(max(alpha z + beta, 0), 1)`."""
    z = to.add("scale", node.value(), divide=False, number=float(node.attributes.get("alpha", 0.2)))
    return clipped(to, _moved(to, z, float(node.attributes.get("beta", 0.5))), 0.0, 1.0)


def absolute(to: Description, node: Operation) -> Value:
    """`|z| = relu(z) + relu(-z)`."""
    z = node.value()
    return to.add("add", _relu(to, z), _relu(to, negated(to, z)), signs=[1, 1])


def maximum(to: Description, node: Operation) -> Value:
    """The larger of values and constants."""
    return _extreme(to, node, 1)


def minimum(to: Description, node: Operation) -> Value:
    """The smaller of values and constants."""
    return _extreme(to, node, -1)


def _extreme(to: Description, node: Operation, sign: int) -> Value:
    """`max(a, b) = a + relu(b - a)`, `min(a, b) = a - relu(a - b)`."""
    values = [one for one in node.inputs if isinstance(one, Value)]
    constants = [node.constant(place) for place, one in enumerate(node.inputs) if not isinstance(one, Value)]
    total = values[0]
    for other in values[1:]:
        total, other = _alike(to, total, other)
        gap = to.add("add", *((other, total) if sign > 0 else (total, other)), signs=[1, -1])
        total = to.add("add", total, _relu(to, gap), signs=[1, sign])
    for constant in constants:
        z, cut = _constant(to, total, constant)
        if sign > 0:
            total = shifted(to, _relu(to, shifted(to, z, cut, -1)), cut)
        else:
            total = shifted(to, negated(to, _relu(to, shifted(to, negated(to, z), cut))), cut)
    return total
