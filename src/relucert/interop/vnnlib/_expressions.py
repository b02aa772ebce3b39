"""Expressions in brackets, as VNN-LIB and SMT-LIB write them, with the line of every token."""

from __future__ import annotations

import re
from dataclasses import dataclass

from relucert.core.errors import DamagedData

DEEPEST = 60  # nested brackets

_TOKEN = re.compile(r"[()]|[^\s()]+")


@dataclass(frozen=True)
class Word:
    """A token that is no bracket."""

    text: str
    line: int


@dataclass(frozen=True)
class Form:
    """What stands between two brackets; `line` is that of the opening one."""

    parts: tuple[Word | Form, ...]
    line: int

    @property
    def head(self) -> str:
        """The first word, "" without one."""
        return self.parts[0].text if self.parts and isinstance(self.parts[0], Word) else ""

    @property
    def rest(self) -> tuple[Word | Form, ...]:
        """What follows the first word."""
        return self.parts[1:]


Expression = Word | Form


def wrong(rule: str, at: Expression) -> DamagedData:
    """The error for an expression that breaks a rule, with its line and its token."""
    return DamagedData(f"{rule}, got {shown(at)}", entry=f"line {at.line}")


def shown(at: Expression) -> str:
    """An expression as a short text: the token itself, or the head of a form."""
    text = at.text if isinstance(at, Word) else f"({at.head or '...' if at.parts else ''}{' ...)' if at.rest else ')'}"
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def expressions(text: str) -> list[Form]:
    """The forms of a text; comments begin with a semicolon and end with their line.

    >>> [form.head for form in expressions("(assert (<= X_0 1)) ; done")]
    ['assert']
    """
    found: list[Form] = []
    open_: list[tuple[list[Expression], int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        for token in _TOKEN.findall(line.partition(";")[0]):
            if token == "(":
                if len(open_) >= DEEPEST:
                    raise DamagedData(
                        f"brackets must be nested at most {DEEPEST} deep, got '('", entry=f"line {number}"
                    )
                open_.append(([], number))
            elif token == ")":
                if not open_:
                    raise DamagedData("every ')' must close a '(', got ')' too many", entry=f"line {number}")
                parts, start = open_.pop()
                form = Form(tuple(parts), start)
                if open_:
                    open_[-1][0].append(form)
                else:
                    found.append(form)
            elif open_:
                open_[-1][0].append(Word(token, number))
            else:
                raise wrong("outside of brackets there must be nothing", Word(token, number))
    if open_:
        raise DamagedData(
            "every '(' must be closed before the file ends, got '(' without ')'", entry=f"line {open_[-1][1]}"
        )
    return found
