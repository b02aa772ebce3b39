"""L-BFGS over many problems: as good as one at a time by others, each problem by itself."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from relucert.bounding._minimiser import minimised


def quartic(seed: int, count: int, size: int):
    """Convex functions |A z - b|^2 + sum z^4, one for each problem."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(count, size + 3, size, generator=generator, dtype=torch.float64)
    aim = torch.randn(count, size + 3, generator=generator, dtype=torch.float64)

    def value(which: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        rest = (matrix[which] @ z.unsqueeze(2))[..., 0] - aim[which]
        gradient = 2 * (matrix[which].mT @ rest.unsqueeze(2))[..., 0] + 4 * z**3
        return rest.square().sum(1) + (z**4).sum(1), gradient

    return value


def test_reaches_the_minima_of_another_solver() -> None:
    value = quartic(0, 5, 8)
    start = torch.zeros(5, 8, dtype=torch.float64)
    found = value(torch.arange(5), minimised(value, start, 200, enough=0.0))[0]
    for problem in range(5):
        which = torch.tensor([problem])

        def flat(z: np.ndarray, which: Tensor = which) -> tuple[float, np.ndarray]:
            one, gradient = value(which, torch.from_numpy(z)[None])
            return float(one), gradient[0].numpy()

        assert abs(float(found[problem]) - minimize(flat, np.zeros(8), jac=True, method="L-BFGS-B").fun) < 1e-6


def test_problems_do_not_know_of_each_other() -> None:
    value = quartic(1, 4, 6)
    start = torch.ones(4, 6, dtype=torch.float64)
    together = minimised(value, start, 25)
    for problem in range(4):
        alone = minimised(lambda which, z, own=problem: value(which + own, z), start[:1], 25)
        torch.testing.assert_close(alone[0], together[problem], rtol=1e-9, atol=1e-9)


def test_never_uphill() -> None:
    """Where no step is short enough, as at a kink, the point stays."""

    def kink(which: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        return z.abs().sum(1), torch.ones_like(z)  # a gradient that lies on the left side

    start = torch.tensor([[0.0, 0.0], [3.0, 1.0]])
    found = minimised(kink, start, 50)
    assert bool((found.abs().sum(1) <= start.abs().sum(1)).all())
    assert found[0].tolist() == [0.0, 0.0]
