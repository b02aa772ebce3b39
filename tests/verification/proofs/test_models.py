"""Every verdict about the networks in results/ has a certificate that is checked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import relucert as rc
from relucert.checker.__main__ import run
from relucert.verification.proofs.prover import NETWORK

RESULTS = Path(__file__).resolve().parents[3] / "results"
POINTS = 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "p", "eps", "method"),
    [
        ("mnist-cnn-kw-inf", math.inf, 0.1, "kw"),
        ("mnist-cnn-ibp-inf", math.inf, 0.1, "crown"),
        ("mnist-cnn-mmr+at-inf", math.inf, 0.1, "bab"),
        ("mnist-fc1-kw-inf", math.inf, 0.1, "alpha"),
        ("mnist-fc1-mmr-2", 2, 0.1, "region"),
        ("mnist-fc1-mmr-2", 2, 0.3, "crown"),
        ("mnist-fc1-mmr-inf", 1, 1.0, "alpha"),
        ("mnist-cnn-spectral-2", 2, 0.3, "sdp"),
    ],
)
def test_every_robust_point_is_checked(
    name: str, p: float, eps: float, method: str, real_data: Any, tmp_path: Path, capsys: Any
) -> None:
    if not (RESULTS / name).is_dir():
        pytest.skip("needs results/")
    net, data = rc.load(RESULTS / name / "model.safetensors"), real_data(name.split("-")[0])
    x, y = data.x_test[:POINTS], data.y_test[:POINTS]
    found = rc.certify(net, x, y, rc.Ball(p, eps), method, timeout=60 if method == "bab" else None, proofs=tmp_path)
    decided = sum(str(verdict) in ("robust", "vulnerable") for verdict in found.verdict)
    assert run(tmp_path, tmp_path / NETWORK) == 0
    printed = capsys.readouterr().out
    assert "NO CERTIFICATE" not in printed
    assert printed.count(": CHECKED: ") == decided > 0
    assert max(path.stat().st_size for path in tmp_path.glob("*.npz")) < 200_000
