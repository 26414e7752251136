from __future__ import annotations

import dataclasses
import math
import re
import tomllib
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchsim.cli.init import TEMPLATE
from batchsim.errors import InputError, nearest
from batchsim.plan import Learning, Logs, ObservedSampleCost, Plan, Target, plan_from_dict, read_plan
from batchsim.specs.engine import Engine, ObservedThroughput
from batchsim.specs.gpu import GPU
from batchsim.specs.lengths import Lengths
from batchsim.specs.model import Model
from batchsim.specs.quantity import UNITS, parse_quantity
from batchsim.specs.recipe import Recipe

# -- every spec within its bounds ---------------------------------------------------------------------


def fields(spec: type) -> dict[str, st.SearchStrategy[Any]]:
    """A strategy per field, from its annotated bounds alone."""
    hints = typing.get_type_hints(spec, include_extras=True)
    return {f.name: st.from_type(hints[f.name]) for f in dataclasses.fields(spec)}


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    small = st.integers(1, 512)
    prompts, group, epochs = draw(small), draw(small), draw(st.integers(1, 8))
    updates = draw(st.integers(1, 64).filter(lambda m: prompts * group * epochs % m == 0))
    free = fields(Recipe)
    rates = sorted(draw(st.tuples(st.floats(1e-8, 1), st.floats(1e-8, 1))))
    return Recipe(
        prompts=prompts,
        group_size=group,
        epochs=epochs,
        updates_per_rollout=updates,
        gen_ratio=draw(free["gen_ratio"]),
        learning_rate=rates[0],
        max_learning_rate=draw(st.sampled_from([None, rates[1]])),
        lr_rule=draw(free["lr_rule"]),
        optimizer=draw(free["optimizer"]),
        batches=draw(free["batches"]),
    )


@st.composite
def throughputs(draw: st.DrawFn) -> ObservedThroughput:
    seconds, ratio = draw(st.sampled_from([(110.0, None), (None, 1.31)]))
    free = fields(ObservedThroughput)
    return ObservedThroughput(
        prompts=draw(free["prompts"]),
        step_seconds=seconds,
        throughput_ratio=ratio,
        relative_error=draw(free["relative_error"]),
    )


@st.composite
def engines(draw: st.DrawFn) -> Engine:
    free = fields(Engine)
    stated = draw(st.booleans())
    free["gen_time_intercept"] = st.floats(0.1, 1e4) if stated else st.none()
    free["gen_time_slope"] = st.floats(0, 10) if stated else st.none()
    free["observed"] = st.lists(throughputs(), max_size=3).map(tuple)
    return draw(st.builds(Engine, **free))


@st.composite
def learnings(draw: st.DrawFn) -> Learning:
    def interval(low: float, high: float) -> st.SearchStrategy[tuple[float, ...]]:
        return st.lists(st.floats(low, high), min_size=2, max_size=2, unique=True).map(lambda v: tuple(sorted(v)))

    free, limited = fields(Learning), draw(st.sampled_from([None, True]))
    free["noise_scale"] = st.one_of(st.none(), st.floats(1, 1e6), interval(1, 1e6))
    free["lr_fraction"] = st.one_of(st.none(), st.floats(0, 1.9), interval(0, 1.9))
    free["curvature_ratio"] = st.one_of(st.none(), st.floats(1e-3, 1e6), interval(1e-3, 1e6))
    free["penalty_shape"] = st.one_of(st.none(), st.floats(-1, 0.9), interval(-1, 0.9))
    free["beta1"] = st.floats(1e-6, 0.99)
    # One needs the other, and the reference is inside its own trust region.
    for key, limits in (("kl_per_update", (1e-6, 1e-2)), ("kl_max", (1e-2, 1.0))):
        free[key] = st.just(None) if limited is None else st.floats(*limits)
    seen = fields(ObservedSampleCost) | {"updates_ratio": interval(0.1, 10)}
    free["observed"] = st.lists(
        st.builds(ObservedSampleCost, **seen), max_size=3, unique_by=lambda o: (o.prompts, o.lr_rule)
    ).map(tuple)
    return draw(st.builds(Learning, **free))


