"""Timeouts: answers come in time, whatever the method, and what cheap methods decide in time is never lost."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import relucert as rc
from relucert.bounding.methods.crown import Alpha
from relucert.core.errors import OutOfTime
from relucert.core.progress import followed, pace
from relucert.core.verdict import Reason
from relucert.networks.build.rebuilding import describe, rebuild
from relucert.networks.network import Network
from relucert.networks.traversal import ending, look
from relucert.verification import _incomplete
from relucert.verification._incomplete import bounded
from relucert.verification.verifier import GRACE, Query
from zoo import inputs, network, randomised

METHODS = ("crown", "alpha", "bab", "auto", "mip")
NETWORKS = ("fc", "cnn", "max pool", "residual")


class CountedClock:
    """A clock that goes on by `tick` seconds whenever it is read, and not otherwise: independent of the machine."""

    def __init__(self, tick: float):
        self.tick, self.now = tick, 1000.0

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


def question(name: str, seed: int = 0) -> tuple[Network, torch.Tensor, torch.Tensor]:
    net = network(name)
    x = inputs(net, 6, seed)
    return net, x, net.predict(x)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
def test_by_the_clock_that_is_read_answers_come_in_time(name: str, method: str, monkeypatch) -> None:
    """The code looks at the clock so often that it ends within 20 % and a second of the time that all inputs have."""
    net, x, y = question(name)
    for seconds in (0.2, 2.0):
        clock = CountedClock(0.01)
        monkeypatch.setattr(time, "monotonic", clock)
        began = clock.now
        found = rc.certify(net, x, y, rc.Ball(math.inf, 0.05), method, timeout=seconds, workers=1, progress=False)
        spent = clock.now - began
        monkeypatch.undo()
        assert spent <= 1.2 * seconds * len(x) + 1
        late = [reason for reason in found.reason if reason == "time"]
        assert len(late) <= found.verdict.count(rc.Verdict.UNKNOWN)


@pytest.mark.parametrize("name", NETWORKS)
def test_by_the_clock_that_is_read_auto_keeps_what_crown_proves(name: str, monkeypatch) -> None:
    """With any timeout `auto` proves whatever CROWN proves alone in that time, less 20 %: each look at the clock costs time."""
    net, x, y = question(name)
    ball = rc.Ball(math.inf, 0.01)
    for seconds in (0.02, 0.1, 0.5, 3.0):
        decided = {}
        for method in ("crown", "auto"):
            monkeypatch.setattr(time, "monotonic", CountedClock(0.01))
            timeout = seconds if method == "crown" else 1.2 * seconds
            found = rc.certify(net, x, y, ball, method, timeout=timeout, workers=1, progress=False)
            monkeypatch.undo()
            decided[method] = {i for i, verdict in enumerate(found.verdict) if verdict is not rc.Verdict.UNKNOWN}
        assert decided["crown"] <= decided["auto"]


def test_pieces_keep_what_is_proved_before_the_deadline(monkeypatch) -> None:
    """Where the time is enough for some inputs alone, these are decided, and the others are UNKNOWN for want of time."""
    net = Network(
        randomised(nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3))), (4,)
    )
    monkeypatch.setattr(_incomplete, "COUNTED", 0)  # as if the network were larger: the clock decides
    x = inputs(net, 40, 0)
    y, ball = net.predict(x), rc.Ball(math.inf, 1e-4)
    every = rc.certify(net, x, y, ball, "crown").verdict.count(rc.Verdict.ROBUST)
    counts = []
    for seconds in (0.05, 0.5, 50.0):
        monkeypatch.setattr(time, "monotonic", CountedClock(0.05))
        found = rc.certify(net, x, y, ball, "auto", timeout=seconds, workers=1, progress=False)
        monkeypatch.undo()
        counts.append(found.verdict.count(rc.Verdict.ROBUST))
        assert all(reason == "time" for reason in found.reason if reason) or seconds == 50.0
    assert 0 < counts[0] < counts[2] == every
    assert counts == sorted(counts)


@pytest.mark.parametrize("method", ["ibp", "crown", "auto"])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_takes_few_multiplications_is_proved_whatever_the_clock_says(name: str, method: str, monkeypatch) -> None:
    """A clock that jumps by an hour whenever it is read loses no verdict of a bound of a small network."""
    net, x, y = question(name)
    ball = rc.Ball(math.inf, 1e-3)
    expected = rc.certify(net, x, y, ball, "ibp" if method == "ibp" else "crown").verdict
    assert rc.Verdict.ROBUST in expected
    monkeypatch.setattr(time, "monotonic", CountedClock(3600.0))
    found = rc.certify(net, x, y, ball, method, timeout=1e-3, workers=1, progress=False).verdict
    monkeypatch.undo()
    pairs = list(zip(expected, found, strict=True))
    assert all(one is other for one, other in pairs if one is rc.Verdict.ROBUST)
    assert all(other in (one, rc.Verdict.UNKNOWN, rc.Verdict.VULNERABLE) for one, other in pairs)


def test_a_bound_that_a_deadline_ends_keeps_what_it_has_proved() -> None:
    """Verdicts are those of the whole bound, or UNKNOWN for want of time: the more of the former, the later the deadline."""
    net, x, y = question("cnn")
    query = Query.of(net.float(), x.float(), y, rc.Ball(math.inf, 0.02))
    whole, found = bounded(query, Alpha(steps=5)), []
    clock = CountedClock(0.01)
    for seconds in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 100.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "monotonic", clock)
            with ending(clock.now + seconds):
                found.append(bounded(query, Alpha(steps=5)))
    for part in found:
        assert bool((part.proved <= whole.proved).all())
        assert bool((part.margin <= whole.margin).all())
        assert part.timed.tolist() == [part.cut and not proved for proved in part.proved.tolist()]
        assert not part.cut or set(part.reasons.values()) <= {Reason.TIME}
    counts = [int(part.proved.sum()) for part in found]
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert (counts[-1], found[-1].cut) == (int(whole.proved.sum()), False)
    assert any(part.cut and bool(part.proved.any()) for part in found), (
        "what CROWN has proved before the slopes is kept"
    )


def test_no_compiler_of_torch_is_imported_while_a_clock_runs() -> None:
    """Networks and adjoints need no part of torch that takes seconds to import, which inputs would be charged for."""
    code = f"""
