"""The methods of `certify` and `radius` by name, each with its verifier and its way to radii.

A new method is one line here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relucert.bounding.base import Bounding
from relucert.bounding.methods.alpha import Alpha
from relucert.bounding.methods.crown import CROWN
from relucert.bounding.methods.ibp import IBP
from relucert.bounding.methods.kw import KW
from relucert.bounding.methods.lipschitz import Lipschitz
from relucert.bounding.methods.moments import Moments
from relucert.bounding.methods.sdp import SDP
from relucert.core.methods import Method, parse
from relucert.geometry.theorem import Region
from relucert.verification._incomplete import Bound, RegionTheorem, TimedBound
from relucert.verification._narrowing import RadiusNarrowing
from relucert.verification._search import RadiusSearch
from relucert.verification.bab.bab import BaB
from relucert.verification.cascade import MOMENTS_CHUNK, SDP_CHUNK, Auto
from relucert.verification.mip.distortion import DistortionPrograms
from relucert.verification.mip.mip import MIP
from relucert.verification.verifier import RadiusMethod, Verifier


@dataclass(frozen=True)
class Entry:
    """A class of methods: how a method becomes a verifier and a radius method, and whether it takes `targets`."""

    kind: type[Method]
    verifier: Callable[[Any], Verifier]
    radius: Callable[[Any], RadiusMethod]
    targets: bool = True


def _itself(method: Any) -> Any:
    return method


ENTRIES: dict[str, Entry] = {
    entry.kind.name: entry
    for entry in (
        Entry(Region, RegionTheorem, RegionTheorem, targets=False),
        Entry(IBP, Bound, RadiusSearch),
        Entry(KW, Bound, RadiusSearch),
        Entry(CROWN, Bound, RadiusSearch),
        Entry(Alpha, Bound, RadiusSearch),
        Entry(Lipschitz, Bound, RadiusSearch),
        Entry(SDP, lambda method: TimedBound(method, SDP_CHUNK), RadiusSearch),
        Entry(Moments, lambda method: TimedBound(method, MOMENTS_CHUNK), RadiusSearch),
        Entry(BaB, _itself, RadiusNarrowing),
        Entry(MIP, _itself, DistortionPrograms),
        Entry(Auto, _itself, lambda method: RadiusNarrowing(BaB(nodes=method.nodes))),
    )
}
METHODS: dict[str, type[Method]] = {name: entry.kind for name, entry in ENTRIES.items()}
BOUNDING: dict[str, type[Bounding]] = {
    name: kind for name, kind in METHODS.items() if issubclass(kind, Bounding)
}  # fmt: skip


def find(method: str | Method) -> tuple[Method, Entry]:
    """The method that a name, a text or a value stands for, and its entry."""
    chosen = parse(method, METHODS)
    by_kind = {entry.kind: entry for entry in ENTRIES.values()}
    return chosen, next(by_kind[kind] for kind in type(chosen).__mro__ if kind in by_kind)
