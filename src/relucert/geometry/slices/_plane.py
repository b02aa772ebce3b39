"""A plane through three inputs, and the decisions of a network on a grid in it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.errors import InvalidInput
from relucert.core.rounding import gamma_above
from relucert.networks.network import Network, in_double


@dataclass(frozen=True, kw_only=True, eq=False)
class Plane:
    """The plane `origin + s u + t v` in input space and a rectangle of it; `u` and `v` are orthonormal, all in float64.

    `inputs` are the coordinates of the three inputs that span it, `lower` and `upper` the corners of the rectangle,
    `dtype` that of the three inputs.

    >>> plane = Plane.through(torch.zeros(3), torch.tensor([2.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 0.0]), margin=0.5)
    >>> plane.inputs.tolist(), plane.lower.tolist(), plane.upper.tolist()
    ([[0.0, 0.0], [2.0, 0.0], [1.0, 1.0]], [-1.0, -0.5], [3.0, 1.5])
    >>> plane.point(torch.tensor([[2.0, 0.5]])).tolist()
    [[2.0, 0.5, 0.0]]
    """

    origin: Float[Tensor, " *input"]
    u: Float[Tensor, " *input"]
    v: Float[Tensor, " *input"]
    inputs: Float[Tensor, "3 2"]
    lower: Float[Tensor, " 2"]
    upper: Float[Tensor, " 2"]
    dtype: torch.dtype

    @staticmethod
    def through(a: Tensor, b: Tensor, c: Tensor, margin: float = 0.2) -> Plane:
        """The plane through three inputs `(*input)`: a at (0, 0), b on the positive s-axis, c above it.

        The rectangle is the smallest one around the three, wider by `margin` times its size on every side.
        """
        for name, z in (("a", a), ("b", b), ("c", c)):
            if not z.is_floating_point() or z.shape != a.shape or z.device != a.device:
                raise InvalidInput(
                    f"{name} must be one input like a, a float tensor of shape {tuple(a.shape)} on {a.device}; "
                    f"got {z.dtype} of shape {tuple(z.shape)} on {z.device}"
                )
            if not bool(torch.isfinite(z).all()):
                raise InvalidInput(f"{name} must be finite, got NaN or infinity")
        if not 0 <= margin < math.inf:
            raise InvalidInput(f"margin must be a finite number of at least 0, got {margin}")
        origin = a.detach().double()
        to_b, to_c = b.detach().double() - origin, c.detach().double() - origin
        along = to_b.norm()
        u = to_b / along if along > 0 else to_b
        rest = to_c
        for _ in range(2):  # twice, because the rounding error along u may be large compared to a small rest
            rest = rest - (rest * u).sum() * u
        base, height = float(along), float(rest.norm())
        # Rounding alone moves points off a line by at most this much.
        least = gamma_above(16, a.dtype) * max(float(z.detach().double().norm()) for z in (a, b, c, to_c))
        if not min(base, height) > least:
            raise InvalidInput(
                "a, b and c must span a plane, not lie on one line or on each other; "
                f"got b at distance {base:.3g} of a, and c at distance {height:.3g} of the line through them"
            )
        v = rest / rest.norm()
        inputs = torch.stack([torch.stack([(z * u).sum(), (z * v).sum()]) for z in (to_b * 0, to_b, to_c)])
        inputs[1, 1] = 0
        lower, upper = inputs.amin(0), inputs.amax(0)
        wider = margin * (upper - lower)
        return Plane(origin=origin, u=u, v=v, inputs=inputs, lower=lower - wider, upper=upper + wider, dtype=a.dtype)

    def point(self, st: Float[Tensor, "n 2"]) -> Float[Tensor, " n *input"]:
        """The inputs at given coordinates, in the dtype of the three inputs."""
        return self.exact(st).to(self.dtype)

    def coordinates(self, x: Float[Tensor, " n *input"]) -> Float[Tensor, "n 2"]:
        """The coordinates of the projections of inputs onto the plane, in float64."""
        offset = (x.double() - self.origin).flatten(1)
        return torch.stack([offset @ self.u.flatten(), offset @ self.v.flatten()], 1)

    def exact(self, st: Float[Tensor, "n 2"]) -> Float[Tensor, " n *input"]:
        """The inputs at given coordinates, in float64."""
        basis = torch.stack([self.u, self.v]).flatten(1)
        return (st.double() @ basis).reshape(len(st), *self.origin.shape) + self.origin


@dataclass(frozen=True, kw_only=True, eq=False)
class SliceGrid:
    """Class, region and margin at the centres of H x W equal parts of the rectangle; row 0 has the smallest t.

    `regions` numbers the activation patterns in the order of their first occurrence, row by row; `margin` is the difference of
    the two largest logits.
    """

    s: Float[Tensor, " W"]
    t: Float[Tensor, " H"]
    classes: Int[Tensor, "H W"]
    regions: Int[Tensor, "H W"]
    margin: Float[Tensor, "H W"]


def prepared(net: Network, plane: Plane, budget: int) -> Network:
    """The network in float64, after checking that the plane lies in its input space."""
    net.require_eval("slicing")
    if tuple(plane.origin.shape) != net.input_shape:
        raise InvalidInput(f"plane must lie among inputs of shape {net.input_shape}, got {tuple(plane.origin.shape)}")
    if plane.origin.device != net.device:
        raise InvalidInput(f"plane must be on the network's device {net.device}, got {plane.origin.device}")
    if budget < 1:
        raise InvalidInput(f"budget must be a positive number of bytes, got {budget}")
    return in_double(net)


@torch.no_grad()
def slice_grid(
    net: Network, plane: Plane, resolution: tuple[int, int] = (256, 256), budget: int = 1 << 28
) -> SliceGrid:
    """Predicted class, region and margin on a grid `(H, W)` of the plane's rectangle.

    Points are evaluated in chunks that need about `budget` bytes. Regions are identified by a 128-bit hash of the pattern.

    >>> from torch import nn
    >>> net = Network(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), input_shape=(2,)).eval()
    >>> plane = Plane.through(torch.zeros(2), torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    >>> slice_grid(net, plane, (3, 5)).classes.shape
    torch.Size([3, 5])
    """
    if len(resolution) != 2 or not all(isinstance(size, int) and size > 0 for size in resolution):
        raise InvalidInput(f"resolution must be two positive whole numbers (H, W), got {resolution!r}")
    net = prepared(net, plane, budget)
    height, width = resolution
    parts = [(torch.arange(size, device=net.device, dtype=torch.float64) + 0.5) / size for size in (width, height)]
    s, t = (plane.lower[i] + parts[i] * (plane.upper[i] - plane.lower[i]) for i in (0, 1))
    st = torch.cartesian_prod(t, s).flip(1)
    places = [node.inputs[0] for node in net.switches]
    generator = torch.Generator().manual_seed(0)
    keys = [torch.randint(-(2**62), 2**62, (2, math.prod(node.shape)), generator=generator) for node in net.switches]
    keys = [key.to(net.device) for key in keys]
    # The values, and two copies of the pattern as integers.
    numbers = sum(math.prod(node.shape) for node in net.graph) + 2 * net.hidden_units
    chunk = max(1, budget // (8 * numbers))
    classes, margins, hashes = [], [], []
    for piece in st.split(chunk):
        values = net.graph.values(plane.exact(piece), [*places, len(net.graph) - 1])
        logits = values[len(net.graph) - 1]
        top = logits.topk(2, 1)[0]
        classes.append(logits.argmax(1))
        margins.append(top[:, 0] - top[:, 1])
        digest = torch.zeros(len(piece), 2, dtype=torch.long, device=net.device)
        for node, place, key in zip(net.switches, places, keys, strict=True):
            pattern = node.op.pattern(values[place]).flatten(1).long()
            digest += torch.stack(
                [(pattern * row).sum(1) for row in key], 1
            )  # wraps around at 2^64, which is fine for a hash
        hashes.append(digest)
    number = torch.unique(torch.cat(hashes), dim=0, return_inverse=True)[1]
    first = torch.full((int(number.max()) + 1,), len(st), device=net.device)
    first = first.scatter_reduce(0, number, torch.arange(len(st), device=net.device), "amin")
    return SliceGrid(
        s=s,
        t=t,
        classes=torch.cat(classes).reshape(resolution),
        regions=first.argsort().argsort()[number].reshape(resolution),
        margin=torch.cat(margins).reshape(resolution),
    )