SPECS: dict[str, st.SearchStrategy[Any]] = {
    "target": st.builds(Target, **fields(Target) | {"score": st.one_of(st.none(), st.floats(-1e3, 1e3))}),
    "recipe": recipes(),
    "learning": learnings(),
    "model": st.builds(Model, **fields(Model)),
    "gpu": st.builds(GPU, **fields(GPU)),
    "engine": engines(),
    "lengths": st.one_of(
        st.builds(
            Lengths,
            **fields(Lengths)
            | {"distribution": st.sampled_from(["lognormal", "fixed"]), "response_sample": st.just(())}
            | dict.fromkeys(("response_p50", "response_p90", "max_tokens"), st.none()),
        ),
        st.builds(
            Lengths,
            distribution=st.just("empirical"),
            response_sample=st.lists(st.integers(1, 10**6), min_size=1, max_size=5).map(tuple),
        ),
    ),
    "logs": st.builds(Logs, **fields(Logs)),
}


@pytest.mark.parametrize("section", sorted(SPECS))
@given(data=st.data())
def test_every_spec_is_built_within_its_bounds_and_read_back(section: str, data: st.DataObject) -> None:
    spec = data.draw(SPECS[section])
    content = {k: v for k, v in dataclasses.asdict(spec).items() if v is not None}
    for key in ("observed",):
        if key in content:
            content[key] = [{k: v for k, v in entry.items() if v is not None} for entry in content[key]]
    assert getattr(plan_from_dict({section: content}), section) == spec


class TestRecipe:
    @given(recipes())
    def test_batches_are_whole_and_consistent(self, recipe: Recipe) -> None:
        assert recipe.rollout_batch == recipe.prompts * recipe.group_size
        # rollout_batch = M B / E
        assert recipe.updates_per_rollout * recipe.train_batch == recipe.rollout_batch * recipe.epochs

    def test_direct_construction_raises_what_it_documents(self) -> None:
        with pytest.raises(InputError, match="3 prompts x 1 responses x 1 epochs do not divide into 2 updates"):
            Recipe(prompts=3, updates_per_rollout=2)

    def test_specs_are_frozen(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            Recipe(prompts=3).prompts = 4  # type: ignore[misc]


# -- units --------------------------------------------------------------------------------------------


class TestUnits:
    @pytest.mark.parametrize(
        ("text", "unit", "value"),
        [
            ("80 GB", "B", 80e9),
            ("80GiB", "B", 80 * 2**30),
            ("3.35 TB/s", "B/s", 3.35e12),
            ("989 TFLOP/s", "FLOP/s", 989e12),
            ("11.9 h", "s", 42_840.0),
            ("250 ms", "s", 0.25),
            ("2 days", "s", 172_800.0),
            ("144 kB", "B/token", 144e3),
            ("0.4 s/response", "s/response", 0.4),
            ("120 responses/min", "responses/s", 2.0),
            ("3 USD", "USD/(GPU*h)", 3.0),
            ("1_000", "s", 1000.0),
            ("-1.5e3 s", "s", -1500.0),
            (" .5 h ", "s", 1800.0),
        ],
    )
    def test_as_people_write_them(self, text: str, unit: str, value: float) -> None:
        assert parse_quantity(text, unit) == pytest.approx(value, rel=1e-15)

    @given(st.floats(1e-6, 1e12), st.sampled_from([(d, u) for d, units in UNITS.items() for u in units]))
    def test_every_unit_is_its_factor(self, number: float, where: tuple[str, str]) -> None:
        dimension, unit = where
        assert parse_quantity(f"{number!r} {unit}", dimension) == pytest.approx(number * UNITS[dimension][unit])
        assert parse_quantity(repr(number), dimension) == number

    def test_decimal_and_binary_prefixes_differ(self) -> None:
        assert parse_quantity("1 GiB", "B") / parse_quantity("1 GB", "B") == pytest.approx(1.0737, abs=1e-4)

    @pytest.mark.parametrize(
        "text", ["much", "", "GB", "1.2.3 GB", "nan", "inf", "80 GB/s", "80 gb", "1e GB", "0x10 B"]
    )
    def test_what_is_no_quantity_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="of B"):
            parse_quantity(text, "B")

    def test_text_reaches_every_section(self) -> None:
        plan = plan_from_dict(
            {
                "gpu": {
                    "memory": "80 GB",
                    "memory_bandwidth": "3.35 TB/s",
                    "peak_flops": "989 TFLOP/s",
                    "price": "3 USD",
                },
                "model": {"weight_bytes": "16 GB", "kv_bytes_per_token": "144 kB"},
                "engine": {
                    "gen_time_intercept": "3.6 min",
                    "gen_time_slope": "415 ms",
                    "gen_throughput_max": "90 responses/min",
                },
                "target": {"time_to_target": "11.90 h"},
            }
        )
        assert (plan.gpu.memory, plan.gpu.memory_bandwidth, plan.gpu.peak_flops) == (80e9, 3.35e12, 989e12)
        assert (plan.gpu.price, plan.model.weight_bytes, plan.model.kv_bytes_per_token) == (3.0, 16e9, 144e3)
        assert (plan.engine.gen_time_intercept, plan.engine.gen_time_slope) == pytest.approx((216.0, 0.415))
        assert plan.engine.gen_throughput_max == 1.5
        assert plan.target.time_to_target == pytest.approx(42_840)


