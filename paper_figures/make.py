"""Draw the figures: `python paper_figures/make.py --out figures/` draws all, `make.py 3 10 --out figures/` two of them.

Numbers 1 to 10 are the figures of the source paper, 11 to 15 go beyond it. Each is written as PNG and PDF, whole or
not at all, and the same bytes from run to run. Raw logs of our own sweeps do not ship: with `--data FOLDER`, or
BATCHSIM_DATA, or a folder `shared/data` beside the checkout, the panels that need them are drawn; without, they say so.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
SCRIPTS = {path.stem: path for path in sorted(HERE.glob("fig_*.py"))}
"""Every script of the folder, by its name."""


class BadInput(Exception):
    """A value that cannot be used, with the choices."""


def number(script: str) -> int:
    """Number of a script: fig_10_time_to_target is 10."""
    return int(script.split("_")[1])


def short_name(script: str) -> str:
    """Name of a script without its number: fig_10_time_to_target is time_to_target."""
    return script.split("_", 2)[2]


def title(script: str) -> str:
    """First line of a script's text."""
    lines = SCRIPTS[script].read_text(encoding="utf-8").splitlines()
    return lines[1].strip().split(" ", 1)[-1]


def chosen(asked: list[str]) -> list[str]:
    """Scripts for what was asked: numbers, names or scripts; all if nothing was.

    Raises
    ------
    BadInput
        For anything else.
    """
    known = {str(number(s)): s for s in SCRIPTS} | {short_name(s): s for s in SCRIPTS} | {s: s for s in SCRIPTS}
    found = []
    for name in asked:
        script = known.get(name.removesuffix(".py").lstrip("0") or name)
        if script is None:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            choices = ", ".join(f"{number(s)} {short_name(s)}" for s in SCRIPTS)
            raise BadInput(f"no figure '{name}'; {hint}choose a number or a name of: {choices}")
        if script not in found:
            found.append(script)
    return found or list(SCRIPTS)


def draw(script: str) -> Figure:
    """The figure of a script."""
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    figure: Figure = importlib.import_module(script).figure()
    return figure


def make(scripts: list[str], out: Path) -> list[Path]:
    """Draw and write figures.

    Parameters
    ----------
    scripts : list of str
    out : Path
        Made if absent.

    Returns
    -------
    list of Path
        A PNG and a PDF for each.

    Raises
    ------
    BadInput
        If the folder cannot be made or written to.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {out} cannot be made a folder ({error.strerror}); name another one") from error
    if not os.access(out, os.W_OK):
        raise BadInput(f"--out {out} is not writable; name another folder")
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    house = importlib.import_module("house")
    written: list[Path] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(scripts))
        for script in scripts:
            bar.update(task, description=f"{number(script)} {short_name(script)}")
            fig = draw(script)
            written += house.save(fig, out / script)
            pyplot.close(fig)
            bar.advance(task)
        bar.update(task, description="drawn")
    return written


def parser() -> argparse.ArgumentParser:
    """What the command understands."""
    listed = "\n".join(f"  {number(s):>2}  {short_name(s):<16} {title(s)}" for s in SCRIPTS)
    made = argparse.ArgumentParser(
        prog="python paper_figures/make.py",
        description=__doc__,
        epilog=f"figures:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("figures", nargs="*", metavar="N", help="numbers or names of figures; all if none is given")
    made.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the PNG and PDF files")
    made.add_argument("--data", type=Path, metavar="FOLDER", help="folder of measured data (default: see above)")
    return made


def main(arguments: list[str] | None = None) -> int:
    """The command.

    Returns
    -------
    int
        0 drawn; 2 bad input.
    """
    given = parser().parse_args(arguments)
    try:
        if given.data is not None:
            if not given.data.is_dir():
                raise BadInput(f"--data {given.data} is not a folder; leave it out to draw without raw logs")
            os.environ["BATCHSIM_DATA"] = str(given.data.resolve())
        for path in make(chosen(given.figures), given.out):
            print(path)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
