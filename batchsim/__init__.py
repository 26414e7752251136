"""batchsim: which batch size reaches an RL target soonest, before the sweep.

    T = N*/q,    a larger batch is faster  <=>  r_q > r_N

`predict` is the chain that everything else calls; `measure` states what happened; `read_logs` and
`read_plan` bring the input. Names load on first use, so importing the package costs milliseconds.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchsim.calibrate import calibrate as calibrate
    from batchsim.errors import InputError as InputError
    from batchsim.examples import example_path as example_path
    from batchsim.learning.sample_cost import sample_cost_ratio as sample_cost_ratio
    from batchsim.logs import read_logs as read_logs
    from batchsim.measure import measure as measure
    from batchsim.plan import Plan as Plan
    from batchsim.plan import read_plan as read_plan
    from batchsim.plot import plot_time_to_target as plot_time_to_target
    from batchsim.predict import predict as predict
    from batchsim.system.pipeline import throughput as throughput

__version__ = "0.1.0"

_HOME = {
    "InputError": "batchsim.errors",
    "Plan": "batchsim.plan",
    "calibrate": "batchsim.calibrate",
    "example_path": "batchsim.examples",
    "measure": "batchsim.measure",
    "plot_time_to_target": "batchsim.plot",
    "predict": "batchsim.predict",
    "read_logs": "batchsim.logs",
    "read_plan": "batchsim.plan",
    "sample_cost_ratio": "batchsim.learning.sample_cost",
    "throughput": "batchsim.system.pipeline",
}

__all__ = [*sorted(_HOME), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'batchsim' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """The package, in which the function `predict` is not replaced by the module `predict`.

    Importing a submodule binds it on its package; without this, `batchsim.predict` would be a function
    or a module depending on what was imported before.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
