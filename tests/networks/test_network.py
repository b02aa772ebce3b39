import copy

import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import nn

import relucert as rc
from relucert.core.errors import InvalidInput, UnsupportedLayer, WrongMode
from relucert.networks.architectures import build, cnn, mlp
from relucert.networks.layers.linear import Conv2d
from relucert.networks.network import Network
from relucert.networks.nodes import Affine, MaxPool2d, ReLU
from zoo import NETWORKS, inputs, network


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_graph_computes_what_the_module_computes(name, dtype, tolerance):
    net = network(name, dtype)
    x = inputs(net, 20)
    normalised = x if net.mean is None else x - net.mean
    normalised = normalised if net.std is None else normalised / net.std
    expected = net.module(normalised)
    assert torch.allclose(net.logits(x), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(net(x), expected)


@pytest.mark.parametrize(("name", "shape"), [("fc1", (1, 28, 28)), ("fc10", (3, 32, 32)), ("cnn", (3, 32, 32))])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_graph_computes_what_the_papers_modules_compute(name, shape, dtype, tolerance):
    net = build(name, shape, 10).to(dtype).eval()
    x = inputs(net, 4)
    assert torch.allclose(net.logits(x), net.module(x), rtol=tolerance, atol=tolerance)


def assert_adjoint(op, shape, dtype, tolerance, batch=4):
    generator = torch.Generator().manual_seed(0)

    def random(shape):
        return torch.randn(batch, *shape, generator=generator, dtype=torch.float64).to(dtype)

    z, y = [random(one) for one in op.in_shapes], random(shape)
    left = (op.linear(*z) * y).double().flatten(1).sum(1)
    right = sum((a * b).double().flatten(1).sum(1) for a, b in zip(z, op.transpose(y), strict=True))
    torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_transpose_is_the_adjoint(name, dtype, tolerance):
    for node in network(name, dtype).graph:
        if isinstance(node.op, Affine):
            assert_adjoint(node.op, node.shape, dtype, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
@pytest.mark.parametrize("colours", [1, 2])
@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [
        ((4, 4), (2, 2), (1, 1), (1, 1)), ((3, 2), (1, 1), (0, 0), (1, 1)), ((2, 3), (3, 2), (0, 1), (1, 1)),
        ((3, 3), (2, 3), (2, 1), (2, 1)), ((1, 1), (4, 3), (0, 0), (1, 1)),
    ],
)  # fmt: skip
def test_transpose_of_every_convolution_is_its_adjoint(
    kernel, stride, padding, dilation, colours, batch, dtype, tolerance
):
    """With what the stride leaves over, for grey images and others, alone and in batches."""
    module = nn.Sequential(
        nn.Conv2d(colours, 3, kernel, stride, padding, dilation), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)
    )
    module(torch.zeros(1, colours, 10, 11))
    net = Network(module.to(dtype), (colours, 10, 11)).eval()
    (node,) = [node for node in net.graph if isinstance(node.op, Conv2d)]
    assert_adjoint(node.op, node.shape, dtype, tolerance, batch)


@pytest.mark.parametrize("name", NETWORKS)
def test_affine_nodes_are_linear_plus_their_value_at_zero(name):
    net = network(name)
    for node in net.graph:
        if isinstance(node.op, Affine):
            z = [torch.randn(3, *shape, dtype=torch.float64) for shape in node.op.in_shapes]
            at_zero = node.op.apply(*(torch.zeros_like(part) for part in z))
            assert torch.allclose(node.op.apply(*z), node.op.linear(*z) + at_zero, rtol=1e-12, atol=1e-12), node


@pytest.mark.parametrize("name", NETWORKS)
def test_switching_nodes_are_linear_once_the_pattern_is_fixed(name):
    net = network(name)
    x = inputs(net, 6)
    for node, z, pattern in zip(net.switches, net.preactivations(x), net.pattern(x), strict=True):
        assert isinstance(node.op, ReLU | MaxPool2d)
        assert torch.equal(node.op.linear(z, pattern), node.op.apply(z)), node
        rows = torch.randn(6, 2, *node.op.in_shape, dtype=torch.float64)
        y = torch.randn(6, 2, *node.shape, dtype=torch.float64)
        left = (node.op.linear(rows, pattern) * y).flatten(2).sum(2)
        right = (rows * node.op.transpose(y, pattern)).flatten(2).sum(2)
        assert torch.allclose(left, right, rtol=1e-12, atol=1e-12), node


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"), [(2, 2, 0, 1), (3, 2, 1, 1), (2, 1, 1, 2), (3, 3, 0, 1)]
)
def test_windows_of_a_max_pool_hold_its_candidates(kernel, stride, padding, dilation, ceil_mode):
    op = MaxPool2d(
        (2, 6, 7), kernel=(kernel, kernel), stride=(stride, stride), padding=(padding, padding),
        dilation=(dilation, dilation), ceil_mode=ceil_mode,
    )  # fmt: skip
    z = torch.randn(3, 2, 6, 7, dtype=torch.float64)
    windows = op.windows()
    flat = torch.cat([z.flatten(2), torch.full((3, 2, 1), -torch.inf, dtype=z.dtype)], 2)  # -1 is the padding
    assert torch.equal(flat[:, :, windows].amax(-1), op.apply(z).flatten(2))


