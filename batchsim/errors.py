"""Errors that a user can act on.

Every refusal names the value that was wrong, the bound it broke and the remedy; the command line
prints the text alone and exits with status 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(Exception):
    """An input that cannot be used: a file, a plan key, an option or an argument.

    Not a ValueError, which pydantic would wrap into an error of its own.

    Parameters
    ----------
    message : str
        What is wrong, with the value and the bound.
    remedy : str
        What to do about it.
    where : str
        File, and line or key, as ``path:line`` or ``path [section]``.
    """

    def __init__(self, message: str, *, remedy: str = "", where: str = "") -> None:
        self.message = message
        self.remedy = remedy
        self.where = where
        text = f"{where}: {message}" if where else message
        super().__init__(f"{text}; {remedy}" if remedy else text)


def nearest(word: str, known: Iterable[str]) -> str:
    """Sentence that names the known word closest to `word`, or lists them all."""
    names = sorted(known)
    # A known name with something added is nearer than one that shares the addition: prompts_per_rollout means prompts.
    close = [n for n in names if word.startswith(f"{n}_")] or get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names)}"
