"""Counts that say whether the package is in order; `make lint` fails when a count is over its limit.

python scripts/house.py            prints every count
python scripts/house.py --verbose  prints the places as well
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "relucert"

#: Limits of the counts.
GRAPH_LOOPS, KIND_TESTS, MANY_PARAMETERS, LONG_FILES, MEDIAN_LINES = 5, 15, 5, 0, 120
PARAMETERS, LINES = 7, 400

LOOP = re.compile(
    r"for \w+ in (?:self\.)?(?:net\.)?graph(?:\.nodes)?(?:\[1:\])?:|for \w+ in range\(\w+, 0, -1\)"
    r"|reversed\((?:self\.)?(?:net\.)?graph"
)
KIND = re.compile(
    r"isinstance\([^)]*\b(ReLU|LeakyReLU|MaxPool2d|Affine|Switching|Conv2d|Linear|BatchNorm)\b|\.kind\s*(==|in|not in)"
)
#: Words that the glossary replaces, but for the public parameter `alike` of attacks, which stands in stored records. The
#: pattern is written so that this file does not contain the words.
WORDS = re.compile(
    r"\b(a[s]ked|R[o]oms|r[o]oms|c[l]imb\w*"
    r"|h[u]nt(?:s|ed|ing)?|H[u]nt|(?<![.`])a[l]ike(?![=:`])|W[i]nners|M[o]ment|t[o]ld|f[e]lled|_w[o]rth"
    r"|m[a]y switch|units that s[w]itch|who s[h]ares the batch|what rounding a[s]ks for|(?<!ast\.)w[a]lk(?:s|ed|ing)?)\b"
)
#: The start of the program, folders whose files are members of one role (a scheme, a layer, a file format, an experiment), and
#: the loaders of data sets: these are public although only their own folder imports them.
ENTRIES = {
    "relucert.cli.main",
    "relucert.data.cifar10",
    "relucert.data.digits",
    "relucert.data.gts",
    "relucert.data.own",
}
ROLES = {
    "relucert.experiments",
    "relucert.experiments.paper",
    "relucert.interop",
    "relucert.networks.layers",
    "relucert.training.losses",
    "relucert.training.schemes",
}


def count(verbose: bool) -> bool:
    """Print the counts; whether all of them are within their limits."""
    files = sorted(PACKAGE.rglob("*.py"))
    texts = {file: file.read_text() for file in files}
    lines = {file: text.count("\n") for file, text in texts.items()}
    outside = {file: text for file, text in texts.items() if not {"networks", "checker"} & set(file.parts)}
    checks = {
        "loops over the graph outside networks/traversal.py": (
            GRAPH_LOOPS,
            _matches(LOOP, {file: text for file, text in texts.items() if file.name != "traversal.py"}),
        ),
        "tests of node kinds outside networks/": (KIND_TESTS, _matches(KIND, outside)),
        f"functions with more than {PARAMETERS} parameters": (MANY_PARAMETERS, _many_parameters(texts)),
        f"files of more than {LINES} lines": (LONG_FILES, [f"{_short(f)}: {n}" for f, n in lines.items() if n > LINES]),
        "words that the glossary replaces": (0, _matches(WORDS, texts | _other_texts())),
        "modules whose name hides or shows them wrongly": (0, _misnamed(texts)),
    }
    fine = True
    for name, (limit, places) in checks.items():
        fine &= len(places) <= limit
        print(f"{'ok  ' if len(places) <= limit else 'OVER'} {len(places):4d} (at most {limit}) {name}")
        if verbose or len(places) > limit:
            print(*(f"       {place}" for place in places), sep="\n")
    median = statistics.median(lines.values())
    short = median <= MEDIAN_LINES
    print(
        f"{'ok  ' if short else 'OVER'} {median:4.0f} (at most {MEDIAN_LINES}) lines of the median of {len(files)} files"
    )
    return fine and short


def _short(file: Path) -> str:
    return str(file.relative_to(ROOT))


def _matches(pattern: re.Pattern[str], texts: dict[Path, str]) -> list[str]:
    """The lines that a pattern occurs in."""
    return [
        f"{_short(file)}:{number}: {line.strip()[:100]}"
        for file, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def _other_texts() -> dict[Path, str]:
    """Tests, pages and what stands beside the package."""
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/*.py")]
    return {file: file.read_text() for file in files if file.name != "CHANGELOG.md"}


def _many_parameters(texts: dict[Path, str]) -> list[str]:
    """Functions, other than constructors, that take too many parameters."""
    long = []
    for file, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
                names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                taken = [name for name in names if name not in ("self", "cls")]
                if len(taken) > PARAMETERS:
                    long.append(f"{_short(file)}:{node.lineno}: {node.name} takes {len(taken)}")
    return long


def _misnamed(texts: dict[Path, str]) -> list[str]:
    """Modules that only their own folder imports and whose name has no underscore, and the other way round."""
    modules = {_module(file): file for file in texts}
    users = defaultdict(set)
    for file, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import | ast.ImportFrom):
                names += [f"{names[0]}.{alias.name}" if names else alias.name for alias in node.names]
            for name in names:
                if name in modules:
                    users[name].add(_folder(_module(file), file))
    wrong = []
    for name, file in modules.items():
        if file.name.startswith("__") or name in ENTRIES or not users[name] or _folder(name, file) in ROLES:
            continue
        home = _folder(name, file)
        inside = all(user == home or user.startswith(f"{home}.") for user in users[name])
        if inside != file.name.startswith("_"):
            wrong.append(f"{_short(file)}: {'only its own folder uses' if inside else 'other folders use'} this module")
    return wrong


def _module(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _folder(module: str, file: Path) -> str:
    return module if file.name == "__init__.py" else module.rpartition(".")[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verbose", action="store_true", help="print the places that are counted")
    sys.exit(0 if count(parser.parse_args().verbose) else 1)
