"""The paper's settings for every data set, as defaults (section 5, appendix B, and the authors' released code)."""

from __future__ import annotations

import math

#: The radius at which each data set is judged, in l_inf and l2; digits (8 x 8 pixels) are not in the paper.
EPS = {
    "mnist": {math.inf: 0.1, 2.0: 0.3},
    "fmnist": {math.inf: 0.1, 2.0: 0.3},
    "gts": {math.inf: 4 / 255, 2.0: 0.2},
    "cifar10": {math.inf: 2 / 255, 2.0: 0.1},
    "digits": {math.inf: 0.1, 2.0: 0.3},
}

#: Steps of PGD while training; 40 are used everywhere in evaluation.
ATTACK_STEPS = {"mnist": 40, "fmnist": 40, "gts": 7, "cifar10": 7, "digits": 10}

#: Zero-padding before random crops, with mirroring; other data sets are not augmented.
CROP_PADDING = {"cifar10": 2}


def default_eps(data: str, p: float) -> float | None:
    """The paper's radius, or None where it has none (norms other than l_inf and l2)."""
    return EPS.get(data, {}).get(p)
