"""Draw what MMR does to linear regions: the same small network on points of the plane, trained plainly and with MMR.

    python docs/pictures/regions.py [OUT.png]

Background: a colour for each class, a shade for each linear region, white lines between classes. Circles: around test points
the largest ball that the region theorem proves, of radius min(d_B, d_D). All regions and radii are exact.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

import relucert as rc
from relucert.geometry.slices.slices import Plane, Slice, slice_segments

OUT = Path(__file__).resolve().parents[1] / "regions.png"
SIDE, FACTOR, TOP, GAP = (
    520,
    2,
    64,
    28,
)  # pixels of a panel, what it is drawn larger, room for its title, between panels
FILLS = ((92, 142, 210), (240, 164, 82), (112, 184, 122))
SHOWN, UNITS, EPOCHS = 36, 100, 200


def points(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Three spiral arms in the square [0, 1]^2, one class each."""
    y = torch.arange(count) % 3
    along = torch.rand(count, generator=generator)
    angle = 2.1 * along + 2 * torch.pi / 3 * y + 0.12 * torch.randn(count, generator=generator)
    radius = 0.08 + 0.36 * along
    return 0.5 + torch.stack([radius * angle.cos(), radius * angle.sin()], 1), y


def trained(scheme: str, x: Tensor, y: Tensor) -> rc.Network:
    """The network after EPOCHS epochs; both schemes start from the same weights."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(2, UNITS), nn.ReLU(), nn.Linear(UNITS, 3))
    return rc.train(module, (x, y), scheme=scheme, p=2, eps=0.08, epochs=EPOCHS, batch=100, rate=0.005).net


class Panel:
    """A square of the picture, drawn larger than it will be."""

    def __init__(self) -> None:
        self.scale = SIDE * FACTOR
        self.image = Image.new("RGB", (self.scale, self.scale), "white")
        self.draw = ImageDraw.Draw(self.image)

    def at(self, point: Tensor) -> tuple[float, float]:
        """The pixel of a point of [0, 1]^2; the second axis points up."""
        return float(point[0]) * self.scale, (1 - float(point[1])) * self.scale

    def regions(self, found: Slice, plane: Plane) -> None:
        """All linear regions, and the lines between classes."""
        corners = plane.point(found.pieces.vertices.reshape(-1, 2)).reshape(found.pieces.vertices.shape)
        shade = torch.rand(len(found.cells), generator=torch.Generator().manual_seed(2)) * 0.26 + 0.6
        for polygon, count, cell, label in zip(
            corners, found.pieces.count, found.piece_cell, found.piece_class, strict=True
        ):
            white = float(shade[cell])
            fill = tuple(round(white * 255 + (1 - white) * part) for part in FILLS[int(label)])
            self.draw.polygon([self.at(point) for point in polygon[:count]], fill=fill)
        for lines, colour, width in ((found.regions, (120, 130, 145), 1), (found.decisions, (30, 34, 40), 3)):
            ends = plane.point(lines.ends.reshape(-1, 2)).reshape(lines.ends.shape)
            for start, end in ends:
                self.draw.line([self.at(start), self.at(end)], fill=colour, width=width * FACTOR // 2 + 1)

    def balls(self, x: Tensor, y: Tensor, radii: Tensor) -> None:
        """A dot for every point, and its proved ball."""
        for point, label, radius in zip(x, y, radii, strict=True):
            (across, down), long, dot = self.at(point), float(radius) * self.scale, 2.5 * FACTOR
            self.draw.ellipse(
                [across - long, down - long, across + long, down + long], outline="black", width=FACTOR + 1
            )
            fill = tuple(round(0.75 * part) for part in FILLS[int(label)])
            self.draw.ellipse([across - dot, down - dot, across + dot, down + dot], fill=fill, outline="black")

    def finished(self) -> Image.Image:
        """The panel in its size."""
        return self.image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def panel(net: rc.Network, x: Tensor, y: Tensor) -> tuple[Image.Image, str]:
    """The panel of a network, and a line about it."""
    plane = Plane.through(*torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 1.0]]), margin=0)
    found = slice_segments(net, plane)
    with torch.no_grad():
        distances = rc.distances(net, x, y, p=2)
        radii = torch.minimum(distances.region, distances.decision).clamp_min(0)
    drawing = Panel()
    drawing.regions(found, plane)
    drawing.balls(x[:SHOWN], y[:SHOWN], radii[:SHOWN])
    right = (net.predict(x) == y).double().mean()
    return (
        drawing.finished(),
        f"{len(found.cells)} linear regions, {right:.1%} right, mean proved radius {radii.mean():.3f}",
    )


def picture(out: Path) -> list[str]:
    """Train both networks, write the picture, and return the lines about them."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x, y = points(600, generator)
    x_test, y_test = points(600, generator)
    whole = Image.new("RGB", (2 * SIDE + GAP, SIDE + TOP), "white")
    draw, lines = ImageDraw.Draw(whole), []
    for number, (scheme, name) in enumerate((("plain", "Plain training"), ("mmr(lam=2)", "MMR"))):
        drawn, line = panel(trained(scheme, x, y), x_test, y_test)
        left = number * (SIDE + GAP)
        whole.paste(drawn, (left, TOP))
        draw.text((left, 6), name, fill="black", font=ImageFont.load_default(24))
        draw.text((left, 38), line, fill=(70, 70, 70), font=ImageFont.load_default(16))
        lines.append(f"{name}: {line}")
    whole.quantize(128, dither=Image.Dither.NONE).save(out, optimize=True)
    return lines


if __name__ == "__main__":
    print(*picture(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT), sep="\n")
