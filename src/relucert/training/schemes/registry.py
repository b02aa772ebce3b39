"""All training schemes by name, and the way from a text to a scheme."""

from __future__ import annotations

import re

from relucert.core.errors import InvalidInput
from relucert.core.methods import parse
from relucert.training.schemes.adversarial import AdversarialTraining
from relucert.training.schemes.bounded import CROWNIBPTraining, IBPTraining, KWTraining
from relucert.training.schemes.cross_lipschitz import CrossLipschitzTraining
from relucert.training.schemes.expressive import CCIBPTraining, MTLIBPTraining, SABRTraining
from relucert.training.schemes.hybrid import MMRIBPTraining
from relucert.training.schemes.maximum_margin import MMRATTraining, MMRDDTraining, MMRTraining
from relucert.training.schemes.plain import PlainTraining
from relucert.training.schemes.scheme import Scheme
from relucert.training.schemes.spectral import SpectralTraining
from relucert.training.schemes.stability import StabilityTraining
from relucert.training.schemes.universal import MMRUniversalTraining

SCHEMES: dict[str, type[Scheme]] = {
    kind.name: kind
    for kind in (
        PlainTraining,
        AdversarialTraining,
        MMRTraining,
        MMRDDTraining,
        MMRATTraining,
        MMRUniversalTraining,
        CrossLipschitzTraining,
        KWTraining,
        IBPTraining,
        CROWNIBPTraining,
        MTLIBPTraining,
        CCIBPTraining,
        SABRTraining,
        MMRIBPTraining,
        StabilityTraining,
        SpectralTraining,
    )
}

#: The paper's spelling of parameters: lambda, gamma_B, gamma_D, k_B, k_D.
_PAPER = re.compile(r"\b(lambda|gamma_[BD]|k_[BD])(?=\s*=)")


def parse_scheme(scheme: str | Scheme) -> Scheme:
    """The scheme that a value, a name or a text such as `"mmr(lambda=2, gamma_B=0.1)"` stands for.

    >>> parse_scheme("mmr(lambda=2, gamma_B=0.1)")
    MMRTraining(lam=2.0, gamma_d=None, k_d=None, share_d=None, nearest_after=None, gamma_b=0.1, k_b=None, share_b=None)
    """
    if isinstance(scheme, Scheme):
        return scheme
    if not isinstance(scheme, str) or scheme.split("(")[0].strip() not in SCHEMES:
        raise InvalidInput(f"scheme must be one of {', '.join(SCHEMES)}, got {scheme!r}")
    text = _PAPER.sub(lambda match: "lam" if match[0] == "lambda" else match[0].lower(), scheme)
    try:
        return parse(text, SCHEMES)
    except InvalidInput as error:
        raise InvalidInput(str(error).replace("method", "scheme", 1)) from error
