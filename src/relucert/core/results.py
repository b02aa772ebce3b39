"""The results of the public functions: frozen dataclasses with one entry for each example of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relucert.core.errors import InvalidInput
from relucert.core.verdict import Verdict as Verdict
from relucert.core.verdict import arithmetic_of, rounding_of

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}


class _Batch:
    """A dataclass whose fields have one entry for each example: a tensor (batch, ...), a list, or None."""

    def __len__(self) -> int:
        return next(len(values) for values in self._entries().values() if values is not None)

    def __getitem__(self, index: int | slice | Tensor) -> Self:
        """The results of some examples, as a batch: index by an integer (a batch of one), a slice, a mask or positions."""
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"index must be within the batch of {len(self)}, got {index}")
            index = slice(index % len(self), index % len(self) + 1)
        positions = torch.arange(len(self))[index.cpu() if isinstance(index, Tensor) else index]
        if positions.ndim != 1:
            raise InvalidInput(f"index must be an integer, a slice, a mask or positions (n,), got {index!r}")
        return type(self)(**{name: _pick(values, positions) for name, values in self._entries().items()})

    def _entries(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]


AnyBatch = TypeVar("AnyBatch", bound=_Batch)


@dataclass(frozen=True, eq=False, repr=False)
class RadiusInterval(_Batch):
    """For every example an interval [lower, upper] around the distance to the nearest change of decision.

    `lower` (batch,) is proved; `upper` (batch,) is the distance of `witness` (batch, *input), inf without a witness; `exact`
    (batch,) says that optimality is proved and upper <= lower (1 + tol), see `meets`; `seconds` (batch,); `method` has one
    text for each example. Rows of `witness` of examples without a witness are NaN; `witness` is None if no example has one.
    `arithmetic` says what the proof of `lower` covers: "executed", the network as it runs in its dtype and in real arithmetic;
    "real", real arithmetic with the stored weights alone.

    >>> found = RadiusInterval(
    ...     lower=torch.tensor([0.5, 0.25]), upper=torch.tensor([0.5, float("inf")]), exact=torch.tensor([True, False]),
    ...     witness=torch.zeros(2, 4), seconds=torch.tensor([0.1, 0.1]), method=["region", "region"],
    ... )
    >>> found
    RadiusInterval(2 examples, lower 0.25 to 0.5, upper 0.5 to inf, 1 exact)
    >>> found[1:].witness
    tensor([[nan, nan, nan, nan]])
    """

    lower: Float[Tensor, " batch"]
    upper: Float[Tensor, " batch"]
    exact: Bool[Tensor, " batch"]
    witness: Float[Tensor, " batch *input"] | None
    seconds: Float[Tensor, " batch"]
    method: list[str]
    arithmetic: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        batch = len(self.lower)
        object.__setattr__(self, "arithmetic", self.arithmetic or ["real"] * batch)
        _check_length("arithmetic", self.arithmetic, batch)
        if not {"real", "executed"}.issuperset(self.arithmetic):
            raise InvalidInput(f"arithmetic must be 'real' or 'executed' for every example, got {self.arithmetic}")
        for name in ("lower", "upper", "seconds"):
            _check_numbers(name, getattr(self, name), batch)
        _check_mask("exact", self.exact, batch)
        _check_length("method", self.method, batch)
        _refuse("lower must be at least 0", self.lower < 0, lower=self.lower)
        _refuse("lower must not exceed upper", self.lower > self.upper, lower=self.lower, upper=self.upper)
        gap = self.exact & ~meets(self.lower, self.upper)
        _refuse("where exact, upper must be at most lower (1 + tol)", gap, lower=self.lower, upper=self.upper)
        _keep_witnesses(self, self.upper.isfinite(), "upper is finite")

    def __repr__(self) -> str:
        return (
            f"RadiusInterval({_examples(self)}, lower {_span(self.lower)}, upper {_span(self.upper)}, "
            f"{int(self.exact.sum())} exact)"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Certificate(_Batch):
    """For every example a verdict about a ball.

    `margin` (batch,) is the best proved lower bound on the property's margin over the ball, in real arithmetic, -inf without
    one; `executed` (batch,) is the same for the network as executed in its dtype, `computed` (batch,) the bound before rounding
    was charged. `witness` (batch, *input) holds the counterexamples of VULNERABLE examples; other rows are NaN, and it is None
    without any counterexample. `method` names the method that decided each example; `seconds` (batch,). `reason` says why an
    example is UNKNOWN, if that is known, in a word (`core.verdict.Reason`) or in the text of a solver. `claim` names a solver
    that reports the example as robust without a proof that can be checked: the verdict is UNKNOWN (`mip(trust="solver")`).
    `reason` and `claim` have one text for each example, or "". For the union of several balls `ball` has the position of the
    ball that each answer is about: that of the counterexample, of the smallest margin, or the one that stays UNKNOWN.
    """

    verdict: list[Verdict]
    margin: Float[Tensor, " batch"]
    witness: Float[Tensor, " batch *input"] | None
    method: list[str]
    seconds: Float[Tensor, " batch"]
    reason: list[str] = field(default_factory=list)
    claim: list[str] = field(default_factory=list)
    executed: Float[Tensor, " batch"] | None = None
    computed: Float[Tensor, " batch"] | None = None
    ball: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        batch = len(self.margin)
        object.__setattr__(self, "ball", self.ball or [0] * batch)
        for name in ("executed", "computed"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, torch.full_like(self.margin, -torch.inf))
        for name in ("reason", "claim"):
            object.__setattr__(self, name, getattr(self, name) or [""] * batch)
        for name in ("verdict", "method", "reason", "claim", "ball"):
            _check_length(name, getattr(self, name), batch)
        for example, (verdict, claim) in enumerate(zip(self.verdict, self.claim, strict=True)):
            if claim and Verdict(verdict) is not Verdict.UNKNOWN:
                raise InvalidInput(
                    f"claim must be empty unless the verdict is unknown, got {claim!r} in example {example}"
                )
        for name in ("margin", "seconds", "executed", "computed"):
            _check_numbers(name, getattr(self, name), batch)
        object.__setattr__(self, "verdict", [Verdict(verdict) for verdict in self.verdict])
        # If a witness contradicts a proof, one of them is wrong: raise an error instead of returning an answer.
        robust, vulnerable = self.which(Verdict.ROBUST), self.which(Verdict.VULNERABLE)
        _refuse(
            "margin must not be negative where the verdict is robust", robust & (self.margin < 0), margin=self.margin
        )
        _refuse(
            "margin must not be positive where the verdict is vulnerable",
            vulnerable & (self.margin > 0),
            margin=self.margin,
        )
        _keep_witnesses(self, vulnerable, "the verdict is vulnerable")

    @property
    def arithmetic(self) -> list[str]:
        """What every proof covers: "executed", the network as it runs in its dtype and in real arithmetic; "real", real
        arithmetic with the stored weights alone; "" for examples that are not ROBUST.
        """
        assert self.executed is not None
        return [arithmetic_of(*each) for each in zip(self.verdict, self.executed.tolist(), strict=True)]

    @property
    def rounding(self) -> Float[Tensor, " batch"]:
        """What the proved margins were charged for rounding, (batch,); NaN without one bound for the whole ball, and where
        the verdict is VULNERABLE.
        """
        assert self.computed is not None
        each = zip(self.computed.tolist(), self.margin.tolist(), strict=True)
        charged = self.margin.new_tensor([rounding_of(computed, margin) for computed, margin in each])
        return charged.masked_fill(self.which(Verdict.VULNERABLE), torch.nan)

    def which(self, verdict: Verdict) -> Bool[Tensor, " batch"]:
        """The mask of the examples with this verdict."""
        return torch.tensor([each is verdict for each in self.verdict], dtype=torch.bool, device=self.margin.device)

    def __repr__(self) -> str:
        counts = [f"{self.verdict.count(verdict)} {verdict}" for verdict in Verdict if verdict in self.verdict]
        claimed = len(self.claim) - self.claim.count("")
        counts += [f"{claimed} of the unknown robust on a solver's word"] if claimed else []
        return f"Certificate({', '.join([_examples(self), *counts])})"


@dataclass(frozen=True, eq=False, repr=False)
class Adversarial(_Batch):
    """The result of an attack: `x` (batch, *input), `success` (batch,) and `distance` (batch,), which is inf on failure.

    >>> Adversarial(torch.zeros(2, 4), torch.tensor([True, False]), torch.tensor([0.5, float("inf")]))
    Adversarial(2 examples, 1 successful, distance 0.5 to 0.5)
    """

    x: Float[Tensor, " batch *input"]
    success: Bool[Tensor, " batch"]
    distance: Float[Tensor, " batch"]

    def __post_init__(self) -> None:
        batch = len(self.x)
        _check_mask("success", self.success, batch)
        _check_numbers("distance", self.distance, batch)
        _refuse("distance must be at least 0", self.distance < 0, distance=self.distance)
        wrong = self.success != self.distance.isfinite()
        _refuse("distance must be finite on success and inf on failure", wrong, distance=self.distance)
        falsified = self.success & ~_finite_rows(self.x)
        _refuse("x must be finite on success", falsified, distance=self.distance)

    def __repr__(self) -> str:
        found = self.distance[self.success]
        span = f", distance {_span(found)}" if len(found) else ""
        return f"Adversarial({_examples(self)}, {len(found)} successful{span})"


@dataclass(frozen=True, eq=False, repr=False)
class Distances(_Batch):
    """The paper's d_B (`region`) and d_D (`decision`, signed if labels were given), both (batch,).

    Only shapes are checked, because training differentiates through these values.
    """

    region: Float[Tensor, " batch"]
    decision: Float[Tensor, " batch"]

    def __post_init__(self) -> None:
        for name in ("region", "decision"):
            _check_shape(name, getattr(self, name), len(self.region))

    def __repr__(self) -> str:
        return f"Distances({_examples(self)}, region {_span(self.region)}, decision {_span(self.decision)})"


def meets(lower: Float[Tensor, " batch"], upper: Float[Tensor, " batch"]) -> Bool[Tensor, " batch"]:
    """Whether upper <= lower (1 + tol), with tol = 1e-6 in float64 and 1e-4 in float32: the condition of `exact`.

    >>> meets(torch.tensor([1.0, 1.0]), torch.tensor([1.00005, 1.001]))
    tensor([ True, False])
    """
    if lower.dtype not in _TOLERANCE or upper.dtype != lower.dtype:
        raise InvalidInput(f"lower and upper must both be float32 or both float64, got {lower.dtype} and {upper.dtype}")
    # In float64, because 1 + tol is not a float32.
    return upper.double() <= lower.double() * (1 + _TOLERANCE[lower.dtype])


def concatenate(results: Sequence[AnyBatch]) -> AnyBatch:
    """Concatenate results of the same kind into one result.

    >>> part = Distances(torch.tensor([1.0]), torch.tensor([2.0]))
    >>> len(concatenate([part, part]))
    2
    """
    kinds = {type(result) for result in results}
    if len(kinds) != 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "none"
        raise InvalidInput(f"results must be at least one, all of one kind, got {names}")
    kind = kinds.pop()
    parts = [result._entries() for result in results]
    lengths = [len(result) for result in results]
    return kind(**{name: _joined([part[name] for part in parts], lengths) for name in parts[0]})


def scattered(results: AnyBatch, index: Tensor, some: AnyBatch) -> AnyBatch:
    """A copy of `results` whose entries at positions `index` (n,) are those of `some`.

    >>> every = Distances(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    >>> scattered(every, torch.tensor([1]), Distances(torch.tensor([9.0]), torch.tensor([8.0]))).region
    tensor([1., 9.])
    """
    order = torch.arange(len(results))
    order[index.cpu()] = len(results) + torch.arange(len(some))
    return concatenate([results, some])[order]


def _joined(values: list[Any], lengths: list[int]) -> Any:
    given = next((value for value in values if value is not None), None)
    if given is None or not isinstance(given, Tensor):
        return None if given is None else [item for value in values for item in value]
    filled = [
        given.new_full((length, *given.shape[1:]), torch.nan) if value is None else value
        for value, length in zip(values, lengths, strict=True)
    ]
    return torch.cat(filled)


def _pick(values: Any, positions: Tensor) -> Any:
    if values is None:
        return None
    if isinstance(values, Tensor):
        return values[positions.to(values.device)]
    return [values[position] for position in positions.tolist()]


def _keep_witnesses(result: RadiusInterval | Certificate, needed: Tensor, rule: str) -> None:
    """Check that every example of the mask `needed` has a witness, and set all other rows to NaN."""
    witness = result.witness
    if witness is None:
        _refuse(f"witness must be given where {rule}", needed)
        return
    if witness.ndim < 2 or len(witness) != len(needed):
        raise InvalidInput(
            f"witness must have shape (batch, *input) with batch {len(needed)}, got {tuple(witness.shape)}"
        )
    _refuse(f"witness must be finite where {rule}", needed & ~_finite_rows(witness))
    if not needed.all():
        kept = needed.view(-1, *[1] * (witness.ndim - 1))
        object.__setattr__(result, "witness", witness.where(kept, torch.nan))


def _finite_rows(x: Tensor) -> Tensor:
    return x.isfinite().flatten(1).all(1)


def _check_shape(name: str, values: Tensor, batch: int) -> None:
    if values.shape != (batch,):
        raise InvalidInput(f"{name} must have shape (batch,) = ({batch},), got {tuple(values.shape)}")


def _check_numbers(name: str, values: Tensor, batch: int) -> None:
    _check_shape(name, values, batch)
    if not values.is_floating_point():
        raise InvalidInput(f"{name} must have a floating-point dtype, got {values.dtype}")
    _refuse(f"{name} must not be NaN", values.isnan())


def _check_mask(name: str, values: Tensor, batch: int) -> None:
    _check_shape(name, values, batch)
    if values.dtype != torch.bool:
        raise InvalidInput(f"{name} must have dtype bool, got {values.dtype}")


def _check_length(name: str, values: Any, batch: int) -> None:
    if not isinstance(values, list) or len(values) != batch:
        raise InvalidInput(f"{name} must be a list with one entry for each of {batch} examples, got {values!r}")


def _refuse(rule: str, wrong: Tensor, **values: Tensor) -> None:
    if wrong.any():
        example = int(wrong.nonzero()[0])
        numbers = "".join(f", {name} {value[example].item()!r}" for name, value in values.items())
        raise InvalidInput(f"{rule}, got example {example}{numbers}")


def _examples(result: _Batch) -> str:
    return f"{len(result)} example{'' if len(result) == 1 else 's'}"


def _span(values: Tensor) -> str:
    return f"{values.min().item():.4g} to {values.max().item():.4g}" if len(values) else "none"