import math, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import relucert as rc
from zoo import inputs, network
for name in ("cnn", "residual", "leaky", "transposed"):
    net = network(name)
    x = inputs(net, 2, 0)
    rc.certify(net, x, net.predict(x), rc.Ball(math.inf, 0.01), "alpha(steps=2)")
print(sorted({{"sympy", "torch._dynamo"}} & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]", found.stdout


def test_radii_come_in_time_and_are_never_below_those_of_crown(monkeypatch) -> None:
    net, x, y = question("fc")
    crown = rc.radius(net, x, y, 2, method="crown")
    auto = rc.radius(net, x, y, 2, timeout=0.3)
    assert bool((auto.lower >= crown.lower).all())
    assert bool((auto.upper <= crown.upper).all())
    for method in ("crown", "region", "bab", "auto"):
        clock = CountedClock(0.01)
        monkeypatch.setattr(time, "monotonic", clock)
        began = clock.now
        found = rc.radius(net, x, y, 2, method=method, timeout=0.5, progress=False)
        spent = clock.now - began
        monkeypatch.undo()
        assert spent <= 1.2 * 0.5 * len(x) + 1, method
        assert bool((found.lower <= found.upper).all())


def test_a_deadline_ends_propagation_and_the_nearest_one_counts() -> None:
    net, x, _ = question("cnn")
    past = time.monotonic() - 1
    with pytest.raises(OutOfTime), ending(past), ending(math.inf):
        net.logits(x)
    look()
    assert net.logits(x).isfinite().all()
    assert GRACE < 1


def test_auto_has_a_finite_default() -> None:
    from relucert.verification.registry import RADIUS_SECONDS, VERDICT_SECONDS, Auto, budget_of, find

    assert budget_of(find("auto")[0], None, VERDICT_SECONDS).seconds == VERDICT_SECONDS < math.inf
    assert budget_of(find("auto")[0], None, RADIUS_SECONDS).seconds == RADIUS_SECONDS < math.inf
    assert budget_of(Auto(seconds=math.inf), None, VERDICT_SECONDS).seconds == math.inf
    assert budget_of(find("auto")[0], 3.0, VERDICT_SECONDS).seconds == 3.0
    with pytest.raises(ValueError, match="seconds of auto must be positive"):
        Auto(seconds=0)


def test_the_estimate_of_the_time_left_moves(capsys) -> None:
    assert pace(2, 10, 4.0) != pace(2, 10, 8.0) != pace(4, 10, 8.0)
    assert list(followed(iter(range(3)), 3, "counting", after=0.0)) == [0, 1, 2]
    assert "counting" in capsys.readouterr().err
    assert list(followed(iter(range(3)), 3, "counting", after=60.0)) == [0, 1, 2]
    assert "counting" not in capsys.readouterr().err


def test_records_of_an_interrupted_call_are_those_of_a_whole_one(tmp_path, monkeypatch) -> None:
    """`rc.certify` with records goes on where it was interrupted, and its answer is that of a call without."""
    net, x, y = question("fc")
    ball, method = rc.Ball(math.inf, 0.05), "auto(nodes=50)"
    whole = rc.certify(net, x, y, ball, method, records=tmp_path / "whole.jsonl", batch=2)
    with rc.RecordStore(tmp_path / "whole.jsonl") as store:
        expected = {record.key: (record.verdict, record.margin) for record in store.records()}
    assert len(expected) == len(x)
    first = rc.certify(net, x[:3], y[:3], ball, method, records=tmp_path / "part.jsonl")
    assert first.verdict == whole.verdict[:3]
    again = rc.certify(net, x, y, ball, method, records=tmp_path / "part.jsonl", workers=2, progress=False)
    with rc.RecordStore(tmp_path / "part.jsonl") as store:
        assert {record.key: (record.verdict, record.margin) for record in store.records()} == expected
    plain = rc.certify(net, x, y, ball, method)
    for found in (whole, again):
        assert found.verdict == plain.verdict
        assert found.margin.tolist() == plain.margin.tolist()
    with pytest.raises(ValueError, match="targets must be left out with records"):
        rc.certify(net, x, y, ball, targets=((y + 1) % net.classes)[:, None], records=tmp_path / "x.jsonl")
    with pytest.raises(ValueError, match="ball must be one ball of one radius"):
        rc.certify(net, x, y, [ball, ball], records=tmp_path / "x.jsonl")


def resnet18() -> nn.Module:
    """The residual network with 18 layers and 11 million weights, for inputs of 3 x 32 x 32."""

    def normed(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Module:
        layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(outputs))

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int):
            super().__init__()
            self.first, self.second = normed(inputs, outputs, 3, stride), normed(outputs, outputs)
            self.shortcut = nn.Identity() if inputs == outputs else normed(inputs, outputs, 1, stride)

        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.second(torch.relu(self.first(z))) + self.shortcut(z))

    blocks = [Block(64, 64, 1), Block(64, 64, 1)]
    for channels in (128, 256, 512):
        blocks += [Block(channels // 2, channels, 2), Block(channels, channels, 1)]
    return nn.Sequential(normed(3, 64), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["crown", "alpha", "bab", "auto"])
def test_large_networks_end_in_time_with_a_reason(method: str, monkeypatch) -> None:
    """By the clock of this process, which the load of others does not change."""
    torch.manual_seed(0)
    net = Network(resnet18().eval(), (3, 32, 32))
    x = torch.rand(2, 3, 32, 32)
    y = net.predict(x)
    monkeypatch.setattr(time, "monotonic", time.process_time)
    began = time.monotonic()
    found = rc.certify(net, x, y, rc.Ball(math.inf, 0.02), method, timeout=5, workers=1, progress=False)
    assert time.monotonic() - began <= 1.2 * 5 * len(x) + 1
    for verdict, reason in zip(found.verdict, found.reason, strict=True):
        assert verdict is rc.Verdict.VULNERABLE or (verdict, reason) == (rc.Verdict.UNKNOWN, "time")


@pytest.mark.slow
def test_three_hundred_timeouts_are_kept(monkeypatch) -> None:
    """By the clock of this process, which the load of others does not change: at most 20 % and a second over."""
    monkeypatch.setattr(time, "monotonic", time.process_time)
    torch.manual_seed(0)
    pooled = nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 49, 50), nn.ReLU(), nn.Linear(50, 10),
    )  # fmt: skip
    nets = [
        *(network(name) for name in NETWORKS),
        Network(pooled, (1, 28, 28)).eval(),
        rc.build("cnn", (1, 28, 28), 10).eval(),
    ]
    generator = random.Random(0)
    for _ in range(300):
        net, method = generator.choice(nets), generator.choice(METHODS)
        seconds, eps = 10 ** generator.uniform(-3, 0), 10 ** generator.uniform(-4, -1)
        x = torch.rand(generator.randint(1, 8), *net.input_shape, dtype=net.dtype)
        y, ball = net.predict(x), rc.Ball(math.inf, eps)
        began = time.monotonic()
        found = rc.certify(net, x, y, ball, method, timeout=seconds, workers=1)
        assert time.monotonic() - began <= 1.2 * seconds * len(x) + 1, (method, seconds, len(x))
        if method == "auto":
            quick = rc.certify(net, x, y, ball, "crown", timeout=seconds / 4, workers=1)
            pairs = zip(quick.verdict, found.verdict, strict=True)
            assert not any(one is rc.Verdict.ROBUST and other is rc.Verdict.UNKNOWN for one, other in pairs)


def test_a_deadline_that_passes_while_a_network_is_built_is_no_fault_of_the_network() -> None:
    net = network("max pool")
    with pytest.raises(OutOfTime), ending(time.monotonic() - 1):
        Network(net.module, net.input_shape)
    with pytest.raises(OutOfTime), ending(time.monotonic() - 1):
        rebuild(*describe(net))
