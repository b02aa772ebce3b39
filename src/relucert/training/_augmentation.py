"""The paper's augmentation: zero-padding, random crops of the original size, mirroring of half of the images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def augment(
    x: Float[Tensor, "batch channels height width"], padding: int, generator: torch.Generator, *, mirror: bool = True
) -> Float[Tensor, "batch channels height width"]:
    """Random crops of the zero-padded images; with `mirror`, each is mirrored with probability 1/2."""
    count, _, height, width = x.shape
    top, left = torch.randint(0, 2 * padding + 1, (2, count), generator=generator).to(x.device)
    mirrored = (torch.rand(count, generator=generator) < 0.5).to(x.device) & mirror
    rows = top[:, None] + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device).expand(count, width)
    columns = left[:, None] + torch.where(mirrored[:, None], columns.flip(1), columns)
    padded = F.pad(x, (padding,) * 4)
    image = torch.arange(count, device=x.device)
    return padded[image[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
