import pytest
import torch
from torch import nn

from relucert.networks.network import frozen_weights


def test_gradients_are_off_inside_and_as_before_outside():
    module = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
    module[0].bias.requires_grad_(False)
    before = [weight.requires_grad for weight in module.parameters()]
    with frozen_weights(module):
        assert not any(weight.requires_grad for weight in module.parameters())
        assert not module(torch.ones(1, 3)).requires_grad
    assert [weight.requires_grad for weight in module.parameters()] == before

    @frozen_weights(module)
    def fails():
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fails()
    assert [weight.requires_grad for weight in module.parameters()] == before
