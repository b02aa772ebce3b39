"""How Sphinx builds the site: `make docs`, or `python -m sphinx -W -b html docs docs/_build/html`. Nothing needs a network."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "docs" / "_ext"), str(ROOT / "src")]

project = "relucert"
author = "the relucert authors"
copyright = "the relucert authors, MIT licence"
release = version = re.findall(r'^VERSION = "(.+)"', (ROOT / "src/relucert/core/versions.py").read_text(), re.M)[0]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "docstrings", "drawings", "mathml"]
exclude_patterns = ["_build", "_ext", "pictures"]
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!relucert\.).*"),  # names of other packages, and short names inside annotations
    (
        "py:class",
        r"relucert\.(bounding|core|data|evaluation|networks|training|verification)\..*",
    ),  # modules without a page
]
suppress_warnings = ["toc.empty_glob"]

# Pages are MyST, whose headings have the anchors that GitHub gives them.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

# Docstrings are plain text with names in backticks and Google's sections.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False
default_role = "code"
highlight_language = "text"

html_theme = "furo"
html_title = f"relucert {release}"
html_static_path = ["_static"]
html_css_files = ["relucert.css"]
html_show_sphinx = False
html_theme_options = {"sidebar_hide_name": False}
