"""Formulas as MathML, which browsers show without scripts, fonts or a network."""

from __future__ import annotations

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

#: Bars of absolute values and norms, which browsers would stretch and set apart like a relation.
BARS = re.compile(r"<mo[^>]*>(&#x0007C;|&#x02016;)</mo>")


def converted(text: str, display: str = "inline") -> str:
    """A formula as MathML."""
    return BARS.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', convert(text, display=display))


def inline(self: HTML5Translator, node: nodes.math) -> None:
    """A formula inside a line."""
    self.body.append(converted(node.astext()))
    raise nodes.SkipNode


def displayed(self: HTML5Translator, node: nodes.math_block) -> None:
    """A formula on lines of its own."""
    lines = [line for line in node.astext().split("\n\n") if line.strip()]
    formulas = "".join(converted(line, "block") for line in lines)
    self.body.append(self.starttag(node, "div", CLASS="formula") + formulas + "</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer, and choose it."""
    app.add_html_math_renderer("mathml", (inline, None), (displayed, None))
    app.config.html_math_renderer = "mathml"  # pyright: ignore[reportAttributeAccessIssue]
    return {"parallel_read_safe": True, "parallel_write_safe": True}
