"""Configurations of earlier versions, whose runs held the parameters of all schemes as fields of their own.

Earlier: `{"scheme": "mmr", "lam": 2.0, "gamma": 0.1, "attack_steps": 40, ...}`; now: `{"scheme": "mmr(gamma_b=0.1,
gamma_d=0.1, lam=2.0)", ...}`. The command line takes the earlier fields as flags, too.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from relucert.core.methods import spec
from relucert.training.schemes.registry import parse_scheme
from relucert.training.schemes.scheme import Scheme

#: Earlier fields of a run, and the parameters of schemes that they set.
OLD_FIELDS: dict[str, tuple[str, ...]] = {
    "lam": ("lam",),
    "gamma": ("gamma_b", "gamma_d"),
    "l1": ("l1",),
    "intervals": ("intervals",),
    "kappa": ("kappa",),
    "adversarial": ("adversarial",),
    "attack_steps": ("attack_steps",),
    "train_eps": ("eps",),
    "attacked_radius": ("eps",),
}


def migrated(values: dict[str, Any]) -> dict[str, Any]:
    """A saved configuration with the parameters of the scheme in the scheme's text.

    Every earlier configuration holds a value, or null, for all fields; those that the scheme does not have are dropped.

    >>> migrated({"data": "mnist", "scheme": "mmr-dd", "lam": 2.0, "gamma": 0.1, "attack_steps": 40})["scheme"]
    'mmr-dd(gamma_d=0.1, k_d=None, lam=2.0, nearest_after=None, share_d=None)'
    """
    if OLD_FIELDS.keys().isdisjoint(values):
        return values
    old = {name: value for name, value in values.items() if name in OLD_FIELDS}
    scheme = with_old_fields(parse_scheme(values["scheme"]), old)
    return {name: value for name, value in values.items() if name not in OLD_FIELDS} | {"scheme": spec(scheme)}


def with_old_fields(scheme: Scheme, old: dict[str, Any]) -> Scheme:
    """The scheme with its parameters set by fields of an earlier version; null sets nothing."""
    own = parameters(scheme)
    changes = {
        parameter: value
        for name, value in old.items()
        for parameter in OLD_FIELDS[name]
        if value is not None and parameter in own
    }
    return dataclasses.replace(scheme, **changes)


def parameters(scheme: Scheme | type[Scheme]) -> set[str]:
    """The names of the parameters of a scheme."""
    return {field.name for field in dataclasses.fields(scheme)}
