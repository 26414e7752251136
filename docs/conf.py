"""Settings of the documentation: `python -m sphinx -W --keep-going -b html docs docs/_build/html`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

project = "batchsim"
author = "The batchsim developers"
copyright = author
html_title = "batchsim"

# What lives at the top of the repository is copied in, because Sphinx reads one folder.
for name, page in {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}.items():
    text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
    (HERE / page).write_text(text, encoding="utf-8")
shutil.rmtree(HERE / "notebooks", ignore_errors=True)
if (ROOT / "notebooks").is_dir():
    shutil.copytree(ROOT / "notebooks", HERE / "notebooks", ignore=shutil.ignore_patterns(".*", "__pycache__"))

extensions = [
    "markup",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinxcontrib.bibtex",
]
if list((ROOT / "paper_figures").glob("GALLERY_HEADER.*")):
    # What an earlier build without the figures may have left would hide the gallery.
    (HERE / "gallery" / "index.md").unlink(missing_ok=True)
    extensions.append("sphinx_gallery.gen_gallery")
else:
    (HERE / "gallery").mkdir(exist_ok=True)
    (HERE / "gallery" / "index.md").write_text("# Figures\n\nThis copy lacks the folder `paper_figures/`.\n")
exclude_patterns = ["_build", "gallery/*.ipynb", "gallery/*.py", "notebooks/README.md"]

html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["_static"]
html_css_files = ["batchsim.css"]
html_copy_source = False
html_show_sphinx = False
html_math_renderer = "mathml"
highlight_language = "none"

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 4

nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 120
nb_merge_streams = True

bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "alpha"
bibtex_reference_style = "author_year"

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True}
default_role = "code"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_param = False  # types hold units, whose words are no names to link
napoleon_use_rtype = False

sphinx_gallery_conf = {
    "examples_dirs": "../paper_figures",
    "gallery_dirs": "gallery",
    "filename_pattern": "fig_",
    "ignore_pattern": r"make\.py|style\.py|house\.py|__init__\.py",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "write_computation_times": False,  # its page would load scripts from elsewhere
    "plot_gallery": True,
    "abort_on_example_error": True,
    "image_srcset": ["2x"],
}
