"""Whether a network and a data set belong together."""

from __future__ import annotations

from relucert.core.errors import InvalidInput
from relucert.data import Dataset
from relucert.networks.network import Network


def check_fit(net: Network, data: Dataset) -> None:
    """Raise unless the network takes the data's images and knows its classes."""
    if net.input_shape != data.input_shape or net.classes != data.classes:
        raise InvalidInput(
            f"model takes inputs {net.input_shape} and has {net.classes} classes, but data {data.name!r} has inputs "
            f"{data.input_shape} and {data.classes} classes"
        )
