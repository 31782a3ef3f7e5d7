"""The documentation's site: `make docs` builds it into build/docs. Nothing is fetched from the network."""

from __future__ import annotations

import sys
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

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

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "ramerge_docs",
]
lexers["mermaid"] = TextLexer()  # hosts of Markdown draw these diagrams, and the site shows their text
exclude_patterns = ["_ext"]
highlight_language = "text"
smartquotes = False  # `--base` must stay what one types
myst_heading_anchors = 4
copybutton_exclude = ".go, .gp"

# Docstrings: Google's style, and single backticks for code.
default_role = "literal"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"

# Every reference must lead somewhere; types of other libraries and inner types of ours have no page here.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!ramerge\.).*"), ("py:.*", r"ramerge\.\w+\..*")]
