"""Mermaid drawings of arrows (`flowchart TD`), which GitHub draws, as a picture that needs no script: one row a level."""

from __future__ import annotations

import html
import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

WIDTH, HEIGHT, ACROSS, DOWN = 96, 26, 118, 58


def levels(arrows: list[tuple[str, str]]) -> dict[str, int]:
    """The level of every name: below all names with an arrow to it."""
    names = dict.fromkeys(name for arrow in arrows for name in arrow)
    level = dict.fromkeys(names, 0)
    for _ in names:
        for upper, lower in arrows:
            level[lower] = max(level[lower], level[upper] + 1)
    return level


def drawn(arrows: list[tuple[str, str]]) -> str:
    """The drawing as SVG, in the colours of the page."""
    level = levels(arrows)
    rows = [[name for name in level if level[name] == row] for row in range(max(level.values()) + 1)]
    widest = max(map(len, rows))
    place = {
        name: ((column - (len(row) - 1) / 2 + (widest - 1) / 2) * ACROSS + ACROSS / 2, number * DOWN + HEIGHT)
        for number, row in enumerate(rows)
        for column, name in enumerate(row)
    }
    lines = [
        f'<path d="M{place[a][0]:g},{place[a][1] + HEIGHT / 2:g} L{place[b][0]:g},{place[b][1] - HEIGHT / 2 - 3:g}" '
        'marker-end="url(#tip)"/>'
        for a, b in arrows
    ]
    boxes = [
        f'<rect x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
        f'<text x="{x:g}" y="{y + 4:g}">{html.escape(name)}</text>'
        for name, (x, y) in place.items()
    ]
    tip = (
        '<marker id="tip" viewBox="0 0 6 6" refX="3" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0,0 L6,3 L0,6 z"/></marker>'
    )
    size = f"0 0 {widest * ACROSS:g} {len(rows) * DOWN:g}"
    label = "; ".join(f"{a} imports {b}" for a, b in arrows)
    return (
        f'<svg class="drawing" viewBox="{size}" role="img" aria-label="{html.escape(label)}"><defs>{tip}</defs>'
        + "".join(lines + boxes)
        + "</svg>"
    )


class Mermaid(SphinxDirective):
    """A fence of the language mermaid."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """The arrows as a drawing."""
        arrows = [(a, b) for line in self.content for a, b in re.findall(r"(\w+) --> (\w+)", line)]
        return [nodes.raw("", drawn(arrows), format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the fence."""
    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