# -- refusals -----------------------------------------------------------------------------------------


class TestUnknownKeys:
    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ({"recepi": {}}, "unknown key 'recepi'; did you mean 'recipe'?"),
            ({"recipe": {"prompt": 8}}, "[recipe]: unknown key 'prompt'; did you mean 'prompts'?"),
            ({"recipe": {"prompts": 8, "leraning_rate": 1}}, "did you mean 'learning_rate'?"),
            ({"engine": {"observed": [{"prompts": 8, "step_second": 3}]}}, "did you mean 'step_seconds'?"),
            ({"learning": {"observed": [{"prompts": 8, "update_ratio": 3}]}}, "did you mean 'updates_ratio'?"),
            ({"gpu": {"xyzzy": 1}}, "unknown key 'xyzzy'; known: count"),
        ],
    )
    def test_name_the_nearest(self, content: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError, match=re.escape(said)):
            plan_from_dict(content)

    @given(st.text(min_size=1, max_size=12).filter(lambda s: s not in Plan.__dataclass_fields__))
    def test_any_other_section_is_refused(self, name: str) -> None:
        with pytest.raises(InputError) as error:
            plan_from_dict({name: {}})
        assert repr(name)[1:-1] in str(error.value) or name in str(error.value)

    def test_nearest_lists_all_where_nothing_is_close(self) -> None:
        assert nearest("qqq", ["alpha", "beta"]) == "known: alpha, beta"

    def test_a_value_where_a_section_belongs(self) -> None:
        with pytest.raises(InputError, match=r"'recipe' is a section, not a value; write \[recipe\]"):
            plan_from_dict({"recipe": 128})


def observed(**entry: Any) -> dict[str, Any]:
    return {"observed": [{"prompts": 64} | entry]}


