"""What varies in a sweep: fields of a training configuration and parameters of its scheme, each with values or an interval."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from relucert.core.errors import InvalidInput
from relucert.training.config import TrainConfig
from relucert.training.old_config import parameters
from relucert.training.schemes.registry import parse_scheme
from relucert.training.schemes.scheme import Scheme

Value = str | int | float
#: Fields that are the same for all runs of a sweep: what they are judged by, and what does not change the weights.
FIXED = ("data", "out", "validation", "validation_seed", "device", "evaluate_every", "evaluate_points", "save_seconds")
FIXED += ("tensorboard",)
#: The paper's spelling, and `gamma` for both gammas, which are equal in the paper.
SPELLING = {"lambda": ("lam",), "gamma": ("gamma_b", "gamma_d"), "gamma_B": ("gamma_b",), "gamma_D": ("gamma_d",)}
_KINDS = {"uniform": (False, False), "log": (True, False), "int": (False, True)}
_INTERVAL = re.compile(rf"({'|'.join(_KINDS)})\(([^,()]+),([^,()]+)\)")
_RULE = "vary must read NAME=VALUE,VALUE,... or NAME=uniform(LOW,HIGH), log(LOW,HIGH) or int(LOW,HIGH)"


@dataclass(frozen=True)
class Choices:
    """Some values, as texts."""

    values: tuple[str, ...]

    @property
    def corners(self) -> tuple[Value, ...]:
        """The values that are tried before a sweep starts."""
        return self.values


@dataclass(frozen=True)
class Interval:
    """All numbers from `low` to `high`, on a logarithmic scale if `log`, whole ones if `whole`."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def corners(self) -> tuple[Value, ...]:
        """The values that are tried before a sweep starts."""
        return self.at(0.0), self.at(1.0)

    def at(self, share: float) -> Value:
        """The number at a share of the interval, from 0 to 1.

        >>> Interval(1, 100, log=True).at(0.5), Interval(1, 3, whole=True).at(0.99), Interval(0, 1).at(0.25)
        (10.0, 3, 0.25)
        """
        if self.whole:
            return min(int(self.high), int(self.low + share * (self.high - self.low + 1)))
        if self.log:
            return min(self.high, max(self.low, self.low * (self.high / self.low) ** share))
        return self.low + share * (self.high - self.low)


Domain = Choices | Interval


def space_of(texts: tuple[str, ...], base: TrainConfig) -> dict[str, Domain]:
    """The domain of every name in texts such as "lam=0.5,1,2"; all corners must make configurations.

    >>> space_of(("epochs=int(5,20)", "scheme=plain,mmr(lam=2, gamma_b=0.1)"), TrainConfig())["scheme"]
    Choices(values=('plain', 'mmr(lam=2, gamma_b=0.1)'))
    """
    space: dict[str, Domain] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not name or not values:
            raise InvalidInput(f"{_RULE}, got {text!r}")
        if name in space:
            raise InvalidInput(f"vary must name {name!r} once, got {text!r}")
        space[name] = _domain(values, text)
    if not space:
        raise InvalidInput("vary must name at least one field, got none")
    first = {name: domain.corners[0] for name, domain in space.items()}
    for name, domain in space.items():
        for value in domain.corners:
            configured(base, first | {name: value})
    return space


def _domain(values: str, text: str) -> Domain:
    match = _INTERVAL.fullmatch(values)
    if match is None:
        found = tuple(part.strip() for part in re.split(r",(?![^(]*\))", values))
        if "" in found or len(set(found)) < len(found):
            raise InvalidInput(f"{_RULE}, each value once, got {text!r}")
        return Choices(found)
    low, high = (_literal(end.strip()) for end in match.groups()[1:])
    log, whole = _KINDS[match[1]]
    numbers = all(isinstance(end, int if whole else int | float) for end in (low, high))
    if not numbers or not -math.inf < low < high < math.inf or (log and low <= 0):
        kind = "whole numbers" if whole else "positive numbers" if log else "numbers"
        raise InvalidInput(f"{match[1]}(LOW,HIGH) must have two {kind} with LOW < HIGH, got {text!r}")
    return Interval(low, high, log, whole)


def configured(base: TrainConfig, values: Mapping[str, Value]) -> TrainConfig:
    """The configuration with some values in place of those of `base`."""
    hints = get_type_hints(TrainConfig)
    scheme = parse_scheme(str(values.get("scheme", base.scheme)) if "scheme" in values else base.scheme)
    fields: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name in FIXED:
            raise InvalidInput(f"vary must leave out {name}, which all runs of a sweep share, got {name}={value}")
        if name != "scheme" and name in hints:
            fields[name] = _fitted(name, value, hints[name])
        elif name != "scheme":
            changes |= {parameter: _literal(value) for parameter in _parameters(name, scheme)}
    return dataclasses.replace(base, scheme=dataclasses.replace(scheme, **changes), **fields)


def _parameters(name: str, scheme: Scheme) -> tuple[str, ...]:
    """The parameters of a scheme that a name means: `lam`, `scheme.lam`, the paper's `lambda`; `gamma` is two."""
    short = name.removeprefix("scheme.")
    known = parameters(scheme)
    found = tuple(parameter for parameter in SPELLING.get(short, (short,)) if parameter in known)
    if not found:
        fields = [field.name for field in dataclasses.fields(TrainConfig) if field.name not in FIXED]
        raise InvalidInput(
            f"vary must name fields of a run ({', '.join(fields)}) or parameters of scheme {scheme.name} "
            f"({', '.join(sorted(known)) or 'none'}), got {name!r}"
        )
    return found


def _fitted(name: str, value: Value, hint: Any) -> Any:
    """A value of a field's type."""
    kinds = get_args(hint) or (hint,)
    if str in kinds:
        return str(value)
    if Path in kinds:
        return Path(str(value))
    found = _literal(value)
    allowed = (*kinds, int) if float in kinds else kinds
    if type(found) not in allowed:
        words = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise InvalidInput(f"{name} must be of type {words}, got {value!r}")
    return found


def _literal(value: Value) -> Any:
    """The number, None, True or False that a text stands for, fractions such as 8/255 included; else the text.

    >>> [_literal(text) for text in ("3", "1e-3", "8/255", "inf", "None", "True", "crown")]
    [3, 0.001, 0.03137254901960784, inf, None, True, 'crown']
    """
    if not isinstance(value, str):
        return value
    if value in ("None", "True", "False"):
        return {"None": None, "True": True, "False": False}[value]
    try:
        return int(value)
    except ValueError:
        pass
    top, slash, bottom = value.partition("/")
    try:
        return float(top) / float(bottom) if slash else float(value)
    except (ValueError, ZeroDivisionError):
        return value
