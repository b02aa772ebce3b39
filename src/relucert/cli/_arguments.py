"""The arguments of a verb as its dataclass; mistakes are one line in the words of the package."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
from typing import Any

from relucert.cli._help import flags, subcommands
from relucert.core.errors import InvalidInput

_BOX = re.compile(r"\x1b\[[0-9;]*m|[─-╿]+|-{4,}")  # the colours and frames that tyro draws
_VALUE = re.compile(r"Error parsing (\S+): .*? from \[(.*?)\]\.")
_CHOICE = re.compile(r"invalid choice (.*?) for argument (\S+)\. Expected one of \((.*?)\)")
_MISSING = re.compile(r"Missing value for argument '(.*?)'")
_KINDS = {"NUMBER": "a number", "N": "a whole number", "NUMBER...": "numbers", "N...": "whole numbers"}


def parse(verb: str, kind: Any, arguments: list[str]) -> Any:
    """The dataclass of a verb from its arguments.

    >>> from relucert.cli.doctor import Doctor
    >>> parse("doctor", Doctor, ["--json"])
    Doctor(json=True)
    >>> parse("doctor", Doctor, ["--jsn"])
    Traceback (most recent call last):
    relucert.core.errors.InvalidInput: there is no flag --jsn; did you mean --json? See relucert doctor --help
    """
    import tyro

    kinds = subcommands(kind)
    chosen = kinds.get(arguments[0]) if kinds and arguments else kind
    if chosen is None:
        raise InvalidInput(f"the command of {verb} must be one of {', '.join(kinds)}, got {arguments[0]!r}")
    if not kinds:
        _refuse_unknown(verb, chosen, arguments)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            # A boolean flag such as --json has no --no- form.
            config = (tyro.conf.FlagCreatePairsOff,)
            return tyro.cli(kind, prog=f"relucert {verb}", args=arguments, config=config, add_help=False)
    except SystemExit as done:
        if not done.code:
            raise
        raise InvalidInput(f"{_plain(said.getvalue(), chosen)}. See relucert {verb} --help") from None


def _refuse_unknown(verb: str, kind: Any, arguments: list[str]) -> None:
    """Raise for flags that the verb does not have; the parser would take their values for other arguments."""
    known = {word for flag in flags(kind) for word in re.findall(r"(?:^|, )(--?[\w-]+)", flag.written)}
    for argument in arguments:
        name = argument.partition("=")[0].replace("_", "-")
        if name.startswith("--") and name not in known:
            near = difflib.get_close_matches(name, sorted(known), 1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise InvalidInput(f"there is no flag {name}{hint} See relucert {verb} --help")


def _plain(text: str, kind: Any) -> str:
    """What tyro says of a mistake, as one line."""
    line = " ".join(_BOX.sub(" ", text).split())
    if match := _VALUE.search(line):
        flag, value = match.groups()
        words = {known.written.partition(" ")[0]: known.written.rpartition(" ")[2] for known in flags(kind)}
        return f"{flag} must be {_KINDS.get(words.get(flag, ''), 'another value')}, got {value}"
    if match := _CHOICE.search(line):
        return f"{match[2].strip(chr(39))} must be one of {match[3].replace(chr(39), '')}, got {match[1]}"
    if match := _MISSING.search(line):
        return f"{match[1]} must have a value"
    if line.startswith("Required options"):
        named = next((flag.written for flag in flags(kind) if flag.positional), "an argument")
        return f"{named} must be given"
    line = re.sub(r"^Value error Error parsing \w+: ", "", line)  # a rule of the dataclass itself
    return re.sub(r"For full helptext.*", "", line).strip().rstrip(".")
