"""Many small pictures in one PNG, as a data address that stands inside a page."""

from __future__ import annotations

import base64
import colorsys
import io
import math
from dataclasses import dataclass

import numpy as np

COLUMNS = 32
"""Tiles in a row of a sheet."""


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A PNG of equal tiles, row by row: its data address, the number of columns, and the size of a tile."""

    address: str
    columns: int
    width: int
    height: int

    def to_json(self) -> dict[str, object]:
        """What the page's script reads."""
        return {"png": self.address, "columns": self.columns, "width": self.width, "height": self.height}


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether inputs of a shape can be shown as pictures: one or three channels, and both sides longer than one."""
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) > 1


def photographs(inputs: np.ndarray) -> Sheet:
    """A sheet of images (n, channels, height, width) with pixels in [0, 1]."""
    return sheet(np.rint(np.clip(inputs, 0, 1) * 255).astype(np.uint8).transpose(0, 2, 3, 1))


def differences(changes: np.ndarray) -> tuple[Sheet, list[float]]:
    """A sheet of changes (n, channels, height, width), each divided by its own largest entry, and these entries.

    The byte 128 is no change, 1 and 255 are the largest ones.
    """
    largest = np.abs(changes).reshape(len(changes), -1).max(1)
    scaled = changes / np.where(largest > 0, largest, 1)[:, None, None, None]
    tiles = (128 + np.rint(127 * scaled)).astype(np.uint8).transpose(0, 2, 3, 1)
    return sheet(tiles, neutral=128), [float(value) for value in largest]


def slices(classes: np.ndarray, regions: np.ndarray, proved: np.ndarray) -> Sheet:
    """A sheet of slices (n, height, width): a hue for each class, a shade for each linear region, and three kinds of lines.

    White: where the decision changes; grey: borders of linear regions; black: the border of the ball that is proved.
    `proved` says which cells lie in that ball. Row 0 of the arrays is drawn at the bottom.
    """
    hues = np.array([_colour(number) for number in range(int(classes.max()) + 1)])
    shade = 0.86 + 0.14 * ((regions * 2654435761 % 2**32) / 2**32)
    tiles = hues[classes] * shade[..., None]
    tiles[_borders(regions)] *= 0.72
    tiles[_borders(classes)] = 255
    tiles[_borders(proved)] = 0
    return sheet(np.rint(tiles).astype(np.uint8)[:, ::-1])


def sheet(tiles: np.ndarray, neutral: int = 0) -> Sheet:
    """One PNG of uint8 tiles (n, height, width, channels); the rest of the last row is `neutral`."""
    from PIL import Image

    count, height, width, channels = tiles.shape
    columns = max(1, min(COLUMNS, count))
    rows = max(1, math.ceil(count / columns))
    whole = np.full((rows * columns, height, width, channels), neutral, np.uint8)
    whole[:count] = tiles
    picture = whole.reshape(rows, columns, height, width, channels).transpose(0, 2, 1, 3, 4)
    picture = picture.reshape(rows * height, columns * width, channels)
    drawn = Image.fromarray(picture[..., 0] if channels == 1 else np.ascontiguousarray(picture))
    file = io.BytesIO()
    drawn.save(file, "PNG", optimize=True)
    address = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return Sheet(address=address, columns=columns, width=width, height=height)


def _borders(numbers: np.ndarray) -> np.ndarray:
    """The cells whose right or upper neighbour has another number."""
    found = np.zeros(numbers.shape, bool)
    found[:, :-1] |= numbers[:, :-1] != numbers[:, 1:]
    found[:, :, :-1] |= numbers[:, :, :-1] != numbers[:, :, 1:]
    return found


def _colour(number: int) -> tuple[float, float, float]:
    """The colour of a class; neighbours in number are far apart in hue."""
    red, green, blue = colorsys.hls_to_rgb((number * 0.381966) % 1, 0.62, 0.55)
    return 255 * red, 255 * green, 255 * blue
