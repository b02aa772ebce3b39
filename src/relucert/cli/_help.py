"""The help of a verb, from the fields of its dataclass and their docstrings: a screen of one line a flag, or everything.

The first sentence of a field's docstring is its line on the screen. A flag that switches something off (a field that is True by
default) is explained by what follows `--no-NAME: ` in the docstring.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent, wrap
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from relucert.core.errors import InvalidInput

WIDTH = 80
_NAMES = 24
_WORDS: dict[Any, str] = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}


@dataclass(frozen=True)
class Flag:
    """One argument: how it is written, what its values look like, what it means, and the default if that says something."""

    field: str
    written: str
    text: str
    default: str
    positional: bool

    @property
    def first(self) -> str:
        """The first sentence, with the default where there is room for it."""
        text = sentence(self.text)
        return f"{text} [{self.default}]" if self.default else text


def screen(verb: str, module: Any) -> str:
    """The help of a verb that fits a screen: usage, example, the common flags, then the others, one line each.

    A module of `cli/` has `CONFIG` (a dataclass), `COMMON` (the fields that most calls need) and `EXAMPLES`; with `ALSO`, a
    verb and its dataclass, the other flags of that verb are named, not explained.
    """
    common = tuple(getattr(module, "COMMON", ()))
    known = flags(module.CONFIG)
    named = [flag for flag in known if flag.positional]
    rest = [flag for flag in known if not flag.positional]
    often = [flag for name in common for flag in rest if flag.field == name]
    also, kind = getattr(module, "ALSO", ("", None))
    others = set() if kind is None else {field.name for field in dataclasses.fields(kind)} - set(common)
    more = [flag for flag in rest if flag.field not in {*common, *others}]
    lines = [*_usage(verb, module.CONFIG, named), "", *_examples(module)]
    for title, group in (("", named), ("common flags", often), ("more flags" if often else "flags", more)):
        if group:
            lines += [
                "",
                *([f"{title}:"] if title else []),
                *(line for flag in group for line in _row(flag, flag.first)),
            ]
    if others:
        names = ", ".join(flag.written.partition(" ")[0] for flag in rest if flag.field in others)
        lines += ["", *wrap(f"and the flags of relucert {also}: {names}", WIDTH, break_on_hyphens=False)]
    return "\n".join([*lines, "", f"relucert help {verb}   explains each of them in full"])


def manual(verb: str, module: Any) -> str:
    """The whole help of a verb: what `screen` has, with the full text of every flag."""
    known = flags(module.CONFIG)
    named = [flag for flag in known if flag.positional]
    lines = [*_usage(verb, module.CONFIG, named), "", *_examples(module)]
    if describe := getattr(module, "description", None):
        lines += ["", describe()]
    for flag in known:
        lines += ["", f"  {flag.written}"]
        lines += wrap(flag.text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
        lines += [f"      Default: {flag.default}."] if flag.default else []
    return "\n".join(lines)


def commands(verb: str, module: Any) -> str:
    """The help of a verb with commands, such as `data`: their names and what they do."""
    kinds = subcommands(module.CONFIG)
    width = max(map(len, kinds))
    rows = [
        line
        for name, kind in kinds.items()
        for line in wrap(
            _summary(kind), WIDTH, initial_indent=f"  {name:<{width}}  ", subsequent_indent=" " * (width + 4)
        )
    ]
    head = f"usage: relucert {verb} COMMAND [flags]"
    return "\n".join(
        [head, "", *_examples(module), "", "commands:", *rows, "", f"relucert {verb} COMMAND --help   the flags"]
    )


def subcommands(kind: Any) -> dict[str, type]:
    """The commands of a verb by name; none for a verb that is one dataclass."""
    if get_origin(kind) not in (Union, types.UnionType):
        return {}
    parts = [get_args(part)[0] for part in get_args(kind)]
    return {part.__name__.lower(): part for part in parts}


@cache
def flags(kind: type) -> tuple[Flag, ...]:
    """The arguments of a dataclass, in the order of its fields."""
    hints, texts = get_type_hints(kind, include_extras=True), _docstrings(kind)
    return tuple(_flag(field, hints[field.name], texts.get(field.name, "")) for field in dataclasses.fields(kind))


def sentence(text: str) -> str:
    """The first sentence of a text, without its full stop.

    >>> sentence("Points worked on together. More need more memory."), sentence("At most 0.5")
    ('Points worked on together', 'At most 0.5')
    """
    return re.split(r"[.] (?=[A-Z0-9`-])|: (?=--)", text, maxsplit=1)[0].removesuffix(".")


def type_words(hint: Any) -> str:
    """What a value of a type looks like on the command line.

    >>> type_words(float | None), type_words(tuple[Path, ...]), type_words(Literal["real", "executed"])
    ('NUMBER', 'PATH...', 'real|executed')
    """
    origin, parts = get_origin(hint), get_args(hint)
    if hasattr(hint, "__metadata__"):
        return type_words(parts[0])
    if origin is Literal:
        return "|".join(map(str, parts))
    if origin is tuple:
        return f"{type_words(parts[0])}..."
    if origin in (Union, types.UnionType):
        return type_words(next(part for part in parts if part is not types.NoneType))
    return _WORDS.get(hint, "TEXT")


def _flag(field: dataclasses.Field[Any], hint: Any, text: str) -> Flag:
    positional = any("POSITIONAL" in str(mark).upper() for mark in getattr(hint, "__metadata__", ()))
    name = field.name.replace("_", "-")
    values = type_words(hint)
    if positional:
        return Flag(field.name, values if "..." in values else name.upper(), text, "", True)
    if field.default is True:
        _, found, off = text.partition(f"--no-{name}: ")
        return Flag(field.name, f"--no-{name}", f"{off[:1].upper()}{off[1:]}" if found else text, "", False)
    if field.default is False:
        return Flag(field.name, f"--{name}", text, "", False)
    short = [a for mark in getattr(hint, "__metadata__", ()) for a in getattr(mark, "aliases", None) or ()]
    said = field.default is not dataclasses.MISSING and field.default not in (None, "", (), 0)
    written = ", ".join([*short, f"--{name} {values}"])
    return Flag(field.name, written, text, str(field.default) if said else "", False)


def _usage(verb: str, kind: type, named: list[Flag]) -> list[str]:
    words = " ".join([verb, *(flag.written for flag in named), "[flags]"])
    return [f"usage: relucert {words}", "", *wrap(_summary(kind), WIDTH)]


def _examples(module: Any) -> list[str]:
    found = getattr(module, "EXAMPLES", ())
    return ["example:" if len(found) == 1 else "examples:", *(f"  {line}" for line in found)] if found else []


def _row(flag: Flag, text: str) -> Iterator[str]:
    """A flag and its line; a long name has a line of its own."""
    lines = wrap(text, WIDTH - _NAMES) or [""]
    head = f"  {flag.written}"
    if len(head) > _NAMES - 1:
        yield head
        head = ""
    yield f"{head:<{_NAMES}}{lines[0]}"
    yield from (f"{'':<{_NAMES}}{line}" for line in lines[1:])


def _summary(kind: type) -> str:
    return " ".join((kind.__doc__ or "").partition("\n\n")[0].split())


def _docstrings(kind: type) -> dict[str, str]:
    """The strings below the fields of a dataclass and of its bases, with every run of white space as one space."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            body = ast.parse(dedent(inspect.getsource(base))).body[0]
        except (OSError, SyntaxError) as error:
            raise InvalidInput(f"{base.__name__} must have a source file for its help, got {error}") from error
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found
