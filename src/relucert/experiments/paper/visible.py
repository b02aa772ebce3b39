"""What can be seen of a network: gradients of the loss with respect to images, and filters of convolutions."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from relucert.data import Dataset
from relucert.networks.network import Network

#: Images whose gradients are drawn, one of every class where there are so many.
IMAGES = 10


def chosen_images(data: Dataset) -> torch.Tensor:
    """The first test images of the first classes: their indices."""
    labels = data.y_test.tolist()
    return torch.tensor([labels.index(label) for label in sorted(set(labels))[:IMAGES]])


def input_gradients(net: Network, data: Dataset) -> np.ndarray:
    """The gradients of the cross-entropy with respect to the chosen test images, in float64."""
    chosen = chosen_images(data)
    x = data.x_test[chosen].to(net.dtype).requires_grad_()
    loss = cross_entropy(net(x), data.y_test[chosen], reduction="sum")
    (gradient,) = torch.autograd.grad(loss, x)
    return gradient.double().numpy()


def filters(net: Network) -> list[np.ndarray]:
    """The weights of all convolutions in order, (filters, channels, height, width)."""
    return [weight.detach().double().numpy() for weight in net.module.parameters() if weight.dim() == 4]
