"""The documentation's site: `make docs` builds it into build/docs. Building it fetches nothing from the network.

Reading it fetches one script, on pages with a diagram: see `mermaid_version`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).with_name("_ext")))

from ramerge import __version__

project = "ramerge"
release = version = __version__
html_title = f"ramerge {__version__}"
html_theme = "furo"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_search_scorer = str(Path(__file__).with_name("search.js"))

extensions = [
    "myst_parser",
    "sphinx_copybutton",
    "sphinxcontrib.mermaid",
    "ramerge_docs",
]
myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["mermaid"]
# The reader's browser loads this version of Mermaid from cdn.jsdelivr.net; offline it shows the diagrams' source.
mermaid_version = "11.12.1"
html_math_renderer = "mathml"  # of ramerge_docs: browsers typeset formulas themselves
exclude_patterns = ["_ext"]
highlight_language = "text"
smartquotes = False  # `--base` must stay what one types
myst_heading_anchors = 4
copybutton_exclude = ".go, .gp"

nitpicky = True  # every reference must lead somewhere
