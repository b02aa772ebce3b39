"""`relucert VERB ...`: run a verb; warnings and errors become one line on stderr, errors of the library exit code 2."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

GROUPS = {
    "networks": {
        "train": "train a network whose robustness can be proved",
        "sweep": "many training runs, ranked on held-out examples",
        "certify": "verdicts at one radius: proved robust, or not",
        "radius": "for every point an interval around its radius, exact where possible",
        "attack": "adversarial points, within a radius or as near as possible",
        "evaluate": "test error and robust error under an attack",
    },
    "what was found": {
        "reproduce": "tables and figures of the paper, beside its own",
        "check": "certificates of `certify --proofs`, derived again independently",
        "report": "one HTML page: tables, curves, every test point",
        "show": "points of records, by verdict, class or method",
        "compare": "two evaluations side by side, and where they differ",
        "merge": "one file of records from several",
    },
    "verification competition": {
        "verify": "ONNX and VNN-LIB files: unsat, sat, unknown or timeout",
        "supports": "whether an ONNX and a VNN-LIB file can be verified",
    },
    "this machine": {
        "data": "list, fetch and describe the data sets",
        "doctor": "versions, solvers, data, and what proofs assume of torch",
    },
}
VERBS = {verb: text for group in GROUPS.values() for verb, text in group.items()}
_HELP = ("-h", "--help")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code.

    Exit codes: 0 done, 1 `doctor` has found a fault, `check` a certificate without a proof, or `supports` says no, 2 wrong
    arguments or input, 130 interrupted, 141 the reader of standard output closed the pipe.
    """
    try:
        try:
            code = run(list(sys.argv[1:] if arguments is None else arguments))
        except SystemExit as done:
            code = done.code
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout at exit
        code = 141
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    if not arguments or arguments[0] in _HELP or arguments == ["help"]:
        print(_help())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        import relucert

        print(f"relucert {relucert.__version__}")
        return 0
    full = arguments[0] == "help"
    verb, rest = (arguments[1], arguments[2:]) if full else (arguments[0], arguments[1:])
    if verb not in VERBS:
        return _fault(f"there is no verb {verb!r}; verbs are {', '.join(VERBS)}")
    from relucert.core.errors import RelucertError

    module: Any = importlib.import_module(f"relucert.cli.{verb}")
    if full or any(argument in _HELP for argument in rest):
        print(_help_of(verb, module, rest, full))
        return 0
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            return _run(verb, module, rest)
    except RelucertError as error:
        return _fault(str(error))
    except KeyboardInterrupt as interrupt:
        _tell(f"relucert: {str(interrupt) or 'interrupted'}")
        return 130
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
            raise
        return _fault(
            f"{error.filename or 'a file'} cannot be written: {error.strerror}; nothing that was stored is lost"
        )


def _run(verb: str, module: Any, arguments: list[str]) -> int:
    """Parse the flags of a verb and run it."""
    from relucert.cli._arguments import parse

    adapt = getattr(module, "current_flags", None)
    config = parse(verb, module.CONFIG, arguments if adapt is None else adapt(arguments))
    device = getattr(config, "device", "cpu")
    if verb != "train" and device != "cpu":
        from relucert.core.rounding import set_full_precision

        set_full_precision(device.partition(":")[0])
    return module.run(config)


def _help_of(verb: str, module: Any, arguments: list[str], full: bool) -> str:
    """The help of a verb, or of one of its commands."""
    from relucert.cli._help import commands, manual, screen, subcommands

    kinds = subcommands(module.CONFIG)
    if not kinds:
        return manual(verb, module) if full else screen(verb, module)
    kind = kinds.get(next((argument for argument in arguments if argument not in _HELP), ""))
    return commands(verb, module) if kind is None else screen(f"{verb} {kind.__name__.lower()}", _Command(kind))


class _Command:
    """A command of a verb, such as `data list`, in the place of a module."""

    def __init__(self, kind: type):
        self.CONFIG = kind


def _warn(message: Warning | str, *_: Any) -> None:
    """A warning as one line on stderr."""
    _tell(f"relucert: warning: {message}")


def _fault(text: str) -> int:
    _tell(f"relucert: error: {text}")
    return 2


def _tell(text: str) -> None:
    """A line on stderr, broken between words on a terminal."""
    from relucert.cli._text import folded

    print(folded(text, sys.stderr), file=sys.stderr)


def _help() -> str:
    width = max(map(len, VERBS))
    lines = ["usage: relucert VERB ...", "", "Train ReLU classifiers whose robustness can be proved, and prove it."]
    for title, verbs in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {verb:<{width}}  {text}" for verb, text in verbs.items())]
    return "\n".join(
        [
            *lines, "", "example: relucert train --data digits --scheme mmr --epochs 20 --out runs/mmr", "",
            "relucert VERB --help   the flags of a verb, on a screen",
            "relucert help VERB     all about them",
            "relucert --version",
            "",
            "Exit codes: 0 done, 1 checked and not good (doctor, check, supports),",
            "2 wrong arguments or input, 130 interrupted, 141 the reader closed the pipe.",
        ]
    )  # fmt: skip
