"""What the rows of plain chains are made of: norms of the first layer, slopes of the ReLUs, coefficients of the classes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.norms import norm
from relucert.geometry.region import LinearRegion
from relucert.networks.affine_map import Step


def first_norms(step: Step, q: float, input_shape: tuple[int, ...]) -> Float[Tensor, " 1 units"]:
    """The rows are the weights; at the border a filter keeps only the taps that see a pixel."""
    weight = step.weight()
    if step.conv is None:
        return norm(weight, q)[None]
    conv = step.conv
    seen = torch.ones(1, *input_shape, dtype=weight.dtype, device=weight.device)
    # Positions at the border see fewer taps, but of all positions few differ: a norm for every set of taps.
    taps = F.unfold(seen, weight.shape[2:], conv.dilation, conv.padding, conv.stride)[0].T  # (positions, taps)
    kinds, kind = taps.unique(dim=0, return_inverse=True)
    found = norm(weight.flatten(1)[:, None] * kinds, q, 2)  # (maps, kinds)
    return found[:, kind].reshape(1, -1)


def class_coefficients(region: LinearRegion, last: Step, y: Int[Tensor, " batch"]) -> Float[Tensor, " batch others n"]:
    """What the decision hyperplanes between y and the other classes take of every unit of the last hidden layer."""
    weight = last.weight()
    slopes = gate(region, len(region.hyperplanes) - 1).flatten(1)
    others = other_classes(y, len(weight))
    labels = y[:, None].expand_as(others)
    return differences(weight, labels.flatten(), others.flatten()).unflatten(0, others.shape) * slopes[:, None]


def differences(
    weight: Float[Tensor, " classes n"], y: Int[Tensor, " rows"], other: Int[Tensor, " rows"]
) -> Float[Tensor, " rows n"]:
    """`weight[y] - weight[other]` as a product, whose gradient is a product too: adding up picked rows takes far longer."""
    eye = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
    return (eye[y] - eye[other]) @ weight


def other_classes(y: Int[Tensor, " batch"], classes: int) -> Int[Tensor, " batch others"]:
    """All classes but the own."""
    every = torch.arange(classes - 1, device=y.device).expand(len(y), -1)
    return every + (every >= y[:, None])


def with_own(norms: Float[Tensor, " batch others"], y: Int[Tensor, " batch"]) -> Float[Tensor, " batch classes"]:
    """The norms in the order of the classes, with 0 for the own one."""
    classes = norms.shape[1] + 1
    return norms.new_zeros(len(y), classes).scatter(1, other_classes(y, classes), norms)


def gate(region: LinearRegion, place: int) -> Tensor:
    """The slopes of a hidden layer's ReLUs under the pattern, (batch, *shape)."""
    return region.net.relus[place].op.gate(region.patterns[place], region.net.dtype)
