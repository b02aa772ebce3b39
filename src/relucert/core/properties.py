"""Properties to be proved about the logits: linear inequalities C f(z) + c > 0, such as "the class stays y"."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.core.errors import InvalidInput


@dataclass(frozen=True, eq=False)
class Property:
    """A property of the logits: C f(z) + c > 0 in all rows, with rows C (batch, specs, classes) and offsets c (batch, specs).

    With `clauses`, the number of a clause for every row, the property holds where every clause has a row with a positive
    margin: a conjunction of disjunctions. Without, every row is a clause of its own.

    >>> two = class_stays(torch.tensor([1]), classes=3)
    >>> two.rows
    tensor([[[-1.,  1.,  0.],
             [ 0.,  1., -1.]]])
    >>> two.margins(torch.tensor([[1.0, 3.0, 2.5]]))
    tensor([[2.0000, 0.5000]])
    >>> two.holds(torch.tensor([[1.0, 3.0, 3.0]]))
    tensor([False])
    """

    rows: Float[Tensor, "batch specs classes"]
    offsets: Float[Tensor, "batch specs"]
    clauses: Int[Tensor, " specs"] | None = None

    def __post_init__(self) -> None:
        if self.rows.ndim != 3 or self.rows.shape[1] == 0:
            raise InvalidInput(f"rows must have shape (batch, specs >= 1, classes), got {tuple(self.rows.shape)}")
        if self.offsets.shape != self.rows.shape[:2]:
            raise InvalidInput(
                f"offsets must have shape (batch, specs) = {tuple(self.rows.shape[:2])}, got {tuple(self.offsets.shape)}"
            )
        if self.clauses is not None:
            _check_clauses(self.clauses, self.rows.shape[1])
        for name in ("rows", "offsets"):
            values = getattr(self, name)
            if not values.is_floating_point():
                raise InvalidInput(f"{name} must have a floating-point dtype, got {values.dtype}")
            if not values.isfinite().all():
                raise InvalidInput(f"{name} must be finite, got {values[~values.isfinite()][0].item()}")
        if (self.rows.dtype, self.rows.device) != (self.offsets.dtype, self.offsets.device):
            raise InvalidInput(
                "rows and offsets must share dtype and device, got "
                f"{self.rows.dtype} on {self.rows.device} and {self.offsets.dtype} on {self.offsets.device}"
            )

    def __len__(self) -> int:
        return self.rows.shape[0]

    @property
    def classes(self) -> int:
        """The number of logits."""
        return self.rows.shape[2]

    def margins(self, logits: Float[Tensor, "*many batch classes"]) -> Float[Tensor, "*many batch specs"]:
        """The margins C f + c of all rows, in the wider of the two dtypes; leading dimensions (restarts, samples) are kept."""
        if logits.shape[-2:] != (len(self), self.classes):
            raise InvalidInput(
                f"logits must have shape (..., batch, classes) = (..., {len(self)}, {self.classes}), "
                f"got {tuple(logits.shape)}"
            )
        dtype = torch.promote_types(self.rows.dtype, logits.dtype)
        product = self.rows.to(dtype) @ logits.to(dtype).unsqueeze(-1)
        return product.squeeze(-1) + self.offsets.to(dtype)

    def margin(self, logits: Float[Tensor, "*many batch classes"]) -> Float[Tensor, "*many batch"]:
        """The smallest margin of a clause, which is the largest of its rows; without clauses the smallest of `margins`."""
        return self.by_clause(self.margins(logits)).amin(-1)

    def by_clause(self, margins: Float[Tensor, "*many specs"]) -> Float[Tensor, "*many clauses"]:
        """The largest margin of every clause; NaN counts as no margin.

        >>> either = Property(torch.eye(2)[None], torch.zeros(1, 2), torch.tensor([0, 0]))
        >>> either.by_clause(torch.tensor([[-1.0, 2.0]]))
        tensor([[2.]])
        """
        if self.clauses is None:
            return margins
        count = int(self.clauses.max()) + 1
        found = margins.new_full((*margins.shape[:-1], count), -torch.inf)
        places = self.clauses.to(margins.device).expand(margins.shape)
        return found.scatter_reduce(-1, places, margins.nan_to_num(-torch.inf, torch.inf, -torch.inf), "amax")

    def holds(self, logits: Float[Tensor, "*many batch classes"]) -> Bool[Tensor, "*many batch"]:
        """Whether `margin` is positive; a tie or NaN does not count as positive."""
        return self.margin(logits) > 0

    def restrict(self, index: slice | Tensor) -> Property:
        """The property restricted to some examples, given as a slice, a mask (batch,) or positions (n,)."""
        return Property(self.rows[index], self.offsets[index], self.clauses)

    def select(self, rows: Int[Tensor, "batch some"]) -> Property:
        """The property that some rows of each example are positive, by their positions; clauses are not kept."""
        places = rows.unsqueeze(2).expand(-1, -1, self.classes)
        return Property(self.rows.gather(1, places), self.offsets.gather(1, rows))

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Property:
        """The same property in another dtype or on another device."""
        return Property(self.rows.to(device, dtype), self.offsets.to(device, dtype), self.clauses)

    def fits(self, dtype: torch.dtype) -> bool:
        """Whether all numbers of the property are numbers of a dtype."""
        return all(torch.equal(part.to(dtype).to(part.dtype), part) for part in (self.rows, self.offsets))


def class_stays(
    y: Int[Tensor, " batch"],
    classes: int,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Property:
    """The property that the class stays y: rows e_y - e_s (batch, classes - 1, classes) for all s != y, in class order.

    dtype and device default to torch's default dtype and the device of `y`.
    """
    if classes < 2:
        raise InvalidInput(f"classes must be at least 2, got {classes}")
    _check_classes("y", y, classes, ndim=1)
    others = torch.arange(classes - 1, device=y.device)
    return _differences(y, others + (others >= y[:, None]), classes, dtype, device)


def against(
    y: Int[Tensor, " batch"],
    targets: Int[Tensor, "batch specs"],
    classes: int,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Property:
    """The property f_y > f_t for some target classes t (batch, specs): rows e_y - e_t, in the given order.

    >>> against(torch.tensor([0]), torch.tensor([[2]]), classes=3).rows
    tensor([[[ 1.,  0., -1.]]])
    """
    _check_classes("y", y, classes, ndim=1)
    _check_classes("targets", targets, classes, ndim=2)
    if targets.shape[0] != y.shape[0]:
        raise InvalidInput(f"targets must have shape (batch, specs) with batch {len(y)}, got {tuple(targets.shape)}")
    same = targets.to(y.device) == y[:, None]
    if same.any():
        example, column = same.nonzero()[0].tolist()
        raise InvalidInput(
            f"targets must differ from y, got targets[{example}, {column}] = y[{example}] = {int(y[example])}"
        )
    return _differences(y, targets.to(y.device), classes, dtype, device)


def _differences(
    y: Tensor, targets: Tensor, classes: int, dtype: torch.dtype | None, device: torch.device | str | None
) -> Property:
    one_hot = torch.eye(classes, dtype=dtype, device=y.device if device is None else device)
    y, targets = y.to(one_hot.device).long(), targets.to(one_hot.device).long()
    rows = one_hot[y][:, None] - one_hot[targets]
    return Property(rows, rows.new_zeros(rows.shape[:2]))


def _check_clauses(clauses: Tensor, specs: int) -> None:
    if clauses.shape != (specs,) or clauses.is_floating_point() or clauses.dtype == torch.bool:
        raise InvalidInput(
            f"clauses must have one whole number for each of {specs} rows, got {clauses.dtype} {tuple(clauses.shape)}"
        )
    numbers = clauses.unique()
    if not torch.equal(numbers, torch.arange(len(numbers), device=numbers.device)):
        raise InvalidInput(f"clauses must be numbered from 0 without gaps, got {numbers.tolist()}")


def _check_classes(name: str, labels: Tensor, classes: int, *, ndim: int) -> None:
    if labels.ndim != ndim:
        shape = "(batch,)" if ndim == 1 else "(batch, specs)"
        raise InvalidInput(f"{name} must have shape {shape}, got {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InvalidInput(f"{name} must hold integers, got {labels.dtype}")
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        where = outside.nonzero()[0].tolist()
        raise InvalidInput(
            f"{name} must lie in 0 to {classes - 1}, got {int(labels[tuple(where)])} at index {', '.join(map(str, where))}"
        )
