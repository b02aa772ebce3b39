"""What the pages in docs/ name exists: files, modules, public names, links; their examples run; all public names have a page.

Paths are written from the root of the repository or from `src/relucert/`. `NAME` in a path stands for a file to be written.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import relucert
from relucert.cli._arguments import parse
from relucert.cli.main import VERBS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)
if not PAGES:
    pytest.skip("needs docs/, which source distributions leave out", allow_module_level=True)
NOTEBOOK = ROOT / "docs/story.ipynb"
LINKED = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs").with_suffix("")))


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


@pytest.mark.parametrize(
    "page", [*LINKED, *sorted((ROOT / "results").glob("*.md"))], ids=lambda page: f"{page.parent.name}/{page.stem}"
)
def test_links_lead_somewhere(page):
    """To files and headings that exist; to other hosts by https, with names that can be. Nothing is fetched."""
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)|<(https?:[^>\s]+)>", page.read_text()):
        target = "".join(target)
        if re.match(r"[a-z]+:", target):
            if not re.fullmatch(
                r"https://([a-z0-9-]+\.)+[a-z]{2,}(:\d+)?(/[\w./~%+?=&#,:@-]*)?", target, re.IGNORECASE
            ):
                lost.append(target)
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            lost.append(target)
    assert lost == []


def contents(page: Path) -> set[Path]:
    """The pages that the tables of contents of a page name."""
    named: set[Path] = set()
    for table in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL):
        for entry in re.findall(r"^([\w*][\w/*-]*)$", table, re.MULTILINE):
            named |= {file.resolve() for file in page.parent.glob(f"{entry}.*") if file.suffix in (".md", ".ipynb")}
    return named


def test_every_page_is_in_a_table_of_contents():
    start = (ROOT / "docs/index.md").resolve()
    reached, ahead = {start}, [start]
    while ahead:
        page = ahead.pop()
        found = (contents(page) if page.suffix == ".md" else set()) - reached
        reached |= found
        ahead += found
    assert [str(page) for page in (*PAGES, NOTEBOOK) if page.resolve() not in reached] == []


def test_every_public_name_has_an_entry_on_one_page_of_the_reference():
    entries = [
        name
        for page in PAGES
        for name in re.findall(r"^\.\. (?:auto\w+|py:module):: relucert\.(\w+)$", page.read_text(), re.MULTILINE)
    ]
    assert sorted(entries) == sorted(name for name in relucert.__all__ if not name.startswith("_"))


@pytest.mark.parametrize("registry", ["verification.registry:METHODS", "training.schemes.registry:SCHEMES"])
def test_every_method_and_scheme_has_an_entry(registry):
    module, name = registry.split(":")
    kinds = getattr(importlib.import_module(f"relucert.{module}"), name).values()
    text = "".join(page.read_text() for page in (ROOT / "docs/api").glob("*.md"))
    assert [kind.__name__ for kind in kinds if not re.search(rf"autoclass:: \S+\.{kind.__name__}\n", text)] == []


def test_every_loss_has_an_entry():
    text = (ROOT / "docs/api/training.md").read_text()
    assert [name for name in relucert.losses.__all__ if f"autofunction:: relucert.losses.{name}\n" not in text] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs/theory").glob("[!i]*.md")), ids=lambda page: page.stem)
def test_every_theorem_names_a_proof_a_file_and_a_test(page):
    text = page.read_text()
    table = text.split("| | file |")[1]
    assert re.search(r"\*\*(Proof|Gradient)", text) or "**Every $k > 0$ proves a bound.**" in text
    assert re.search(r"`(?!tests/)[\w/]+\.py` \(`", table)
    assert re.search(r"`tests/[\w/]+\.py`", table)


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").glob("*.png")), ids=lambda picture: picture.stem)
def test_pictures_are_small_and_shown(picture):
    assert picture.stat().st_size < 300_000
    assert any(f"{picture.name})" in page.read_text() for page in LINKED)


def test_formulas_become_mathml():
    pytest.importorskip("latex2mathml", reason="needs the extra docs")
    from latex2mathml.converter import convert

    formulas = [f for page in PAGES for f in re.findall(r"(?<!`)\$([^$`\n]+)\$(?!`)", page.read_text())]
    assert len(formulas) > 100
    assert [formula for formula in formulas if "\\" in convert(formula)] == []


def cells() -> list[str]:
    """The code of the notebook."""
    notebook = json.loads(NOTEBOOK.read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_is_stored_without_outputs():
    assert all(not cell.get("outputs") for cell in json.loads(NOTEBOOK.read_text())["cells"])


@pytest.mark.slow  # 10 seconds; `make docs` runs it as well
def test_the_notebook_runs_and_shows_what_it_says(folder, capsys):
    names: dict[str, object] = {"__name__": "story"}
    for cell in cells():
        exec(compile(cell, NOTEBOOK.name, "exec", dont_inherit=True), names)
    said = capsys.readouterr().out
    d_b = [float(value) for value in re.findall(r"mean d_B ([\d.]+)", said)]
    exact = [int(value) for value in re.findall(r"exact (\d+) of", said)]
    assert d_b[1] > 5 * d_b[0]  # "larger by an order of magnitude"
    assert exact[2] > 30 > exact[0]  # "often exact", with MMR alone


@pytest.mark.slow  # 15 seconds
def test_the_picture_of_linear_regions_is_drawn(tmp_path):
    at = ROOT / "docs/pictures/regions.py"
    spec = importlib.util.spec_from_file_location("regions", at)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    lines = script.picture(tmp_path / "regions.png")
    radii = [float(line.rpartition(" ")[2]) for line in lines]
    assert radii[1] > 2 * radii[0]
    assert (tmp_path / "regions.png").stat().st_size < 300_000


@pytest.mark.slow  # a minute
def test_the_site_is_built_without_a_warning(tmp_path):
    for module in ("sphinx", "furo", "myst_nb", "latex2mathml"):
        pytest.importorskip(module, reason="needs the extra docs")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        str(ROOT / "docs"),
        str(tmp_path),
    ]
    done = subprocess.run([*command, "-D", "nb_execution_mode=off"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "theory/region-theorem.html").read_text()
    assert "<math" in page
    assert not re.findall(r"(?:src|href)=\"https?://[^\"]*\.(?:js|css)", page)  # nothing is loaded from a network


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


def shell_lines(page: Path) -> list[list[str]]:
    """The lines of the blocks of a page that begin with `relucert`, without those that have placeholders in brackets."""
    shell = re.findall(r"^```(?:bash|sh)?\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = "\n".join(shell).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("relucert ")]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.stem)
def test_commands_are_understood(page, folder):
    """Every verb and flag exists, and every value can be read; nothing is run. `runs/NAME` is the folder of a run."""
    for verb, *arguments in shell_lines(page):
        for run in (folder / name for name in arguments if name.startswith("runs/")):
            run.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "results/mnist-fc1-mmr-inf/config.json", run)
        if verb in ("help", "VERB", "--help") or "--help" in arguments:
            continue
        assert verb in VERBS, verb
        module = importlib.import_module(f"relucert.cli.{verb}")
        adapt = getattr(module, "current_flags", None)
        parse(verb, module.CONFIG, arguments if adapt is None else adapt(arguments))


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
