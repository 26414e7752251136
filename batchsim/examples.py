"""Where the data that ship with the package lie: `data/examples/README.md` says what each is."""

from __future__ import annotations

from pathlib import Path

from batchsim.errors import InputError, nearest


def example_path(name: str) -> Path:
    """Path of an example that ships with the package.

    Parameters
    ----------
    name : str
        'verl-sweep', a folder of logs, or 'li2026-grpo', a plan.

    Returns
    -------
    pathlib.Path
        For `batchsim.read_logs` or `batchsim.read_plan`.

    Raises
    ------
    InputError
        For a name that is not an example.

    Examples
    --------
    >>> example_path("li2026-grpo").name
    'li2026-grpo.toml'
    """
    folder = Path(__file__).parent / "data" / "examples"
    known = {p.stem if p.suffix == ".toml" else p.name: p for p in sorted(folder.iterdir()) if p.suffix != ".md"}
    if name not in known:
        raise InputError(f"no example '{name}'", remedy=nearest(name, known))
    return known[name]
