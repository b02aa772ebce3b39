"""The paper's grids, as what varies in a sweep.

`tables23-mmr` and `tables23-mmr+at` are the grids of lambda and gamma behind Tables 2 and 3 and the l2 appendix; `kw-radius`
is the grid of radii that the paper searched for the networks of Wong and Kolter in l2. Of the search behind Table 1 the paper
says that the best gamma was mostly 1.5 to 2 times the radius, and not which values of lambda were tried: `table1-mmr` and
`table1-mmr+at` take gamma from that range and lambda from the values that the chosen networks have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from relucert.core.errors import InvalidInput
from relucert.training.config import TrainConfig
from relucert.training.recipes import GRID_GAMMAS, GRID_LAMBDAS, TABLE_1, default_eps
from relucert.training.schemes.registry import parse_scheme

#: The radii of the paper's search for KW training in l2.
KW_RADII = (0.05, 0.1, 0.2, 0.3, 0.4, 0.6)
#: gamma in units of the radius, for the grid of Table 1.
GAMMA_RATIOS = (1.5, 1.75, 2.0)

Grid = tuple[str, ...]


def _listed(name: str, values: tuple[float, ...]) -> str:
    return f"{name}={','.join(f'{value:.10g}' for value in values)}"


def _tables_2_3(config: TrainConfig) -> Grid:
    if config.data not in GRID_GAMMAS or config.p != 2 or config.recipe != "tables23":
        raise InvalidInput(
            f"preset must be another one for {config.setting} and recipe {config.recipe}: the grids of Tables 2 and 3 are for "
            f"{', '.join(GRID_GAMMAS)} with p=2 and recipe tables23"
        )
    return _listed("lam", GRID_LAMBDAS), _listed("gamma", GRID_GAMMAS[config.data])


def _table_1(config: TrainConfig) -> Grid:
    radius = default_eps(config.data, config.p)
    if radius is None:
        raise InvalidInput(f"preset must be another one for {config.setting}: the paper has no radius for it")
    mixed = parse_scheme(config.scheme).name == "mmr+at"
    weights = {margins[mixed].lam for key, margins in TABLE_1.margins.items() if key[0] == config.p}
    gammas = tuple(ratio * radius for ratio in GAMMA_RATIOS)
    return _listed("lam", tuple(sorted(weights))), _listed("gamma", gammas)


def _kw_radius(config: TrainConfig) -> Grid:
    if config.p != 2:
        raise InvalidInput(f"preset must be another one for {config.setting}: the grid of radii is for p=2")
    return (_listed("scheme.eps", KW_RADII),)


#: Every preset: the scheme, and the grid for a configuration with that scheme.
PRESETS: dict[str, tuple[str, Callable[[TrainConfig], Grid]]] = {
    "tables23-mmr": ("mmr", _tables_2_3),
    "tables23-mmr+at": ("mmr+at", _tables_2_3),
    "table1-mmr": ("mmr", _table_1),
    "table1-mmr+at": ("mmr+at", _table_1),
    "kw-radius": ("kw", _kw_radius),
}


def preset(name: str, config: TrainConfig) -> tuple[TrainConfig, Grid]:
    """The configuration with a preset's scheme, and what varies."""
    if name not in PRESETS:
        raise InvalidInput(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    scheme, grid = PRESETS[name]
    config = replace(config, scheme=scheme)
    return config, grid(config)