def test_numbers_of_hidden_units_are_the_papers():
    assert build("fc1", (1, 28, 28), 10).hidden_units == 1024
    assert build("fc10", (1, 28, 28), 10).hidden_units == 1024
    assert build("cnn", (1, 28, 28), 10).hidden_units == 4804
    assert build("cnn", (3, 32, 32), 43).hidden_units == 6244


def test_parameters_are_shared_and_gradients_reach_them():
    module = mlp((1, 2, 2), 3, [5])
    net = Network(module, (1, 2, 2), mean=0.2, std=0.5).eval()
    x = inputs(net)
    net.logits(x).sum().backward()
    assert module[1].weight.grad is not None
    before = net.logits(x)
    with torch.no_grad():
        module[1].weight.mul_(2)
    assert not torch.allclose(before, net.logits(x))
    assert torch.allclose(net(x), net.logits(x), atol=1e-5)


def test_graph_follows_dtype_copies_and_assigned_weights():
    net = Network(mlp((4,), 3, [5]), (4,), mean=0.25, std=0.5).eval()
    twin = copy.deepcopy(net).double()
    with torch.no_grad():
        twin.module[1].weight.mul_(3)
    x = inputs(net)
    assert net.dtype == torch.float32
    assert twin.dtype == torch.float64
    assert torch.allclose(net(x), net.logits(x), atol=1e-5)
    assert torch.allclose(twin(x.double()), twin.logits(x.double()), atol=1e-12)
    fresh = {name: torch.randn_like(value) for name, value in net.module.state_dict().items()}
    net.module.load_state_dict(fresh, assign=True)
    assert torch.allclose(net(x), net.logits(x), atol=1e-5)


def test_parametrised_weights_are_read_as_they_are():
    module = mlp((4,), 3, [5])
    nn.utils.parametrizations.weight_norm(module[1])
    net = Network(module.double(), (4,)).eval()
    assert torch.allclose(net(inputs(net)), net.logits(inputs(net)), atol=1e-12)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Linear(4, 4), nn.ReLU(inplace=True)

    def forward(self, x):
        z = self.fc(x)
        y = self.act(z)
        z += y  # z is y by now
        return z


def test_in_place_layers_are_followed_and_the_input_is_left_alone():
    net = Network(InPlace().double(), (4,)).eval()
    x = inputs(net)
    assert torch.allclose(net(x), net.logits(x), atol=1e-12)
    net = Network(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)).double(), (4,)).eval()
    x = inputs(net) - 0.5
    kept = x.clone()
    net(x)
    assert torch.equal(x, kept)


def test_dropout_and_batch_norm_mean_eval_mode_even_while_training():
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 2)).double()
    module.train()
    net = Network(module, (4,))
    assert net.training
    assert module[3].training, "tracing must leave the mode alone"
    x = inputs(net)
    expected = net.logits(x)
    assert torch.allclose(net.eval()(x), expected, atol=1e-12)


def test_train_mode_is_an_error_where_certificates_are_made():
    net = network("residual")
    net.require_eval("certify")
    next(part for part in net.modules() if isinstance(part, nn.BatchNorm2d)).train()
    with pytest.raises(WrongMode, match=r"certify needs the network in eval mode .* module\.1"):
        net.require_eval("certify")


