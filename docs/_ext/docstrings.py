"""Docstrings are plain text with names in single backticks: what reStructuredText would take for markup is escaped.

A public name in backticks becomes a link to its entry, any other text in backticks becomes code. Examples (`>>>`) stay as they
are.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx

import relucert

PUBLIC = {name: f"relucert.{name}" for name in relucert.__all__ if not name.startswith("_")}
SPECIAL = re.compile(r"([\\*|]|(?<=\w)_(?=\W|$))")


def linked(code: str) -> str:
    """A text in backticks as a link to a public name, or as code."""
    name = re.sub(r"^(rc|relucert)\.|\(.*\)$", "", code)
    return f":py:obj:`{code} <{PUBLIC[name]}>`" if name in PUBLIC else f"``{code}``"


def escaped(line: str) -> str:
    """A line of prose as reStructuredText; bullets and markup of its own kind are kept."""
    if "``" in line or ":py:" in line:
        return line
    bullet = re.match(r"\s*\* ", line)
    start, rest = (bullet[0], line[bullet.end() :]) if bullet else ("", line)
    pieces = rest.split("`")
    if len(pieces) % 2 == 0:
        raise ValueError(f"a docstring must close its backticks on the same line, got {line!r}")
    texts = [SPECIAL.sub(r"\\\1", piece) if n % 2 == 0 else linked(piece) for n, piece in enumerate(pieces)]
    return start + _apart(texts)


def _apart(texts: list[str]) -> str:
    """Prose and code in turn, with an invisible separation where letters touch the markup."""
    out = texts[0]
    for code, prose in zip(texts[1::2], texts[2::2], strict=True):
        before = "" if not out or not out[-1].isalnum() else r"\ "
        after = "" if not prose or not prose[0].isalnum() else r"\ "
        out += before + code + after + prose
    return out


def process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Rewrite a docstring in place, before napoleon reads its sections."""
    example = False
    for index, line in enumerate(lines):
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        if not example:
            lines[index] = escaped(line)


def signature(
    app: Sphinx, what: str, name: str, obj: object, options: object, text: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Shapes without the blank that they begin with, and no parameter that begins with an underscore."""

    def shown(part: str | None) -> str | None:
        if part is None:
            return None
        part = re.sub(r"~?jaxtyping\.", "", part)
        part = re.sub(r"(\w+\[Tensor, )([\"']) ?(.*?)\2\]", r"\1'\3']", part)
        return re.sub(r"_\w+: [^=]*= \(\), ", "", part)

    return shown(text), None if what == "class" else shown(returned)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to autodoc."""
    app.connect("autodoc-process-docstring", process, priority=100)
    app.connect("autodoc-process-signature", signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
