"""Writes docs/nomenclature.md from `batchsim.variables`: `python docs/nomenclature_page.py`."""

from __future__ import annotations

import re
from pathlib import Path

from batchsim import variables

PAGE = Path(__file__).with_name("nomenclature.md")
HEAD = """# Nomenclature

Every quantity once: its code name (of JSON keys, Dataset variables, plan keys and arguments), its symbol in the docs,
and its unit. This page is written by `python docs/nomenclature_page.py` from `batchsim/variables.py`.

A response is one sampled answer; `B` counts kept responses per optimizer update, and a prompt group holds `G` of
them. Units are SI; responses, prompts and tokens are kept as units because a ratio of responses is not a number of
responses.
"""


def page() -> str:
    """The page's text; sections are those of the module's own comments.

    Returns
    -------
    str
    """
    source = Path(str(variables.__file__)).read_text(encoding="utf-8")
    parts = re.split(r"^    # -- (.+?) -+$", source, flags=re.M)
    text = HEAD
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        names = [name for name in re.findall(r'^    "(\w+)": _variable\(', body, re.M) if name in variables.VARIABLES]
        text += f"\n## {title[0].upper()}{title[1:]}\n\n| code name | symbol | unit | meaning |\n|---|---|---|---|\n"
        for name in names:
            v = variables.VARIABLES[name]
            symbol = f"`{v.symbol}`".replace("|", "\\|") if v.symbol else ""
            text += f"| `{name}` | {symbol} | {v.unit} | {v.long_name.replace('|', chr(92) + '|')} |\n"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
