"""Networks written as ONNX files: onnxruntime computes their logits, and reading them again gives the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.reference
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import relucert as rc
from relucert.core.errors import CheckpointError, UnsupportedLayer
from relucert.interop.onnx.writing import save_onnx
from relucert.networks.build.rebuilding import describe
from relucert.networks.network import Network
from relucert.networks.unpooled import unpooled
from zoo import NETWORKS, inputs, network, randomised


def run(path: Path, x: Tensor) -> np.ndarray:
    """onnxruntime, or the reference of ONNX for float64, which onnxruntime does not have for convolutions."""
    if x.dtype == torch.float64:
        return onnx.reference.ReferenceEvaluator(str(path)).run(None, {"input": x.numpy()})[0]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return onnxruntime.InferenceSession(str(path), options).run(None, {"input": x.numpy()})[0]


def assert_round_trip(net: Network, path: Path, tolerance: float) -> None:
    save_onnx(net, path)
    again, x = rc.load(path), 2 * inputs(net, 5) - 0.5
    expected = run(path, x)
    for found in (net(x), again(x)):
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=tolerance, atol=tolerance)
    assert again.input_shape == net.input_shape
    assert again.dtype == net.dtype
    before, behind = ({value.numpy().tobytes() for value in describe(one)[1].values()} for one in (net, again))
    assert before <= behind


@pytest.mark.parametrize("name", NETWORKS)
def test_the_zoo_makes_the_round_trip(name: str, tmp_path: Path) -> None:
    assert_round_trip(network(name, torch.float32), tmp_path / "net.onnx", 1e-5)


@pytest.mark.parametrize("name", ["max pool", "sequence", "leaky"])
def test_float64_keeps_its_digits(name: str, tmp_path: Path) -> None:
    assert_round_trip(network(name), tmp_path / "net.onnx", 1e-12)


def test_a_second_trip_changes_nothing(tmp_path: Path) -> None:
    net = network("residual", torch.float32)
    rc.save(net, tmp_path / "one.onnx.gz")
    once = rc.load(tmp_path / "one.onnx.gz")
    rc.save(once, tmp_path / "two.onnx")
    twice = rc.load(tmp_path / "two.onnx")
    assert torch.equal(once(inputs(net)), twice(inputs(net)))
    one, two = (sorted(value.numpy().tobytes() for value in describe(each)[1].values()) for each in (once, twice))
    assert one == two


def test_unpooled_networks_are_written(tmp_path: Path) -> None:
    assert_round_trip(unpooled(network("dead windows", torch.float32)), tmp_path / "net.onnx", 1e-5)


class Odd(nn.Module):
    """Pools and slopes that ONNX has no operator for."""

    def forward(self, x: Tensor) -> Tensor:
        ceil = F.avg_pool2d(x, 2, 2, ceil_mode=True, count_include_pad=False)
        both = F.leaky_relu(ceil, -0.3), F.adaptive_avg_pool2d(x, (2, 3)), F.avg_pool2d(x, 3, 2, 1, divisor_override=5)
        return torch.cat([one.flatten(1) for one in both], 1)


def test_windows_without_an_operator_of_their_own_are_written(tmp_path: Path) -> None:
    assert_round_trip(Network(Odd(), (2, 5, 7)).eval(), tmp_path / "net.onnx", 1e-5)


def random_network(seed: int) -> Network:
    """Layers in random order, with random numbers."""
    draw = torch.Generator().manual_seed(seed)

    def pick(*options: int) -> int:
        return options[int(torch.randint(len(options), (1,), generator=draw))]

    channels, layers = pick(1, 2, 3), []
    shape, size = (channels, 9, 8), channels
    for _ in range(pick(2, 3, 4)):
        kernel, groups, stride, pad = pick(1, 2, 3), pick(1, size), pick(1, 2), pick(0, 1)
        layer = [
            nn.Conv2d(size, 2 * size, kernel, stride, pad, groups=groups, bias=bool(pick(0, 1))),
            nn.ConvTranspose2d(size, size, kernel, stride, groups=groups),
            nn.BatchNorm2d(size),
            nn.MaxPool2d(2, stride, pad),
            nn.AvgPool2d(2, stride, pad, count_include_pad=bool(pick(0, 1))),
            nn.ZeroPad2d((pad, pick(0, 2), pick(0, 1), 1)),
        ][pick(*range(6))]
        layers += [layer, [nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh, nn.PReLU][pick(*range(5))]()]
        size = layer.out_channels if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) else size
    with torch.no_grad():
        features = nn.Sequential(*layers)(torch.zeros(2, *shape)).flatten(1).shape[1]
    module = randomised(nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 4)), seed)
    return Network(module, shape, pick(0, 1) * 0.3, 0.5).eval()


@pytest.mark.share(2)
@pytest.mark.parametrize("seed", range(30))
def test_random_networks_make_the_round_trip(seed: int, tmp_path: Path) -> None:
    assert_round_trip(random_network(seed), tmp_path / "net.onnx", 1e-5)


def test_what_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = network("fc")
    with pytest.raises(CheckpointError, match="about must be left out"):
        rc.save(net, tmp_path / "net.onnx", {"epochs": 3})
    with pytest.raises(CheckpointError, match=r"must end in \.safetensors, \.onnx or \.onnx\.gz"):
        rc.save(net, tmp_path / "net.pt")
    monkeypatch.delitem(__import__("relucert.interop.onnx.writing").interop.onnx.writing.WRITERS, "relu")
    with pytest.raises(UnsupportedLayer, match="no ONNX operator is known for relu"):
        rc.save(net, tmp_path / "net.onnx")
    assert not (tmp_path / "net.onnx").exists()
