"""What the pages in docs/ name exists: files, modules, public names, links; and their Python examples run.

Paths are written from the root of the repository or from `src/relucert/`. `NAME` in a path stands for a file to be written.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import relucert

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
if not PAGES:
    pytest.skip("needs docs/, which source distributions leave out", allow_module_level=True)
LINKED = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def located(path: str) -> Path | None:
    """The file that a path on a page means, if there is one."""
    return next((base / path for base in (ROOT, ROOT / "src" / "relucert") if (base / path).exists()), None)


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_words(path: str, names: str) -> list[str]:
    """The names in backticks of which the last part does not occur in the file."""
    file = located(path)
    text = "" if file is None else file.read_text()
    words = [re.findall(r"\w+", name)[-1] for name in re.findall(r"`([^`]+)`", names)]
    return [word for word in words if not re.search(rf"\b{word}\b", text)]


def imported(folder: str) -> set[str]:
    """The folders of the package that a folder imports."""
    nodes = [
        node
        for file in (ROOT / "src/relucert" / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
    ]
    modules = [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    return {module.split(".")[1] for module in modules if module.startswith("relucert.")} - {folder}


def test_there_are_pages():
    assert {"architecture", "glossary", "release-checklist"} <= {page.stem for page in PAGES}


def test_the_layers_are_those_of_the_linter():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    lines = [re.findall(r"(?<![(\w])\w+(?!\))\b", line) for line in contract["layers"]]
    folders = {path.name for path in (ROOT / "src/relucert").iterdir() if path.is_dir()}
    layers = [[name for name in line if name in folders] for line in lines]
    drawn = (ROOT / "docs/architecture.md").read_text().split("```")[1].strip().splitlines()
    assert [
        re.findall(r"\w+", line)[: len(layer)] for line, layer in zip(drawn, filter(None, layers), strict=True)
    ] == [layer for layer in layers if layer]


def test_every_arrow_of_the_drawing_is_an_import():
    arrows = re.findall(r"^  (\w+) --> (\w+)$", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    assert len(arrows) > 20
    assert [(upper, lower) for upper, lower in arrows if lower not in imported(upper)] == []


@pages
def test_every_file_exists(page):
    paths = set(re.findall(r"[\w.+/-]+\.(?:py|toml|txt|yml|yaml)\b", page.read_text()))
    paths -= set(re.findall(r"^# (\w+\.py)$", page.read_text(), re.MULTILINE))  # files that the page itself shows
    assert [path for path in sorted(paths) if "NAME" not in path and located(path) is None] == []


@pages
def test_every_folder_exists(page):
    folders = set(re.findall(r"`([\w.+-]+(?:/[\w.+-]+)*/)`", page.read_text()))
    assert [folder for folder in sorted(folders) if located(folder) is None] == []


@pages
def test_every_module_and_public_name_exists(page):
    text = page.read_text()
    names = set(re.findall(r"(?<![\w/.-])relucert(?:\.[A-Za-z_]\w*)+", text))
    assert [name for name in sorted(names) if not name.endswith(".md") and not resolves(name)] == []
    assert set(re.findall(r"\brc\.(\w+)", text)) <= set(relucert.__all__)


@pages
def test_names_in_parentheses_behind_a_file_occur_there(page):
    pairs = re.findall(r"`([\w/.+-]+\.py)` \(((?:`[^`]+`(?:, | and )?)+)\)", page.read_text())
    assert {path: lost for path, names in pairs if "NAME" not in path and (lost := missing_words(path, names))} == {}


def test_names_of_the_glossary_occur_in_its_files():
    rows = re.findall(
        r"^\| (?!term)([^|]+) \| [^|]+ \| `([^`|]+)` \| ([^|]*) \|$", (ROOT / "docs/glossary.md").read_text(), re.M
    )
    assert len(rows) > 40
    assert {term: lost for term, path, names in rows if (lost := missing_words(path, names))} == {}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            lost.append(target)
    assert lost == []


@pages
def test_every_page_is_linked_from_the_architecture(page):
    start = ROOT / "docs/architecture.md"
    assert page == start or f"]({page.name}" in start.read_text()


def blocks(page: Path) -> list[str]:
    """The Python examples of a page."""
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder in which examples run; modules that they import from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    torch.manual_seed(0)
    yield tmp_path
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(file.stem, None)


@pages
def test_examples_run(page, folder):
    """A block that begins with the name of a file is that file."""
    names: dict[str, object] = {"__name__": "example"}
    for block in blocks(page):
        if file := re.match(r"# (\w+\.py)\n", block):
            (folder / file[1]).write_text(block)
            continue
        exec(compile(block, page.name, "exec", dont_inherit=True), names)


def test_scripts_about_networks_of_others_are_short_and_prove_something(folder, capsys):
    """A residual network with batch norm, one in the style of Hugging Face, an ONNX file and a pipeline: eight lines each."""
    own, *examples = blocks(ROOT / "docs/networks-of-others.md")
    (folder / "image_networks.py").write_text(own)
    scripts = [block for block in examples if "import relucert as rc\n" in block]
    words = ("resnet().eval()", "ForImageClassification().eval()", 'rc.load("net.onnx")', "rc.from_sklearn(")
    for script, word in zip(scripts, words, strict=True):
        assert word in script
        assert len([line for line in script.splitlines() if line.strip()]) <= 8
        exec(compile(script, "script", "exec", dont_inherit=True), {"__name__": "example"})
        assert capsys.readouterr().out.count("ROBUST") >= 5
