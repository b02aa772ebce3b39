"""Upper bounds on spectral norms that are proved, rounding included; power iteration comes from below and proves nothing.

For an explicit matrix A let G be A A' or A' A, the smaller of the two, as computed in float64: at most gamma ||A||_F^2 off. An
estimate of G's largest eigenvalue from below is raised a little, to mu, and mu I - G is factored. If Cholesky's algorithm runs
to its end in floating point, the matrix it was given is positive semidefinite up to gamma_(k+1) / (1 - gamma_(k+1)) times
its trace (Demmel 1989; Rump 2006), so mu and a tiny term bound the eigenvalue. Where it does not, mu is raised again.

A zero padded convolution of a finite image is a part of a periodic one on a torus so large that nothing wraps around, and
that one is block diagonal in Fourier's basis: the largest norm of the blocks on the torus' own frequencies is a bound, with
no error of a grid. With a stride the positions of the image modulo the stride become channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relucert.core.norms import norm
from relucert.core.rounding import gamma, unit_roundoff
from relucert.networks.affine_map import one_hot, root_matrices
from relucert.networks.layers.linear import Conv2d
from relucert.networks.nodes import Affine, Shape, adjoint
from relucert.networks.traversal import ForwardRule, Graph, Node, affine_ancestors, propagate

ENTRIES = 2**24  # of a matrix that is written out
SIDE = 2048  # the longest smaller side of one
_PIECE = 2**27  # bytes of the matrices of one piece of a batch
_LOCAL = 2**31  # operations that the matrix of one example may cost
_RAISED = (1e-5, 1e-3, 4e-3, 1.6e-2, 6.4e-2, 0.25)
_LANCZOS = 40
_WAVE_ROUNDINGS = (
    32  # times gamma: a complex product has four roundings, two waves meet, and each of them is off by some u
)


def explicit(rows: int, columns: int) -> bool:
    """Whether a matrix is small enough to be written out."""
    return rows * columns <= ENTRIES and min(rows, columns) <= SIDE


@torch.no_grad()
def norm_bounds(
    matrices: Float[Tensor, " batch rows columns"], error: float | Float[Tensor, " batch"] = 0.0
) -> Float[Tensor, " batch"]:
    """Upper bounds on the spectral norms of float64 matrices, and of all others within `error` of them in Frobenius norm.

    >>> [round(float(bound), 3) for bound in norm_bounds(torch.diag(torch.tensor([3.0, 4.0]).double())[None])]
    [4.0]
    """
    count, rows, columns = matrices.shape
    if count == 0 or rows == 0 or columns == 0:
        return matrices.new_zeros(count) + error
    largest = matrices.abs().amax((1, 2))
    finite = largest.isfinite()
    scale = _scales(largest)
    scaled = torch.where(finite[:, None, None], matrices / scale[:, None, None], torch.zeros_like(matrices))
    squares = scaled.square().sum((1, 2)) * (1 + gamma(rows * columns + 4))
    across = scaled.abs().sum(2).amax(1) * scaled.abs().sum(1).amax(1) * (1 + gamma(rows + columns + 4))
    gram = scaled @ scaled.mT if rows <= columns else scaled.mT @ scaled
    gram = gram.tril() + gram.tril(-1).mT  # rounding may have left it unsymmetric
    top = top_bounds(gram) + gamma(max(rows, columns) + 4) * squares
    bound = torch.minimum(torch.minimum(squares, across), top).sqrt() * scale
    return torch.where(finite, (bound + error) * (1 + 16 * unit_roundoff()), torch.full_like(bound, math.inf))


def _scales(largest: Tensor) -> Tensor:
    """Powers of two to divide by: they change no digit, and keep every product within range."""
    return torch.ldexp(torch.ones_like(largest), torch.frexp(largest.clamp(1e-300, 1e300)).exponent)


def top_bounds(gram: Float[Tensor, " batch side side"]) -> Float[Tensor, " batch"]:
    """Upper bounds on the largest eigenvalues of symmetric matrices; infinite where no proof was found."""
    side = gram.shape[-1]
    found, estimate = gram.new_full((len(gram),), math.inf), _estimates(gram)
    # The trace of mu I - G is at most k mu; doubled for the rounding of the diagonal and of what is below the range.
    slack = 1 + 2 * side * gamma(side + 4) + 4 * unit_roundoff()
    pending = torch.arange(len(gram), device=gram.device)
    for raised in _RAISED:
        level = (estimate[pending] * (1 + raised)).clamp(min=1e-290)
        shifted = -gram[pending]
        shifted.diagonal(dim1=1, dim2=2).add_(level[:, None])
        proved = torch.linalg.cholesky_ex(shifted)[1] == 0
        found[pending[proved]] = level[proved] * slack
        pending = pending[~proved]
        if len(pending) == 0:
            break
    return found


def _estimates(gram: Float[Tensor, " batch side side"]) -> Float[Tensor, " batch"]:
    """The largest eigenvalues, approximately: outright for small matrices, by Lanczos' iteration for others."""
    count, side = gram.shape[:2]
    if side <= 2 * _LANCZOS:
        return torch.linalg.eigvalsh(gram)[:, -1].clamp(min=0)
    start = torch.randn(side, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(gram.device)
    vector = (start / start.norm()).expand(count, -1)
    basis = gram.new_zeros(count, _LANCZOS, side)
    small = gram.new_zeros(count, _LANCZOS, _LANCZOS)
    for step in range(_LANCZOS):
        basis[:, step] = vector
        image = (gram @ vector.unsqueeze(2)).squeeze(2)
        small[:, step, step] = (image * vector).sum(1)
        for _ in range(2):  # twice is enough to stay orthogonal
            image = image - (basis.mT @ (basis @ image.unsqueeze(2))).squeeze(2)
        length = image.norm(dim=1)
        if step + 1 < _LANCZOS:
            small[:, step + 1, step] = small[:, step, step + 1] = length
        # Where the space is exhausted the vector stays zero, and adds an eigenvalue zero.
        kept = length > 1e-12 * small[:, 0, 0].abs()
        vector = torch.where(kept[:, None], image / length.clamp(min=1e-300)[:, None], torch.zeros_like(image))
    return torch.linalg.eigvalsh(small)[:, -1].clamp(min=0)


@torch.no_grad()
def conv_bound(op: Conv2d, scale: Tensor | None = None) -> float:
    """An upper bound on the norm of a zero padded convolution, its outputs multiplied by one `scale` for each channel."""
    weight = op.weight.value
    if scale is not None:
        weight = weight * scale.reshape(-1, 1, 1, 1)
    waves = [_waves(op, axis) for axis in (0, 1)]
    down, across = waves[0], waves[1][: len(waves[1]) // 2 + 1]  # the other half are conjugates
    # Blocks by output and input channel of a group; of every entry, what its terms can add up to.
    filters = weight.reshape(op.groups, -1, *weight.shape[1:])
    taps = weight.shape[2] * weight.shape[3]
    off = _WAVE_ROUNDINGS * gamma(taps + 8) * float(norm(filters.abs().sum((3, 4)), 2).amax())
    best = 0.0
    for wave in down:
        blocks = torch.einsum("gocyx,yr,fxs->fgocrs", filters.to(wave), wave, across).flatten(0, 1).flatten(2)
        real, imaginary = blocks.real, blocks.imag
        whole = torch.cat([torch.cat([real, -imaginary], 2), torch.cat([imaginary, real], 2)], 1)
        best = max(best, float(norm_bounds(whole, 2 * off).amax()))
    return best * (1 + gamma(8))  # for the product with the scale


def _waves(op: Conv2d, axis: int) -> Tensor:
    """Along one axis: what a frequency and a tap of the filter give to every position modulo the stride."""
    size, taps = op.in_shapes[0][1 + axis], op.weight.value.shape[2 + axis]
    stride, padding, dilation = op.stride[axis], op.padding[axis], op.dilation[axis]
    place = torch.arange(taps) * dilation - padding
    shift, phase = place.div(stride, rounding_mode="floor"), place.remainder(stride)
    outputs = (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
    blocks = -(-size // stride)
    # Output o reads block o + shift: on a torus of this length no two of these differences meet by wrapping around.
    length = max(blocks - 1 - int(shift.min()), outputs - 1 + int(shift.max()), 0) + 1
    turns = (torch.arange(length)[:, None] * shift).remainder(length).double() * (2 * math.pi / length)
    waves = torch.polar(torch.ones_like(turns), turns)
    return (waves.unsqueeze(2) * (phase[:, None] == torch.arange(stride))).to(op.weight.value.device)


@torch.no_grad()
def node_bound(op: Affine, shape: Shape) -> float:
    """An upper bound on the spectral norm of a float64 node that makes values of `shape`, all its inputs stacked.

    The smallest of what its kind tells, the matrix itself if it can be written out, Fourier's bound for a convolution and
    `sqrt(||A||_1 ||A||_inf)`.
    """
    if op.isometric:
        return 1.0
    fixed, matrix = op.fixed_norm(), op.matrix()
    if fixed is not None:
        return fixed * (1 + 4 * unit_roundoff())
    if op.diagonal:
        factors = op.absolute(torch.ones(1, *op.in_shapes[0], dtype=torch.float64, device=_device(op)))
        return float(factors.amax()) * (1 + gamma(op.terms + 4))
    if matrix is not None and explicit(*matrix.shape):
        return float(norm_bounds(matrix[None]))
    bounds = [_across(op, shape)]
    if isinstance(op, Conv2d):
        bounds.append(conv_bound(op))
    size, columns = math.prod(shape), sum(map(math.prod, op.in_shapes))
    if matrix is None and explicit(size, columns):
        rows = []
        for units in torch.arange(size, device=_device(op)).split(max(1, ENTRIES // (8 * columns))):
            back = op.transpose(one_hot(units, shape, torch.float64))
            rows.append(torch.cat([part.flatten(1) for part in back], 1))
        whole = torch.cat(rows)
        off = 2 * gamma(max(size, columns) + op.terms) * float(norm(whole, 2, 0))
        bounds.append(float(norm_bounds(whole[None], off)))
    return min(bounds)


def _across(op: Affine, shape: Shape) -> float:
    """`sqrt(||A||_1 ||A||_inf)` of a node, by one product with |A| and one with its adjoint."""
    device = _device(op)
    ones = [torch.ones(1, *one, dtype=torch.float64, device=device) for one in op.in_shapes]
    rows = float(op.absolute(*ones).amax())
    back = adjoint(op.absolute, ones, torch.ones(1, *shape, dtype=torch.float64, device=device))
    columns = max(float(part.amax()) for part in back)
    terms = sum(map(math.prod, op.in_shapes)) + math.prod(shape)
    return math.sqrt(rows) * math.sqrt(columns) * (1 + gamma(terms + 8))


def _device(op: Affine) -> torch.device | None:
    return next((source.value.device for source in op.sources().values()), None)


@dataclass(frozen=True, eq=False)
class AffinePart:
    """The affine map from roots (the input, switching nodes) to a node: one matrix (units, size) for each root in float64.

    `hidden` is what rounding may hide in it, in Frobenius norm; `norms` bound the matrices, `joint` all of them side by side.
    """

    matrices: dict[int, Tensor]
    hidden: dict[int, float]
    norms: dict[int, float]
    joint: float


class _AbsoluteSums(ForwardRule[Tensor]):
    """What |A| makes of the values of an affine node's inputs."""

    def affine(self, node: Node[Affine], inputs: list[Tensor]) -> Tensor:
        return node.op.absolute(*inputs)


@torch.no_grad()
def affine_part(graph: Graph, node: int) -> AffinePart | None:
    """The matrices of a node, everything between multiplied out; None where they are too large or it is a root itself."""
    inside, roots = affine_ancestors(graph, node)
    sizes = {root: math.prod(graph[root].shape) for root in roots}
    if not inside or not explicit(math.prod(graph[node].shape), sum(sizes.values())):
        return None
    matrices = root_matrices(graph, node)
    terms = sum(8 + math.prod(inner.shape) + sum(map(math.prod, inner.op.in_shapes)) for inner in inside)
    hidden = {}
    for root, matrix in matrices.items():
        # The product of the absolute values has rows no longer than their sums; its rounding is a share of that.
        sums = {other: matrix.new_full((1, *graph[other].shape), float(other == root)) for other in roots}
        hidden[root] = 4 * gamma(terms + 8) * float(norm(propagate(graph, _AbsoluteSums(), sums, [node])[node], 2))
    norms = {root: float(norm_bounds(matrix[None], hidden[root])) for root, matrix in matrices.items()}
    joint = norms[roots[0]]
    if len(roots) > 1:
        joint = float(norm_bounds(torch.cat([*matrices.values()], 1)[None], sum(hidden.values())))
    return AffinePart(matrices, hidden, norms, joint)


def row_norm_bounds(
    matrix: Float[Tensor, " rows columns"], moving: Bool[Tensor, " batch columns"]
) -> Float[Tensor, " batch rows"]:
    """Norm bounds of the rows of `A diag(moving)`; zero only where nothing but zeros is left."""
    scale = _scales(matrix.abs().amax(1))
    # Beside the largest number of a row a small one's square may vanish, which the others need not cover: they may not move.
    squares = (matrix / scale[:, None]).square().clamp_(min=2.0**-1000).masked_fill_(matrix == 0, 0.0)
    return (moving.double() @ squares.T).sqrt() * scale * (1 + 2 * gamma(matrix.shape[1] + 8))


def local_norm_bounds(matrix: Tensor, hidden: float, rows: Tensor, moving: Bool[Tensor, " batch size"]) -> Tensor:
    """Norm bounds of `diag(rows) A diag(moving)` for every example; infinite where nothing is gained or it costs too much."""
    found = rows.new_full((len(rows),), math.inf)
    kept, used = (rows > 0).sum(1), moving.sum(1)
    short, long = torch.minimum(kept, used).double(), torch.maximum(kept, used).double()
    gained = (rows < 1).any(1) | ~moving.all(1)
    todo = (gained & (2 * short.square() * long + short**3 <= _LOCAL)).nonzero()[:, 0]
    todo = todo[kept[todo].argsort()]  # neighbours of like size
    start = 0
    while start < len(todo):
        ahead = torch.cummax(kept[todo[start:]], 0)[0] * torch.cummax(used[todo[start:]], 0)[0]
        sizes = ahead * torch.arange(1, len(ahead) + 1, device=ahead.device) * 64
        some = todo[start : start + max(1, int((sizes <= _PIECE).sum()))]
        start += len(some)
        high, wide = int(kept[some].max()), int(used[some].max())
        weight, row = rows[some].sort(1, descending=True)
        mask, column = moving[some].to(torch.int8).sort(1, descending=True)
        block = matrix[row[:, :high, None], column[:, None, :wide]]
        block = block * weight[:, :high, None] * mask[:, None, :wide]
        found[some] = norm_bounds(block, hidden)
    return found
