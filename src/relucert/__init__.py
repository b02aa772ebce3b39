"""relucert: train ReLU classifiers whose robustness can be proved, and prove it.

Names are imported at their first use, so that `import relucert` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from relucert.core.versions import VERSION as __version__

if TYPE_CHECKING:
    from relucert.attacks.apgd import APGD as APGD
    from relucert.attacks.best import Best as Best
    from relucert.attacks.cw import CW as CW
    from relucert.attacks.ddn import DDN as DDN
    from relucert.attacks.fab import FAB as FAB
    from relucert.attacks.pgd import PGD as PGD
    from relucert.attacks.problem import attack as attack
    from relucert.attacks.problem import minimal_attack as minimal_attack
    from relucert.attacks.region import RegionAttack as RegionAttack
    from relucert.bounding.methods.crown import CROWN as CROWN
    from relucert.bounding.methods.crown import Alpha as Alpha
    from relucert.bounding.methods.ibp import IBP as IBP
    from relucert.bounding.methods.kw import KW as KW
    from relucert.bounding.methods.lipschitz import Lipschitz as Lipschitz
    from relucert.bounding.methods.moments import Moments as Moments
    from relucert.bounding.methods.sdp import SDP as SDP
    from relucert.core.ball import Ball as Ball
    from relucert.core.errors import Interrupted as Interrupted
    from relucert.core.errors import RelucertError as RelucertError
    from relucert.core.results import Adversarial as Adversarial
    from relucert.core.results import Certificate as Certificate
    from relucert.core.results import Distances as Distances
    from relucert.core.results import RadiusInterval as RadiusInterval
    from relucert.core.results import Verdict as Verdict
    from relucert.data import dataset as dataset
    from relucert.evaluation.config import EvaluateConfig as EvaluateConfig
    from relucert.evaluation.evaluate import evaluate as evaluate
    from relucert.geometry.distances import distances as distances
    from relucert.geometry.exploration.universal import Universal as Universal
    from relucert.geometry.theorem import Region as Region
    from relucert.interop.loading import load as load
    from relucert.interop.loading import save as save
    from relucert.interop.sklearn import from_sklearn as from_sklearn
    from relucert.interop.sklearn import sklearn_inputs as sklearn_inputs
    from relucert.networks.architectures import build as build
    from relucert.networks.network import Network as Network
    from relucert.records.record import Record as Record
    from relucert.records.store import RecordStore as RecordStore
    from relucert.regularizers.cross_lipschitz import cross_lipschitz as cross_lipschitz
    from relucert.regularizers.mmr import MMRParameters as MMRParameters
    from relucert.regularizers.mmr import mmr as mmr
    from relucert.training import example_losses as losses  # noqa: F401
    from relucert.training.config import TrainConfig as TrainConfig
    from relucert.training.problem import train as train
    from relucert.verification.bab.bab import BaB as BaB
    from relucert.verification.bounds import bounds as bounds
    from relucert.verification.certify import certify as certify
    from relucert.verification.certify import decisions as decisions
    from relucert.verification.mip.mip import MIP as MIP
    from relucert.verification.output_range import OutputRange as OutputRange
    from relucert.verification.output_range import output_range as output_range
    from relucert.verification.radius import intervals as intervals
    from relucert.verification.radius import radius as radius
    from relucert.verification.registry import Auto as Auto
    from relucert.verification.verifier import Decision as Decision

_HOME = {
    "APGD": "relucert.attacks.apgd",
    "Adversarial": "relucert.core.results",
    "Alpha": "relucert.bounding.methods.crown",
    "Auto": "relucert.verification.registry",
    "BaB": "relucert.verification.bab.bab",
    "Ball": "relucert.core.ball",
    "Best": "relucert.attacks.best",
    "CROWN": "relucert.bounding.methods.crown",
    "CW": "relucert.attacks.cw",
    "Certificate": "relucert.core.results",
    "DDN": "relucert.attacks.ddn",
    "Decision": "relucert.verification.verifier",
    "Distances": "relucert.core.results",
    "EvaluateConfig": "relucert.evaluation.config",
    "FAB": "relucert.attacks.fab",
    "IBP": "relucert.bounding.methods.ibp",
    "Interrupted": "relucert.core.errors",
    "KW": "relucert.bounding.methods.kw",
    "Lipschitz": "relucert.bounding.methods.lipschitz",
    "MMRParameters": "relucert.regularizers.mmr",
    "MIP": "relucert.verification.mip.mip",
    "Moments": "relucert.bounding.methods.moments",
    "Network": "relucert.networks.network",
    "OutputRange": "relucert.verification.output_range",
    "PGD": "relucert.attacks.pgd",
    "RadiusInterval": "relucert.core.results",
    "Record": "relucert.records.record",
    "RecordStore": "relucert.records.store",
    "Region": "relucert.geometry.theorem",
    "RegionAttack": "relucert.attacks.region",
    "RelucertError": "relucert.core.errors",
    "SDP": "relucert.bounding.methods.sdp",
    "TrainConfig": "relucert.training.config",
    "Universal": "relucert.geometry.exploration.universal",
    "Verdict": "relucert.core.results",
    "attack": "relucert.attacks.problem",
    "bounds": "relucert.verification.bounds",
    "build": "relucert.networks.architectures",
    "certify": "relucert.verification.certify",
    "cross_lipschitz": "relucert.regularizers.cross_lipschitz",
    "dataset": "relucert.data",
    "decisions": "relucert.verification.certify",
    "distances": "relucert.geometry.distances",
    "evaluate": "relucert.evaluation.evaluate",
    "from_sklearn": "relucert.interop.sklearn",
    "intervals": "relucert.verification.radius",
    "load": "relucert.interop.loading",
    "minimal_attack": "relucert.attacks.problem",
    "mmr": "relucert.regularizers.mmr",
    "output_range": "relucert.verification.output_range",
    "radius": "relucert.verification.radius",
    "save": "relucert.interop.loading",
    "sklearn_inputs": "relucert.interop.sklearn",
    "train": "relucert.training.problem",
}

#: Public names that are modules.
_MODULES = {"losses": "relucert.training.example_losses"}

__all__ = [*sorted({**_HOME, **_MODULES}), "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _HOME:
        raise AttributeError(f"module 'relucert' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
