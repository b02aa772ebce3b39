"""Networks trained by others, with the test errors published for them."""

import pytest
import torch
from safetensors.torch import load_file

from relucert.interop.loading import load
from relucert.networks.architectures import cnn, mlp
from relucert.networks.network import Network
from relucert.networks.prediction import error

STATE_DICTS = [
    ("kw_mnist", "mnist", lambda: cnn((1, 28, 28), 10), 1.80),
    ("kw_fmnist", "fmnist", lambda: cnn((1, 28, 28), 10), 21.73),
    ("wk17a_mnist", "mnist", lambda: cnn((1, 28, 28), 10), 1.89),
    ("lpd_mlp_mnist", "mnist", lambda: mlp((1, 28, 28), 10, [100, 100]), 4.09),
]


@pytest.mark.parametrize(("name", "percent"), [("mnist", 3.04), ("fmnist", 18.57), ("cifar10", 46.96)])
def test_the_authors_networks_have_their_published_test_errors(name, percent, shared, real_data):
    net, data = load(shared / "models" / "mmr_universal" / f"{name}.mat"), real_data(name)
    assert round(100 * error(net, data.x_test, data.y_test), 2) == percent


def test_the_authors_traffic_sign_network_on_images_resized_here(shared, real_data):
    net, data = load(shared / "models" / "mmr_universal" / "gts.mat"), real_data("gts")
    assert round(100 * error(net, data.x_test, data.y_test), 1) == 16.9


@pytest.mark.parametrize(("file", "name", "module", "percent"), STATE_DICTS)
def test_state_dicts_of_others_have_their_published_test_errors(file, name, module, percent, shared, real_data):
    built = module()
    built.load_state_dict(load_file(shared / "models" / f"{file}.safetensors"))
    net, data = Network(built, (1, 28, 28)).eval(), real_data(name)
    assert round(100 * error(net, data.x_test, data.y_test), 2) == percent
    with torch.no_grad():
        assert torch.allclose(net.logits(data.x_test[:50]), net(data.x_test[:50]), atol=1e-5)
