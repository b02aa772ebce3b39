"""The linear regions of networks on a plane, as arrays that a figure is drawn from."""

from __future__ import annotations

import numpy as np
import torch

from relucert.data import Dataset
from relucert.geometry.slices.slices import Plane, slice_segments
from relucert.networks.network import Network

#: Polygons that are kept: of more of them nothing is seen in a figure.
MOST_POLYGONS = 20_000


def plane_arrays(net: Network, plane: Plane) -> dict[str, np.ndarray]:
    """Boundaries and number of the regions, decision boundaries and corners of the rectangle, in the plane's coordinates.

    Polygons of the regions are among them where there are at most `MOST_POLYGONS`.
    """
    found = slice_segments(net, plane)
    shown = len(found.cells) if len(found.cells) <= MOST_POLYGONS else 0
    return {
        "boundaries": found.regions.ends.numpy(),
        "number": np.array(len(found.cells)),
        "vertices": found.cells.vertices.numpy()[:shown],
        "count": found.cells.count.numpy()[:shown],
        "decisions": found.decisions.ends.numpy(),
        "corners": torch.stack([plane.lower, plane.upper]).numpy(),
    }


def through_images(data: Dataset) -> tuple[Plane, np.ndarray]:
    """The plane through the first training images of three classes, a square of it, and the three classes."""
    classes = (0, 1, 2)
    x = torch.stack([data.x_train[(data.y_train == label).nonzero()[0, 0]] for label in classes])
    plane = Plane.through(x[0], x[1], x[2], margin=0.15)
    middle, half = (plane.lower + plane.upper) / 2, (plane.upper - plane.lower).max() / 2
    square = Plane(
        origin=plane.origin, u=plane.u, v=plane.v, inputs=plane.inputs, lower=middle - half, upper=middle + half,
        dtype=plane.dtype,
    )  # fmt: skip
    return square, np.array(classes)


def image_plane_arrays(net: Network, data: Dataset) -> dict[str, np.ndarray]:
    """The regions of a network on the plane through three training images, with the images."""
    plane, classes = through_images(data)
    return plane_arrays(net, plane) | {"inputs": plane.inputs.numpy(), "labels": classes}
