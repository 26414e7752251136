"""Plans that contradict themselves: each is refused, or said, with the value, the bound and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchsim.calibrate import calibrate
from batchsim.cli import main
from batchsim.errors import InputError
from batchsim.plan import plan_from_dict

RECIPE = {"prompts": 128, "group_size": 8, "learning_rate": 1e-6}


def observed(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"observed": [{"lr_rule": "sqrt"} | e for e in entries]}


REFUSED = [
    (
        {"learning": {"noise_scale": [5000, 2000]}},
        r"noise_scale \[5000.0, 2000.0\] is not an interval .*; write \[2000, 5000\]",
    ),
    ({"learning": {"noise_scale": [2000, 2000]}}, "a known value is one number: 2000"),
    ({"learning": {"lr_fraction": [0.5, 0.1]}}, r"write \[0.1, 0.5\]"),
    ({"learning": {"lr_fraction": [0.2, 5]}}, "lr_fraction.1 = 5: input should be less than or equal to 1.99"),
    (
        {"learning": {"kl_per_update": 0.01, "kl_max": 0.001}},
        "kl_max 0.001 lies below kl_per_update 0.01.*raise kl_max",
    ),
    (
        {"learning": observed({"prompts": 256, "updates_ratio": [0.9, 0.5]})},
        r"\[0.9, 0.5\] runs from high to low; write",
    ),
    ({"learning": observed({"prompts": 256, "updates_ratio": 0.5})}, r"an interval is written \[low, high\]"),
    (
        {
            "learning": observed(
                {"prompts": 256, "updates_ratio": [0.5, 0.6]}, {"prompts": 256, "updates_ratio": [0.7, 0.9]}
            )
        },
        "256 prompts under 'sqrt' twice.*nothing in common; keep the one that is right",
    ),
    ({"learning": observed({"prompts": 128, "updates_ratio": [0.5, 0.6]})}, "the reference's own ratio is 1; drop"),
    ({"target": {"responses_to_target": 500}}, "500 is less than one update of 1024 responses; N. counts responses"),
]


@pytest.mark.parametrize(("sections", "said"), REFUSED, ids=range(len(REFUSED)))
def test_refused(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan_from_dict({"recipe": RECIPE} | sections)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (
            [{"prompts": 256, "throughput_ratio": 1.3}, {"prompts": 256, "throughput_ratio": 1.9}],
            "256 prompts twice; state every batch once",
        ),
        ([{"prompts": 128, "throughput_ratio": 1.3}], "1.3 for 128 prompts, and the reference's own is 1; drop"),
        (
            [{"prompts": 256, "throughput_ratio": 1.3}, {"prompts": 512, "step_seconds": 300}],
            "mixes step_seconds and throughput_ratio; state every pilot in one",
        ),
    ],
)
def test_throughputs_refused(entries: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        calibrate(None, plan_from_dict({"recipe": RECIPE, "engine": {"observed": entries}}), draws=50)


def test_the_reference_may_be_stated_with_its_own_ratio() -> None:
    entries = [{"prompts": 128, "throughput_ratio": 1.0}, {"prompts": 256, "throughput_ratio": 1.4}]
    assert calibrate(None, plan_from_dict({"recipe": RECIPE, "engine": {"observed": entries}}), draws=50).success


@pytest.mark.parametrize(
    ("ratio", "warned"), [([0.05, 0.06], True), ([1.5, 1.6], True), ([0.5, 0.7], False), ([0.9, 1.0], False)]
)
def test_a_ratio_that_no_law_comes_near_is_said(ratio: list[float], warned: bool) -> None:
    plan = plan_from_dict({"recipe": RECIPE, "learning": observed({"prompts": 256, "updates_ratio": ratio})})
    said = [w for w in calibrate(None, plan, draws=50).warnings if "check that updates" in w]
    assert bool(said) == warned
    assert all(f"B = 2048 at {ratio[0]:.3g} to {ratio[1]:.3g} of the reference's updates" in w for w in said)


def test_targets_are_asked_as_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("[recipe]\nprompts = 128\ngroup_size = 8\n")
    for wrong in ("", "0.7,x", "70%"):
        with pytest.raises(SystemExit) as stop:
            main(["predict", str(path), "--target", wrong])
        assert stop.value.code == 2
        assert "as --target 0.4,0.5" in capsys.readouterr().err