def test_a_network_has_the_mode_of_its_module_and_none_without_batch_norm_and_dropout():
    module = mlp((4,), 3, [5])
    net = Network(module.train(), (4,))
    assert net.training
    net.require_eval("certify")
    module.eval()
    assert not net.training
    net.train()
    assert module.training
    dropping = nn.Sequential(nn.Linear(4, 5), nn.Dropout(), nn.Linear(5, 3))
    net = Network(dropping, (4,))
    with pytest.raises(WrongMode, match=r"needs the network in eval mode .* module\.1"):
        net.require_eval("certify")
    dropping.eval()
    net.require_eval("certify")
    dropping[0].train()  # a linear layer has no mode
    net.require_eval("certify")


class ReadsItsMode(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        return F.dropout(self.fc(x), 0.5, self.training)


def test_code_that_reads_the_mode_needs_eval_mode():
    module = ReadsItsMode()
    net = Network(module, (4,))
    assert module.training
    with pytest.raises(WrongMode, match=r"got module in train mode"):
        net.require_eval("certify")
    net.eval().require_eval("certify")


QUESTIONS = {
    "certify": lambda net, x, y: rc.certify(net, x, y, rc.Ball(2, 0.05), "crown").margin,
    "radius": lambda net, x, y: rc.radius(net, x, y, method="region").lower,
    "bounds": lambda net, x, y: rc.bounds(net, x, rc.Ball(2, 0.05)).logits.lower,
    "attack": lambda net, x, y: rc.attack(net, x, y, rc.Ball(2, 0.3), "pgd(steps=3)").x,
    "minimal attack": lambda net, x, y: rc.minimal_attack(net, x, y, method="ddn(steps=3)").x,
    "distances": lambda net, x, y: rc.distances(net, x, y).region,
    "mmr": lambda net, x, y: rc.mmr(net, x, y, 2, 0.3, 0.3),
    "cross lipschitz": lambda net, x, y: rc.cross_lipschitz(net, x),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_modules_are_networks_as_they_are(name):
    net = network("fc")
    x = inputs(net, 4)
    y = net.predict(x)
    ask = QUESTIONS[name]
    assert torch.equal(ask(net.module, x, y), ask(net, x, y))
    with pytest.raises(InvalidInput, match=r"net must be a Network or an nn\.Module, got function"):
        ask(lambda x: x, x, y)
    with pytest.raises(InvalidInput, match=r"got str: relucert\.load reads files"):
        ask("net.onnx", x, y)
    with pytest.raises(InvalidInput, match=r"got LogisticRegression: relucert\.from_sklearn makes one of it"):
        ask(LogisticRegression(), x, y)


def test_a_number_is_no_ball():
    net = network("fc")
    x = inputs(net, 4)
    for ask in (
        lambda: rc.certify(net, x, net.predict(x), 0.1),
        lambda: rc.bounds(net, x, 0.1),
        lambda: rc.attack(net, x, None, 0.1),
    ):
        with pytest.raises(InvalidInput, match=r"ball must be a Ball, such as Ball\(inf, 0\.1\) .*, got 0\.1"):
            ask()


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.fc, self.function = nn.Linear(4, 4), function
        self.register_buffer("other", torch.ones(4, 4))

    def forward(self, x):
        return self.function(self, self.fc(x.flatten(1)))


UNSUPPORTED = {
    "tanh": lambda m, z: torch.tanh(z),
    "softmax": lambda m, z: z.softmax(1),
    "product": lambda m, z: z * z,
    "reciprocal": lambda m, z: 1 / z,
    "batch mixed": lambda m, z: z.view(1, -1),
    "batch mean": lambda m, z: z.mean(0),
    "batch order": lambda m, z: z.permute(1, 0),
    "dropout": lambda m, z: F.dropout(z, 0.5),
    "computed weight": lambda m, z: F.linear(z, m.other * 2),
    "made tensor": lambda m, z: z + torch.ones(4),
    "broadcast": lambda m, z: z + z[:, :1],
    "branch": lambda m, z: z if z.sum() > 0 else -z,
    "no tensor": lambda m, z: (z, z),
    "padding value": lambda m, z: F.pad(z, (0, 1), value=1.0),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_piecewise_affine_is_an_error_that_says_where(name):
    with pytest.raises(UnsupportedLayer) as caught:
        Network(Calls(UNSUPPORTED[name]), (1, 2, 2))
    assert isinstance(caught.value, TypeError)
    assert "Calls" in str(caught.value)


def test_unsupported_modules_are_named_with_their_place_and_what_is_supported():
    module = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 3), nn.Sigmoid()), nn.Linear(3, 2))
    with pytest.raises(UnsupportedLayer, match=r"layer '1\.1' \(Sigmoid\), step 3 of Sequential.*Supported are Linear"):
        Network(module, (1, 2, 2))
    with pytest.raises(UnsupportedLayer, match=r"call of 'tanh' at test_network\.py, line"):
        Network(Calls(UNSUPPORTED["tanh"]), (4,))
    with pytest.raises(UnsupportedLayer, match="padding_mode must be 'zeros', got 'circular'"):
        Network(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), nn.Flatten()), (1, 2, 2))
    with pytest.raises(UnsupportedLayer, match="running statistics"):
        Network(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2, track_running_stats=False)), (4,))


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.calls = nn.Linear(4, 2), 0

    def forward(self, x):
        self.calls += 1
        return self.fc(x) + self.calls


