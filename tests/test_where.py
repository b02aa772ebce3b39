"""Every public module has a test file of its own name, or a line in `where.py` that holds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from where import WHERE

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src" / "relucert"
MODULES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if not path.name.startswith("_"))


def own_file(module: Path) -> Path:
    """The test file that has the module's name."""
    return module.parent / f"test_{module.name}"


def defined(module: Path) -> set[str]:
    """The names of the functions and classes that a module defines for others."""
    tree = ast.parse((SOURCE / module).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return {block.name for block in blocks if not block.name.startswith("_")}


def mentions(test: Path, module: Path) -> bool:
    """Whether a test file imports a module, or names something that the module defines."""
    text = (TESTS / test).read_text()
    package, stem = ".".join(["relucert", *module.parent.parts]), module.stem
    imports = rf"\b{re.escape(package)}\.{stem}\b|from {re.escape(package)} import [^\n]*\b{stem}\b"
    return bool(re.search(imports, text)) or bool(defined(module) & set(re.findall(r"\w+", text)))


def functions(file: Path) -> set[str]:
    """The names of the functions of a file."""
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_public_module_is_tested_somewhere():
    untested = [str(module) for module in MODULES if not (TESTS / own_file(module)).exists()]
    assert sorted(set(untested) - set(WHERE)) == [], "add tests/FOLDER/test_NAME.py or a line in tests/where.py"


def test_the_table_has_no_line_too_many():
    gone = sorted(module for module in WHERE if not (SOURCE / module).exists())
    assert gone == [], "these modules do not exist: rename or remove their lines in tests/where.py"
    both = sorted(module for module in WHERE if (TESTS / own_file(Path(module))).exists())
    assert both == [], "these modules have a test file of their own name: remove their lines in tests/where.py"


@pytest.mark.parametrize("module", sorted(WHERE))
def test_the_named_test_is_about_the_module(module):
    file, _, test = WHERE[module].partition("::")
    assert (TESTS / file).is_file(), f"tests/{file} does not exist"
    if test:
        assert test in functions(TESTS / file), f"tests/{file} has no {test}"
    elif (SOURCE / module).exists():
        assert mentions(Path(file), Path(module)), f"tests/{file} names neither {module} nor anything that it defines"


def test_mentions_are_imports_or_names():
    assert mentions(Path("core/test_ball.py"), Path("core/ball.py"))
    assert mentions(Path("attacks/test_truth.py"), Path("attacks/ddn.py"))
    assert not mentions(Path("reports/test_markdown.py"), Path("core/ball.py"))
