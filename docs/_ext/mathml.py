"""Formulas as MathML, which browsers show without scripts, fonts or a network."""

from __future__ import annotations

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def inline(self: HTML5Translator, node: nodes.math) -> None:
    """A formula inside a line."""
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def displayed(self: HTML5Translator, node: nodes.math_block) -> None:
    """A formula on lines of its own."""
    lines = [line for line in node.astext().split("\n\n") if line.strip()]
    formulas = "".join(convert(line, display="block") for line in lines)
    self.body.append(self.starttag(node, "div", CLASS="formula") + formulas + "</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer, and choose it."""
    app.add_html_math_renderer("mathml", (inline, None), (displayed, None))
    app.config.html_math_renderer = "mathml"  # pyright: ignore[reportAttributeAccessIssue]
    return {"parallel_read_safe": True, "parallel_write_safe": True}
