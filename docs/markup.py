"""What the pages and docstrings need on their way into Sphinx: they are written to be read as plain text and on GitHub.

- Formulas become MathML, by the converter that ships with docutils: nothing is fetched and no script runs.
- `Authors YEAR, arXiv:ID`, and links to `references.md#key`, become citations of `references.bib`.
- The contents of the site and the bibliography stand in comments, which GitHub does not show.
- A link to `../CONTRIBUTING.md` leads to its copy, and the text of links to pages loses its `.md`.
- Docstrings hold formulas such as N* and |G|^2 in plain text: what reStructuredText would take for markup is escaped,
  and what is indented keeps its shape.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from pybtex.database import parse_file
from sphinx.application import Sphinx
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)
DOCS = Path(__file__).parent
KEY_OF_EPRINT = {
    entry.fields["eprint"]: key
    for key, entry in parse_file(DOCS / "references.bib").entries.items()
    if "eprint" in entry.fields
}
COPIED = {"../CONTRIBUTING.md": "contributing.md", "../CHANGELOG.md": "changelog.md"}
_NAME = r"[A-Z][\w'-]+"
_WORK = rf"{_NAME}(?:, {_NAME})*(?:,? (?:and|&) {_NAME})?(?: et al\.)? \d{{4}}"
_EPRINT = r"arXiv:(\d{4}\.\d{4,5})"
_NAMED_EPRINT = re.compile(rf"{_WORK}\s+\({_EPRINT}\)|(?:{_WORK},\s+)?\b{_EPRINT}")
_PAGE_NAME = re.compile(r"\[(\w+)\.md\](?=\(\1\.md)")
_CITED = re.compile(r"\[[^\]]+\]\(references\.md#([\w-]+)\)")
_CONTENTS = re.compile(r"<!-- contents: ([^\n]+)\n(.*?)-->", re.S)
_PICTURE = re.compile(r"^\.\. image-sg::.*\n(?:(?: .*)?\n)*", re.M)
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.M | re.S)
_SECTION = re.compile(r"^-{3,}$")
_COLON = "\ue000"  # napoleon would take what stands before a colon for the type of a constant
_WORD = re.compile(r"``[^`]+``|`[^`]+`|(?<!\w)\*\w[\w-]*\*(?!\w)|^ *\* |^\.\. (?=\[\d+\] )|[|*]|_(?!\w)")


def visit_math(translator: Any, node: nodes.math) -> None:
    """Inline formula."""
    translator.body.append(mathml(node))
    raise nodes.SkipNode


def visit_math_block(translator: Any, node: nodes.math_block) -> None:
    """Formula on a line of its own; wide ones scroll."""
    translator.body.append(f'<div class="math">{mathml(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def mathml(node: nodes.Element, *, as_block: bool = False) -> str:
    """MathML of a formula; what the converter does not know is a warning, and so an error of the build.

    Parameters
    ----------
    node : docutils.nodes.math or math_block
    as_block : bool

    Returns
    -------
    str
    """
    try:
        text = str(latex2mathml.tex2mathml(node.astext(), as_block=as_block))
    except MathError as error:
        LOGGER.warning("no MathML for %r: %s", node.astext(), error, location=node)
        return f"<code>{node.astext()}</code>"
    # \lvert and \rvert come without a form: alone they would grow with their row and keep a distance.
    text = text.replace('<mo class="mathopen">|', '<mo form="prefix" stretchy="false">|')
    return text.replace("<mo>|", '<mo form="postfix" stretchy="false">|')


def read_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Pictures before their code; citations, links that leave docs/ and lists of contents, outside of code."""
    if docname.startswith("gallery/fig_"):
        source[0] = _picture_first(source[0])
    if app.env.doc2path(docname).suffix != ".md":
        return
    parts = _CODE.split(source[0])
    parts[::2] = [_links(_citations(part, docname)) for part in parts[::2]]
    source[0] = "".join(parts)


def _picture_first(text: str) -> str:
    """A figure's picture below its description, where sphinx-gallery has it below its code."""
    head, mark, rest = text.partition(".. GENERATED FROM PYTHON SOURCE LINES")
    pictures = _PICTURE.findall(rest)
    return head + "".join(pictures) + mark + _PICTURE.sub("", rest)


def _citations(text: str, docname: str) -> str:
    def cited(match: re.Match[str]) -> str:
        eprint = match[1] or match[2]
        if (key := KEY_OF_EPRINT.get(eprint)) is None:
            LOGGER.warning("references.bib lacks arXiv:%s", eprint, location=docname)
            return match[0]
        return f"{{cite:t}}`{key}`"

    text = _NAMED_EPRINT.sub(cited, _CITED.sub(r"{cite:t}`\1`", text))
    text = text.replace("<!-- bibliography -->", "```{bibliography}\n:all:\n```")
    return _CONTENTS.sub(r"```{toctree}\n:hidden:\n:glob:\n:caption: \1\n\n\2```", text)


def _links(text: str) -> str:
    for outside, page in COPIED.items():
        text = text.replace(f"]({outside})", f"]({page})")
    return _PAGE_NAME.sub(r"[\1]", text)


def read_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Docstring in plain text to reStructuredText, before the sections of NumPy's style are read."""
    out: list[str] = []
    prose, literal = True, False
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if _SECTION.match(following) and line.strip():
            prose, literal = line.strip() in {"Notes", "References"}, False
            if line.strip() == "References":
                prose = False
        indented = line.startswith("    ")
        if prose and indented and not literal and (number == 0 or not lines[number - 1].strip()):
            out += ["::", ""]
            literal = True
        elif line.strip() and not indented:
            literal = False
        out.append(line if literal or line.lstrip().startswith(">>>") else _WORD.sub(_escaped, line))
    lines[:] = [line.replace(":", _COLON) for line in out] if what in {"data", "attribute", "property"} else out


def restore_colons(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """After napoleon has seen the docstring of a constant."""
    lines[:] = [line.replace(_COLON, ":") for line in lines]


def _escaped(match: re.Match[str]) -> str:
    if match[0] == ".. ":
        return "* "
    return match[0] if len(match[0]) > 1 else "\\" + match[0]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register all of it."""
    app.setup_extension("sphinx.ext.autodoc")
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    app.connect("source-read", read_page)
    app.connect("autodoc-process-docstring", read_docstring, priority=400)
    app.connect("autodoc-process-docstring", restore_colons, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
