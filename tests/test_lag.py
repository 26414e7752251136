"""Age of responses: read from logs, priced by the published rows, carried through fit and forecast."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from test_calibrate import TARGET, a_run, tree

from batchsim.calibrate import calibrate
from batchsim.calibrate.lag import COST_SPREAD, Lag, draw_lag
from batchsim.calibrate.store import load_fit, save_fit
from batchsim.errors import InputError
from batchsim.learning.mechanism import STALENESS
from batchsim.plan import Plan
from batchsim.predict import predict
from batchsim.specs.recipe import Recipe
from batchsim.validate.decisions import coordinate_case
from batchsim.validate.worlds.staleness import OLMO2

RECIPE = Recipe(prompts=64, group_size=8)
CASE = coordinate_case(0)


def run(batch: int, versions: float | None) -> xr.Dataset:
    ds = xr.Dataset(attrs={"train_batch": batch})
    if versions is not None:
        ds["staleness_mean"] = ("rollout_step", [math.nan, versions, versions])
    return ds


def lag_of(*runs: xr.Dataset, recipe: Recipe = RECIPE) -> tuple[Lag | None, list[str]]:
    warnings: list[str] = []
    nodes = {f"run{i}": ds for i, ds in enumerate(runs)}
    return draw_lag(nodes, recipe, draws=4000, rng=np.random.default_rng(0), warnings=warnings), warnings


def test_no_age_no_factor() -> None:
    for runs in ([], [run(512, None)], [run(512, 0.0), run(2048, 0.0)]):
        assert lag_of(*runs) == (None, [])


def test_two_batches_say_how_the_age_goes_with_the_batch() -> None:
    for versions, exponent in ((0.5, 1.0), (2.0, 0.0), (1.0, 0.5)):
        lag, said = lag_of(run(512, 2.0), run(2048, versions))
        assert lag is not None
        assert lag.reference == pytest.approx(2.0)
        assert lag.exponent == pytest.approx(np.full(4000, exponent), abs=1e-9)
        assert "2 updates old at B = 512" in said[0]
    one, said = lag_of(run(2048, 0.5))
    assert one is not None
    assert np.quantile(one.exponent, [0, 0.5, 1]) == pytest.approx([0, 0.5, 1], abs=0.02)
    # Seen at four times the batch, and anything from .5 to 2 at the reference.
    assert one.reference == pytest.approx(1.0, rel=0.05)
    assert "one batch" in said[0]


def test_updates_of_one_rollout_add_their_own_age() -> None:
    lag, _ = lag_of(run(128, 1.0), recipe=Recipe(prompts=64, group_size=8, updates_per_rollout=4))
    assert lag is not None
    assert lag.reference == pytest.approx((4 - 1) / 2 + 4 * 1.0)


def test_factor_is_that_of_the_published_constants() -> None:
    lag = Lag(reference=2.0, exponent=np.array([1.0, 0.0]), cost=np.full(2, STALENESS[0]))
    a, q = STALENESS
    assert lag.log_factor(4.0) == pytest.approx([math.log((1 + a * 0.5**q) / (1 + a * 2.0**q)), 0.0])
    assert lag.log_factor(np.array([1.0, 4.0])).shape == (2, 2)


def test_cost_scatters_as_the_published_rows_do() -> None:
    # Rows are told by the age of the last of M updates, M - 1; their mean age is half of that.
    asked = [math.log((x - 1) / (last / 2) ** STALENESS[1]) for rows in OLMO2.values() for last, x in rows.items()]
    assert len(asked) == 8
    assert np.std(asked, ddof=1) == pytest.approx(COST_SPREAD, abs=0.01)
    assert np.mean(asked) == pytest.approx(math.log(STALENESS[0]), abs=2 * COST_SPREAD / math.sqrt(8))
    lag, _ = lag_of(run(512, 2.0))
    assert lag is not None
    assert np.quantile(lag.cost, 0.5) == pytest.approx(STALENESS[0], rel=0.05)


def old(in_flight: float) -> xr.DataTree:
    nodes = {name: node.to_dataset() for name, node in CASE.runs.children.items()}
    for ds in nodes.values():
        ds["staleness_mean"] = ("rollout_step", np.full(ds.sizes["rollout_step"], in_flight / ds.attrs["train_batch"]))
    runs = xr.DataTree.from_dict(nodes)
    runs.attrs = dict(CASE.runs.attrs)
    return runs


def test_forecast_charges_small_batches_and_is_wider(tmp_path: Path) -> None:
    known = {"target": CASE.target, "draws": 1000}
    fresh = predict(without_age(CASE.runs), plan=CASE.plan(), **known)  # type: ignore[arg-type]
    late = predict(old(4.0 * CASE.cluster.reference), plan=CASE.plan(), **known)  # type: ignore[arg-type]
    n, m = (np.quantile(ds["sample_cost_ratio"].values, [0.1, 0.5, 0.9], axis=0) for ds in (fresh, late))
    at = CASE.reference
    assert (m[1, :at] > n[1, :at]).all()
    assert (m[1, at + 3 :] < n[1, at + 3 :]).all()
    assert (np.log(m[2] / m[0])[:at] > np.log(n[2] / n[0])[:at]).all()
    assert any("updates old" in w for w in late.attrs["warnings"])
    assert not any("updates old" in w for w in fresh.attrs["warnings"])
    fit = calibrate(old(4.0 * CASE.cluster.reference), CASE.plan(), **known)  # type: ignore[arg-type]
    save_fit(fit, tmp_path / "fit.json")
    again = load_fit(tmp_path / "fit.json")
    assert fit.lag is not None
    assert again.lag is not None
    assert np.array_equal(again.lag.cost, fit.lag.cost)
    text = (tmp_path / "fit.json").read_text()
    cut = text.replace('"exponent": {"shape": [1000]', '"exponent": {"shape": [10, 100]')
    assert cut != text
    (tmp_path / "fit.json").write_text(cut)
    with pytest.raises(InputError, match="draws of different lengths"):
        load_fit(tmp_path / "fit.json")


def without_age(runs: xr.DataTree) -> xr.DataTree:
    nodes = {
        str(name): node.to_dataset().drop_vars("staleness_mean", errors="ignore")
        for name, node in runs.children.items()
    }
    tree = xr.DataTree.from_dict(nodes)
    tree.attrs = dict(runs.attrs)
    return tree


def test_laws_are_compared_at_one_age() -> None:
    a, q = STALENESS
    runs = []
    for batch, versions in ((512, 2.0), (1024, 1.0), (2048, 0.5)):
        # The sample cost is constant but for the age.
        rate = 1e-6 * math.sqrt(batch / 512)
        needed = 1e5 * (1 + a * versions**q)
        ds = a_run(train_batch=batch, responses_to_target=needed, learning_rate=rate, seed=batch)
        ds["staleness_mean"] = ("rollout_step", np.full(ds.sizes["rollout_step"], versions))
        runs.append(ds)
    laws = {f.name: f for f in calibrate(tree(runs), Plan(), target=TARGET, draws=500).laws}
    assert laws["constant"].chisqr < 1
    assert min(laws.values(), key=lambda f: f.aic).name == "constant"
