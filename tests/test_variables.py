from __future__ import annotations

from typing import Any

import pint
import pytest
import xarray as xr

from batchsim.plan import plan_from_dict
from batchsim.predict import predict
from batchsim.variables import VARIABLES, set_attrs


@pytest.fixture(scope="module")
def registry() -> pint.UnitRegistry[Any]:
    """SI with batchsim's counts as base units."""
    ureg: pint.UnitRegistry[Any] = pint.UnitRegistry()
    for line in (
        "response = [response] = _ = responses",
        "prompt = [prompt] = _ = prompts",
        "update = [update] = _ = updates",
        "token = [token] = _ = tokens",
        "sequence = [sequence] = _ = sequences",
        "FLOP = [work]",
        "GPU = [gpu]",
        "USD = [money]",
    ):
        ureg.define(line)
    return ureg


@pytest.mark.parametrize("name", sorted(VARIABLES))
def test_every_quantity_is_described_in_units_that_exist(name: str, registry: pint.UnitRegistry[Any]) -> None:
    known = VARIABLES[name]
    assert known.long_name.strip()
    assert known.unit.strip()
    registry.parse_units("" if known.unit == "1" else known.unit)


class TestSetAttrs:
    def test_replaces_what_division_leaves_behind(self) -> None:
        with xr.set_options(keep_attrs=True):  # type: ignore[no-untyped-call]
            ds = set_attrs(xr.Dataset({"responses_to_target": ("train_batch", [100.0, 120.0])}))
            cost = ds["responses_to_target"] / ds["responses_to_target"][0]
        assert cost.attrs["units"] == "responses"
        answer = set_attrs(xr.Dataset({"sample_cost_ratio": cost}, coords={"train_batch": [64, 128]}))
        assert answer["sample_cost_ratio"].attrs == {
            "symbol": "r_N",
            "units": "1",
            "long_name": "responses to target relative to the reference",
        }
        assert answer["train_batch"].attrs["units"] == "responses"

    def test_drops_attributes_that_are_not_ours(self) -> None:
        ds = xr.Dataset({"throughput": ("run", [1.0], {"units": "furlongs", "note": "stale"})})
        assert set(set_attrs(ds)["throughput"].attrs) == {"symbol", "units", "long_name"}
        assert ds["throughput"].attrs["units"] == "responses/s"

    def test_a_name_outside_the_vocabulary_is_refused(self) -> None:
        with pytest.raises(KeyError, match="rN"):
            set_attrs(xr.Dataset({"rN": 1.0}))
        with pytest.raises(KeyError, match="batchsize"):
            set_attrs(xr.Dataset({"throughput": ("batchsize", [1.0])}, coords={"batchsize": [1]}))


def test_a_prediction_carries_the_attributes_of_the_vocabulary() -> None:
    ds = predict(plan_from_dict({"recipe": {"prompts": 64, "group_size": 8}}), draws=20)
    for name in ds.variables:
        known = VARIABLES[str(name)]
        assert (ds[name].attrs["units"], ds[name].attrs["long_name"]) == (known.unit, known.long_name)
