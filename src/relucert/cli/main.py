"""`relucert VERB ...`: run a verb; warnings and errors become one line on stderr, errors of the library exit code 2."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

VERBS = {
    "train": "train a network whose robustness can be proved",
    "evaluate": "test error and robust error under an attack",
    "certify": "verdicts at one radius: proved robust, or not",
    "check": "certificates that `certify --proofs` has written, derived again by an independent checker",
    "attack": "adversarial points, within a radius or as near as possible",
    "radius": "proved radii of decisions, exact where possible",
    "verify": "ONNX and VNN-LIB files: unsat, sat, unknown or timeout",
    "supports": "whether an ONNX and a VNN-LIB file can be verified",
    "report": "one HTML page from records: tables, curves, every test point",
    "data": "list, fetch and describe the data sets",
    "doctor": "check what proofs assume of this machine and of torch",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code.

    Exit codes: 0 done, 1 `doctor` has found a fault or `supports` says no, 2 wrong arguments or input, 130 interrupted, 141 the
    reader of standard output closed the pipe.
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
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        import relucert

        print(f"relucert {relucert.__version__}")
        return 0
    verb, rest = arguments[0], arguments[1:]
    if verb not in VERBS:
        print(f"relucert: error: there is no verb {verb!r}; verbs are {', '.join(VERBS)}", file=sys.stderr)
        return 2
    from relucert.core.errors import RelucertError

    module: Any = importlib.import_module(f"relucert.cli.{verb}")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            if verb == "train":
                return module.run(_parse(verb, module.CONFIG, module.current_flags(rest), module.description()))
            config = _parse(verb, module.CONFIG, rest)
            if getattr(config, "device", "cpu") != "cpu":
                from relucert.core.rounding import set_full_precision

                set_full_precision(config.device.partition(":")[0])
            return module.run(config)
    except RelucertError as error:
        print(f"relucert: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(f"relucert: {interrupt or 'interrupted'}", file=sys.stderr)
        return 130


def _warn(message: Warning | str, *_: Any) -> None:
    """A warning as one line on stderr."""
    print(f"relucert: warning: {message}", file=sys.stderr)


def _parse(verb: str, kind: Any, arguments: list[str], description: str | None = None) -> Any:
    """Parse the flags of a verb; --help and wrong flags exit here, the latter with code 2."""
    import tyro

    # A boolean flag such as --json has no --no- form.
    config = (tyro.conf.FlagCreatePairsOff,)
    return tyro.cli(kind, prog=f"relucert {verb}", description=description, args=arguments, config=config)


def _help() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:<{width}}  {text}" for verb, text in VERBS.items())
    return (
        "usage: relucert VERB ...\n\nTrain ReLU classifiers whose robustness can be proved, and prove it.\n\n"
        f"verbs:\n{verbs}\n\n`relucert VERB --help` explains every flag of a verb with its default; --version says which "
        "relucert this is."
    )