class TestBadValues:
    @pytest.mark.parametrize(
        ("section", "content", "said"),
        [
            ("recipe", {"prompts": 0}, "prompts = 0: .*greater than or equal to 1"),
            ("recipe", {"prompts": -4}, "prompts = -4: .*greater than or equal to 1"),
            ("recipe", {"prompts": 2.5}, "prompts = 2.5: .*not a whole number"),
            ("recipe", {"prompts": True}, "prompts = True: .*not a whole number"),
            ("recipe", {"prompts": math.nan}, "prompts = nan: .*not a whole number"),
            ("recipe", {"prompts": "many"}, "prompts = 'many': .*integer"),
            ("recipe", {"prompts": 10**12}, "prompts = 1000000000000: .*less than or equal to 1000000000"),
            ("recipe", {"group_size": 8}, "prompts: field required"),
            ("recipe", {"prompts": 8, "group_size": 0}, "group_size = 0: .*greater than or equal to 1"),
            ("recipe", {"prompts": 8, "batches": [256, -1]}, "batches.1 = -1: .*greater than or equal to 1"),
            ("recipe", {"prompts": 8, "learning_rate": 0}, "learning_rate = 0: .*greater than 0"),
            ("recipe", {"prompts": 8, "learning_rate": -1e-6}, "learning_rate = -1e-06: .*greater than 0"),
            ("recipe", {"prompts": 8, "learning_rate": math.nan}, "learning_rate = nan: .*finite"),
            ("recipe", {"prompts": 8, "lr_rule": "root"}, "lr_rule = 'root': .*'sqrt'"),
            ("recipe", {"prompts": 8, "optimizer": "muon"}, "optimizer = 'muon': .*'adam' or 'sgd'"),
            (
                "recipe",
                {"prompts": 5, "group_size": 3, "updates_per_rollout": 4},
                "5 prompts x 3 responses .* 4 updates.*choose prompts",
            ),
            ("recipe", {"prompts": 8, "max_learning_rate": 1e-6}, "max_learning_rate needs a learning_rate"),
            (
                "recipe",
                {"prompts": 8, "learning_rate": 1e-5, "max_learning_rate": 1e-6},
                "max_learning_rate 1e-06 lies below learning_rate 1e-05; raise it",
            ),
            ("learning", {"noise_scale": -5}, "noise_scale = -5: .*greater than 0"),
            ("learning", {"noise_scale": math.nan}, "noise_scale = nan: .*finite"),
            ("learning", {"noise_scale": [6000, 1000]}, r"noise_scale \[6000.0, 1000.0\] is not an interval"),
            ("learning", {"lr_fraction": 2.0}, "lr_fraction = 2.0: .*less than or equal to 1.99"),
            ("learning", {"snr_shape": 0.0}, "snr_shape = 0.0: .*greater than or equal to 0.05"),
            ("learning", {"snr_shape": "drifty"}, "snr_shape = 'drifty'"),
            ("learning", observed(lr_rule="tuned", updates_ratio=[0.5, 0.6]), "observed.0.lr_rule = 'tuned'"),
            (
                "learning",
                observed(lr_rule="sqrt", updates_ratio=[0.6, 0.5]),
                r"updates_ratio \[0.6, 0.5\] runs from high",
            ),
            ("learning", observed(lr_rule="sqrt", updates_ratio=[0.0, 0.5]), "updates_ratio.0 = 0.0: .*greater than 0"),
            # GB where bytes are meant, TB/s where B/s, TFLOP/s where FLOP/s.
            ("gpu", {"memory": 80}, "memory = 80: .*greater than or equal to 1000000"),
            ("gpu", {"memory_bandwidth": 3.35}, "memory_bandwidth = 3.35: .*greater than or equal to 1000000000"),
            ("gpu", {"peak_flops": 989}, "peak_flops = 989: .*greater than or equal to 100000000000"),
            ("model", {"weight_bytes": 16.0}, "weight_bytes = 16.0: .*greater than or equal to 1000000"),
            ("gpu", {"memory": "80 Gb"}, "memory = '80 Gb': 'Gb' in '80 Gb' is not a unit of B"),
            ("gpu", {"memory": "-80 GB"}, "memory = '-80 GB': .*greater than or equal"),
            ("gpu", {"price": -1.0}, "price = -1.0: .*greater than or equal to 0"),
            ("engine", {"mode": "overlap"}, "mode = 'overlap': .*'sync', 'partial' or 'async'"),
            ("engine", {"gen_time_slope": 0.4}, "gen_time_intercept and gen_time_slope belong together"),
            ("engine", {"gen_time_slope": 0, "gen_time_intercept": 0}, "generation time of 0 has no throughput"),
            ("engine", {"kept_share": 0.0}, "kept_share = 0.0: .*greater than 0"),
            ("engine", {"kept_share": 1.2}, "kept_share = 1.2: .*less than or equal to 1"),
            ("engine", observed(), "observed throughput at 64 prompts needs exactly one"),
            ("engine", observed(step_seconds=3, throughput_ratio=1.2), "needs exactly one"),
            ("engine", observed(step_seconds=-3), "observed.0.step_seconds = -3: .*greater than"),
            ("engine", observed(throughput_ratio=0), "observed.0.throughput_ratio = 0: .*greater than 0"),
            ("target", {"responses_to_target": 0}, "responses_to_target = 0: .*greater than 0"),
            ("target", {"time_to_target": "soon"}, "time_to_target = 'soon': 'soon' is not a number with a unit of s"),
            ("lengths", {"response_mean": 0}, "response_mean = 0: .*greater than 0"),
        ],
    )
    def test_are_refused_with_value_and_bound(self, section: str, content: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError, match=said) as error:
            plan_from_dict({section: content}, source="my.toml")
        assert error.value.where == f"my.toml [{section}]"

    @pytest.mark.parametrize(
        ("section", "content"),
        [
            # A time of zero has no throughput, and a T of zero no ratio.
            ("engine", observed(step_seconds=0)),
            ("target", {"time_to_target": 0}),
            # TOML's true is not the number 1.
            ("recipe", {"prompts": 8, "learning_rate": True}),
            ("gpu", {"price": True}),
            # No run reaches a score that is not a number.
            ("target", {"score": math.nan}),
        ],
    )
    def test_numbers_that_no_computation_survives(self, section: str, content: dict[str, Any]) -> None:
        with pytest.raises(InputError):
            plan_from_dict({section: content})


