"""Every example in the documentation runs."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import relucert

README = Path(__file__).resolve().parents[1] / "README.md"
MODULES = [found.name for found in pkgutil.walk_packages(relucert.__path__, "relucert.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_example_of_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert (tmp_path / "net.safetensors").exists()


def test_the_readme_begins_with_the_two_commands():
    lines = README.read_text().splitlines()
    assert lines[0] == "# relucert"
    assert [line.split("#")[0].strip() for line in lines[3:5]] == ["make demo", "make test"]
