"""The exact norms of some rows of V, differentiable in the weights: those that cheap bounds have not ruled out.

Rows of a convolution behind convolutions are made on their receptive fields (`networks.windows`), all others are pulled back
through the graph. Both go some rows at a time, and the gradient makes only those rows again that have one (`core.pieces`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.norms import norm
from relucert.core.pieces import in_pieces
from relucert.core.products import product
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms._gram_norms import GramNorms, gram_pays
from relucert.geometry.row_norms._product_norms import ClassRowNorms
from relucert.geometry.row_norms.chain_rows import differences, gate, other_classes, with_own
from relucert.networks.affine_map import Step, chain
from relucert.networks.conv_rows import ConvChain, ConvRowNorms
from relucert.networks.linear_map import LinearMap
from relucert.networks.local_norms import BlockNorms, LocalNorms
from relucert.networks.local_rows import plan
from relucert.networks.patches import axes
from relucert.networks.window_norms import WindowNorms
from relucert.networks.windows import Units, WindowRows

#: From the numbers of rows to functionals (n, 1, *shape) of a node's value.
Functionals = Callable[[Tensor], Tensor]
PIECE = 2**24  # bytes of the temporaries of some rows: they stay in the cache
ACTIVE = 0.9  # the share of units active in a batch above which products are made with all of them
BLOCKS = 3  # patterns of blocks whose gradients take as long as those of one row on its window
KEPT = 2**29  # bytes that are kept for the gradient; rows that need more are made again


def chosen_norms(
    region: LinearRegion,
    place: int,
    batch: Int[Tensor, " n"],
    units: Int[Tensor, " n"],
    q: float,
    known: Float[Tensor, " batch units"] | None = None,
) -> Float[Tensor, " n"]:
    """||V_j||_q of some hyperplanes of switching node `place`: their examples, and their numbers within the node.

    Where the norms of all of them are known, rows are made for the gradient alone, if that is less work.
    """
    steps = chain(region.net.graph)
    if steps is not None and 0 < place < len(steps) - 1 and all(step.conv is not None for step in steps[: place + 1]):
        return _window_norms(region, steps[: place + 1], batch, units, q)
    if _convolved(region, steps, place, len(batch)):
        assert steps is not None
        given = None if known is None else known[batch, units]
        return _conv_norms(region, steps[:place], batch, steps[place].weight().index_select(0, units), q, given)
    hyperplanes, pattern = region.hyperplanes[place], region.patterns[place]

    def functionals(rows: Tensor) -> Tensor:
        return hyperplanes.functionals(pattern[batch[rows]], units[rows, None], region.net.dtype)

    return _pulled_norms(region, hyperplanes.source, batch, functionals, q)


def chosen_class_norms(
    region: LinearRegion,
    y: Int[Tensor, " n"],
    batch: Int[Tensor, " n"],
    other: Int[Tensor, " n"],
    q: float,
    known: Float[Tensor, " batch classes"] | None = None,
) -> Float[Tensor, " n"]:
    """||V_y - V_s||_q of some decision hyperplanes: the classes y and s, and the examples; `known` as in `chosen_norms`."""
    steps = chain(region.net.graph)
    if steps is not None and len(steps) == 2 and steps[0].conv is None:
        return _one_layer_norms(region, steps, y, batch, other, q)
    if steps is not None and len(steps) > 2 and _convolved(region, steps, len(steps) - 2, len(batch)):
        last = steps[-1].weight()
        slopes = gate(region, len(steps) - 2).flatten(1)
        coefficients = differences(last, y, other) * slopes.index_select(0, batch)
        given = None if known is None else known[batch, other]
        return _conv_norms(region, steps[:-2], batch, product(coefficients, steps[-2].weight()), q, given)

    def functionals(rows: Tensor) -> Tensor:
        eye = torch.eye(region.net.classes, dtype=region.net.dtype, device=region.net.device)
        return (eye[y[rows]] - eye[other[rows]]).unsqueeze(1)

    return _pulled_norms(region, len(region.net.graph) - 1, batch, functionals, q)


def _convolved(region: LinearRegion, steps: list[Step] | None, place: int, rows: int) -> bool:
    """Whether step `place` of a chain is a matrix behind convolutions alone, and what so many rows keep fits into memory."""
    return (
        steps is not None
        and 0 < place < len(steps)
        and steps[place].conv is None
        and all(step.conv is not None for step in steps[:place])
        and _fits(region, rows, 2 * sum(math.prod(step.shape) for step in steps[:place]))
    )


def _fits(region: LinearRegion, rows: int, numbers: int) -> bool:
    """Whether so many rows may keep so many numbers each for the gradient."""
    return rows * numbers * _size(region) <= KEPT


def _conv_norms(
    region: LinearRegion, steps: list[Step], batch: Tensor, functionals: Tensor, q: float, known: Tensor | None
) -> Float[Tensor, " n"]:
    """The norms of functionals of what is behind convolutions, with gradients."""
    gates = [gate(region, index).reshape(-1, *step.shape) for index, step in enumerate(steps)]
    geometry = ConvChain.of(steps, region.net.input_shape)
    weights = [step.weight() for step in steps]
    return ConvRowNorms.apply(functionals, batch, gates, q, geometry, known, *weights)  # type: ignore[return-value]


def known_second_norms(
    region: LinearRegion, steps: list[Step], known: LocalNorms, q: float, rows: int
) -> Float[Tensor, " batch units"] | None:
    """The known norms of the second convolution of a chain with their gradient; `rows` of them will have one, or few more.

    None if there is no way that is better than making the rows again.
    """
    slopes = gate(region, 0).reshape(-1, *steps[0].shape)
    if q != math.inf and known.patterns < BLOCKS * rows:
        layout = plan(*axes(steps[0], steps[1], region.net.input_shape), region.net.input_shape[0])
        weights = steps[0].weight(), steps[1].weight()
        return BlockNorms.apply(*weights, slopes, known, q, layout).flatten(1)  # type: ignore[attr-defined]
    work = WindowRows(steps[:2], region.net.input_shape)
    adjoint, filters = work.factors()
    if adjoint.dim() != 2:
        return None
    return WindowNorms.apply(known.units.flatten(1), slopes, q, work, adjoint, filters)  # type: ignore[return-value]


def _window_norms(
    region: LinearRegion, steps: list[Step], batch: Tensor, units: Tensor, q: float
) -> Float[Tensor, " n"]:
    work = WindowRows(steps, region.net.input_shape)
    slopes = [gate(region, index).reshape(-1, *step.shape) for index, step in enumerate(steps[:-1])]
    every = Units(batch, units, steps[-1].shape)  # type: ignore[arg-type]
    tables, factors = work.tables(slopes), work.factors()
    inside = work.inside(slopes[0])

    def norms(rows: Tensor, *factors: Tensor) -> Tensor:
        some = every.restrict(rows)
        return norm(work.rows(some, factors, tables) * some.pick(inside, work.grids[0]), q).unsqueeze(0)

    at_once, keep = PIECE // (4 * _size(region) * work.entries), _fits(region, len(batch), 3 * work.entries)
    return in_pieces(norms, len(batch), at_once, *factors, keep=keep)[0]


def _pulled_norms(
    region: LinearRegion, node: int, batch: Tensor, functionals: Functionals, q: float
) -> Float[Tensor, " n"]:
    """The norms of functionals of a node's value, pulled back to the input."""
    weights = [weight for weight in region.net.parameters() if weight.requires_grad]
    like = torch.zeros(0, dtype=region.net.dtype, device=region.net.device)

    def norms(rows: Tensor, *_: Tensor) -> Tensor:
        patterns = [pattern[batch[rows]] for pattern in region.patterns]
        return norm(LinearMap(region.net.graph, patterns).pull_back(node, functionals(rows)), q, 2).T

    sizes = [math.prod(each.shape) for each in region.net.graph]
    widest, keep = max(sizes), _fits(region, len(batch), 3 * sum(sizes))
    return in_pieces(norms, len(batch), PIECE // (4 * _size(region) * widest), *(weights or [like]), keep=keep)[0]


def one_layer_class_norms(
    region: LinearRegion, steps: list[Step], y: Int[Tensor, " batch"], q: float
) -> Float[Tensor, " batch classes"]:
    """The norms of all decision hyperplanes behind one matrix, 0 for the own class."""
    others = other_classes(y, len(steps[-1].weight()))
    batch = torch.arange(len(y), device=y.device)[:, None].expand_as(others).flatten()
    found = _one_layer_norms(region, steps, y[batch], batch, others.flatten(), q)
    return with_own(found.view(others.shape), y)


def _one_layer_norms(
    region: LinearRegion, steps: list[Step], y: Tensor, batch: Tensor, other: Tensor, q: float
) -> Float[Tensor, " n"]:
    """The norms of decision hyperplanes behind one matrix: (W_y - W_s) diag(g) times the first layer's weights."""
    slopes, last, first = _active(gate(region, 0).flatten(1), steps[-1].weight(), steps[0].weight())
    if q == 2 and gram_pays(len(batch), *first.shape):
        return GramNorms.apply(last, first, slopes, (batch, y, other))  # type: ignore[return-value]
    return ClassRowNorms.apply(last, first, slopes, (batch, y, other), q)  # type: ignore[return-value]


def _active(
    slopes: Float[Tensor, " batch n"], behind: Float[Tensor, " classes n"], ahead: Float[Tensor, " n inputs"]
) -> tuple[Tensor, Tensor, Tensor]:
    """What belongs to the units that are active in some example, where those in none are worth a copy of the others."""
    active = (slopes != 0).any(0).nonzero()[:, 0]
    if len(active) > ACTIVE * slopes.shape[1]:
        return slopes, behind, ahead
    return slopes.index_select(1, active), behind.index_select(1, active), ahead.index_select(0, active)


def _size(region: LinearRegion) -> int:
    """The bytes of a number."""
    return torch.finfo(region.net.dtype).bits // 8
