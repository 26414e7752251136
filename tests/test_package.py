"""The package as a whole: what importing it costs, what it exports, which modules each path loads."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from types import ModuleType

import pytest

import batchsim

HEAVY = ("numpy", "scipy", "xarray", "pandas", "matplotlib", "typer", "pydantic", "rich", "sympy", "hypothesis")


def loaded(script: str) -> set[str]:
    """Modules in a fresh interpreter after `script`, submodules included."""
    tail = "\nimport sys; print('\\n'.join(['', '-- modules --', *sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script + tail], check=True, capture_output=True, text=True)
    return set(done.stdout.split("-- modules --\n")[1].split())


def command(*arguments: str) -> str:
    """Script that runs the command line and survives its exit."""
    return (
        f"from batchsim.cli import main\ntry:\n    main({list(arguments)!r})\n"
        "except SystemExit as stop:\n    assert stop.code == 0, stop.code"
    )


def test_import_loads_nothing_heavy() -> None:
    assert not loaded("import batchsim") & set(HEAVY)


def test_reading_the_version_loads_nothing_heavy() -> None:
    assert not loaded("import batchsim; batchsim.__version__; dir(batchsim)") & set(HEAVY)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["measure", "--help"], ["predict", "--help"]])
def test_help_loads_no_array_library(arguments: list[str]) -> None:
    assert not loaded(command(*arguments)) & {"numpy", "scipy", "xarray", "pandas", "matplotlib"}


def test_measure_loads_no_statistics_and_no_plots() -> None:
    modules = loaded(command("measure", "--example", "verl-sweep", "--target", "0.55"))
    assert "batchsim.measure" in modules
    assert not modules & {"statsmodels", "scipy.stats", "scipy.optimize", "matplotlib", "sympy", "numba"}


def test_measuring_in_python_loads_no_pydantic() -> None:
    script = (
        "from importlib.resources import files\n"
        "from batchsim import measure, read_logs\n"
        "measure(read_logs(str(files('batchsim') / 'data/examples/verl-sweep')), target=.55)"
    )
    assert not loaded(script) & {"pydantic", "typer", "rich", "matplotlib", "statsmodels", "scipy.stats"}


def test_predict_loads_no_plots_unless_asked_and_no_statistics() -> None:
    modules = loaded(command("predict", "--example", "li2026-grpo", "--json"))
    assert "batchsim.predict" in modules
    assert not modules & {"matplotlib", "statsmodels", "scipy.stats"}


@pytest.mark.parametrize("name", ["predict", "measure", "calibrate"])
@pytest.mark.parametrize(
    "first", ["import batchsim.{0}", "from batchsim.{0} import {0}", "import batchsim.cli.predict"]
)
def test_a_function_is_not_hidden_by_the_module_of_its_name(name: str, first: str) -> None:
    script = (
        f"{first.format(name)}\nimport batchsim\nfrom batchsim import {name}\n"
        f"assert callable({name}) and batchsim.{name} is {name}\n"
        f"import batchsim.{name}\nassert batchsim.{name} is {name}"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_exported_name_resolves() -> None:
    assert len(set(batchsim.__all__)) == len(batchsim.__all__)
    for name in batchsim.__all__:
        value = getattr(batchsim, name)
        assert not isinstance(value, ModuleType)
        assert callable(value) or name == "__version__"
    assert set(dir(batchsim)) >= set(batchsim.__all__)
    assert {"predict", "measure", "read_logs", "read_plan", "calibrate", "InputError"} <= set(batchsim.__all__)


def test_every_exported_function_is_documented() -> None:
    for name in set(batchsim.__all__) - {"__version__"}:
        assert (getattr(batchsim, name).__doc__ or "").strip()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'predictt'"):
        batchsim.predictt  # noqa: B018


def test_version_is_that_of_the_distribution() -> None:
    assert batchsim.__version__ == importlib.metadata.version("batchsim")


def test_every_module_opens_with_its_theory() -> None:
    from importlib.resources import files

    package = files("batchsim")
    modules = [p for p in sorted(package.rglob("*.py")) if p.name != "__main__.py"]  # type: ignore[attr-defined]
    assert len(modules) > 30
    for path in modules:
        assert path.read_text(encoding="utf-8").lstrip("r").startswith('"""'), path