class TestReadPlan:
    @pytest.mark.parametrize(
        ("write", "said"),
        [
            (lambda p: None, "cannot read the plan: No such file"),
            (lambda p: p.mkdir(), "cannot read the plan: Is a directory"),
            (lambda p: p.write_bytes(b"\xff\xfe\x00x"), "cannot read the plan: it is not UTF-8 text"),
            (lambda p: p.write_text("[recipe\nprompts = 3"), "not TOML"),
            (lambda p: p.write_text("[recipe]\nprompts = 3\nprompts = 4"), "not TOML"),
        ],
    )
    def test_a_file_that_is_no_plan(self, tmp_path: Path, write: Callable[[Path], object], said: str) -> None:
        path = tmp_path / "plan.toml"
        write(path)
        with pytest.raises(InputError, match=said) as error:
            read_plan(path)
        assert error.value.where == str(path)

    def test_an_empty_plan_is_a_plan(self, tmp_path: Path) -> None:
        path = tmp_path / "plan.toml"
        path.write_text("")
        assert read_plan(path) == Plan(source=str(path))

    def test_keys_that_nothing_uses_are_reported(self) -> None:
        plan = plan_from_dict({"gpu": {"memory_bandwidth": "3.35 TB/s", "peak_flops": "989 TFLOP/s"}})
        needs = "needs [model] name and [gpu] count and [lengths] response_mean, and is not used"
        assert plan.warnings() == [f"[gpu] memory_bandwidth {needs}", f"[gpu] peak_flops {needs}"]
        named = {"model": {"name": "Qwen3-8B"}, "lengths": {"response_mean": 900.0}}
        whole = plan_from_dict(named | {"gpu": {"name": "H100", "count": 8}, "engine": {"cache_bits": 8}})
        assert whole.is_specified()
        assert whole.warnings() == []
        assert whole.warnings(with_logs=True) == [
            "[engine] cache_bits is for plans without step times, and is not used"
        ]
        assert Plan().warnings() == []


class TestTemplate:
    """The file that `batchsim init` writes."""

    def test_parses_as_written(self, tmp_path: Path) -> None:
        path = tmp_path / "plan.toml"
        path.write_text(TEMPLATE, encoding="utf-8")
        plan = read_plan(path)
        assert plan.recipe is not None
        assert (plan.recipe.prompts, plan.recipe.group_size, plan.recipe.train_batch) == (64, 8, 512)

    def test_every_commented_key_works_once_uncommented(self, tmp_path: Path) -> None:
        text = re.sub(r"(?m)^# (?=\[\[|\w+ = )", "", TEMPLATE)
        shown = set(re.findall(r"(?m)^# (\w+) =", TEMPLATE))
        assert len(shown) > 15
        path = tmp_path / "plan.toml"
        path.write_text(text, encoding="utf-8")
        plan = read_plan(path)
        content = tomllib.loads(text)
        assert shown <= {k for s in content.values() for k in s} | {
            k for s in ("engine", "learning") for e in content[s]["observed"] for k in e
        }
        assert plan.target.time_to_target == pytest.approx(42_840)
        assert plan.learning.noise_scale == (1000, 6000)
        assert plan.learning.snr_shape == "drift"
        assert plan.learning.observed[0].updates_ratio == (0.75, 0.83)
        assert [o.step_seconds for o in plan.engine.observed] == [110, 150]
        assert plan.gpu.memory == 80e9
        assert plan.lengths.context_in_flight == 200 + 1500

    def test_names_every_rule(self) -> None:
        line = next(x for x in TEMPLATE.splitlines() if x.startswith("lr_rule"))
        hints = typing.get_type_hints(Recipe)
        assert [w.strip() for w in line.split("#")[1].split(",")] == list(typing.get_args(hints["lr_rule"]))