def test_a_module_that_does_something_else_than_it_recorded_is_an_error():
    with pytest.raises(UnsupportedLayer, match="computes something else than its recorded layers"):
        Network(Stateful(), (4,))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_shape": (3,)}, r"layer '1' \(linear\) does not take an input of shape \(3,\)"),
        ({"input_shape": ()}, "input_shape must list positive sizes"),
        ({"input_shape": (1, 0, 2)}, "input_shape must list positive sizes"),
        ({"input_shape": (1, 2, 2), "std": 0.0}, "std must be positive"),
        ({"input_shape": (1, 2, 2), "mean": [0.1, 0.2]}, "mean must be a finite number or one for each channel"),
        ({"input_shape": (1, 2, 2), "mean": float("nan")}, "mean must be a finite number"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        Network(mlp((1, 2, 2), 3, [5]), **arguments)
    with pytest.raises(InvalidInput, match="must be an nn"):
        Network(lambda x: x, (1,))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="a label needs a network of at least two logits, got 1 output"):
        Network(nn.Linear(4, 1), (4,)).check(torch.zeros(1, 4), torch.zeros(1, dtype=torch.long))
    with pytest.raises(InvalidInput, match="one dtype"):
        Network(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2).double()), (4,))


def test_bad_inputs_are_named():
    net = network("fc")
    x = inputs(net, 4)
    net.check(x, torch.tensor([0, 1, 2, 3]))
    bad = x.clone()
    bad[2, 1] = torch.nan
    for wrong, message in [
        (x[0], "x must be a batch of inputs of shape"),
        (x[:, :2], r"got \(4, 2\)"),
        (x[0], r"got \(3,\): x\[None\] is a batch of one"),
        (x.numpy(), r"got ndarray: torch\.as_tensor\(x\) makes a tensor of it"),
        (x.float(), r"x must have the network's dtype torch.float64, got torch.float32: x.to\(net.dtype\) has it"),
        (x.byte(), "got torch.uint8: .*for pixels from 0 to 255"),
        (bad, "got NaN or infinity in example 2"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            net.check(wrong)
    for labels, message in [
        (torch.tensor([0, 1, 2]), "one label for each of the 4 examples"),
        (torch.tensor([0, 1, 4, 0]), r"y must lie in 0\.\.3, got 4 at example 2"),
        (torch.tensor([0, -1, 0, 0]), "got -1 at example 1"),
        (torch.zeros(4), "whole numbers"),
        ([0, 1, 2, 3], r"got list: torch\.as_tensor\(y\) makes a tensor of it"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            net.check(x, labels)


def test_architectures_refuse_what_they_cannot_take():
    with pytest.raises(
        InvalidInput, match="must be one of fc1, fc10, fc-2x256, fc-4x256, fc-6x256, cnn, cnn-wide, resnet, got 'vgg'"
    ):
        build("vgg", (1, 28, 28), 10)
    with pytest.raises(InvalidInput, match="channels, height, width"):
        cnn((784,), 10)
    with pytest.raises(InvalidInput, match="too small"):
        cnn((1, 3, 3), 10)


def test_initialisation_is_he_with_zero_biases_and_repeats_with_the_seed():
    net, again, other = (build("fc1", (1, 28, 28), 10, seed=seed) for seed in (0, 0, 1))
    weight = net.module[1].weight.detach()
    assert torch.equal(weight, again.module[1].weight)
    assert not torch.equal(weight, other.module[1].weight)
    # a normal cut at two standard deviations has 0.8796 of its deviation
    assert float(weight.std()) == pytest.approx(0.8796 * (2 / 784) ** 0.5, rel=0.01)
    assert float(weight.abs().max()) <= 2 * (2 / 784) ** 0.5 * (1 + 1e-6)
    assert not net.module[1].bias.any()
