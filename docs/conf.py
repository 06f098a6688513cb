"""Configuration of the documentation site: `make docs` writes it to docs/_build."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

project = "Penstock"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Penstock"
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
# Links to files beside docs/ (the README, docker/, sources) are for readers of the repository.
suppress_warnings = ["myst.xref_missing"]
napoleon_numpy_docstring = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
