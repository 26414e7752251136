"""Every closed form that the theory derives and the package ships: the NumPy function, and numbers to compare at.

A form's arguments have the code names of `batchsim.theory.quantities`, so that the derived expression and the NumPy
function take the same ones. `tests/reference/make_reference.py` evaluates the derivations over these grids at 30 digits
and writes CSVs; `test_reference.py` compares the NumPy functions with those, and `test_theory.py` with the derivations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchsim import criterion, time_to_target
from batchsim.learning import companions, lr_rule, mechanism, progress, sample_cost
from batchsim.learning.noise_scale import from_chunk_norms, from_nested_norms, group_signal, mean_norm_bias
from batchsim.learning.noise_scale.coordinates import _state_ratio
from batchsim.specs.lengths import Lengths
from batchsim.system import memory, pipeline
from batchsim.system.decode_law import DecodeLaw
from batchsim.system.rollout import rollout
from batchsim.system.roofline import touched_experts

Grid = Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Form:
    """A shipped closed form.

    `grids` are products of values; `rel` is 1e-12 unless the function is a search or a limit by nature.
    """

    shipped: Callable[..., Any]
    grids: tuple[Grid, ...]
    rel: float = 1e-12
    keep: Callable[..., bool] = lambda **_: True

    def points(self) -> Iterator[dict[str, float]]:
        for grid in self.grids:
            for values in itertools.product(*grid.values()):
                point = dict(zip(grid, values, strict=True))
                if self.keep(**point):
                    yield point


DECADES = (1e-12, 1e-6, 1e-3, 0.3, 1.0, 7.0, 1e3, 1e6, 1e12)
RELATIVE = (1e-12, 1e-8, 1e-4, 0.03, 0.5, 1.0, 8.0, 200.0, 1e4, 1.1e4, 1e6, 1e8, 1e12)
SHAPES = (0.1, 0.5, 0.56, 1.0, 2.0, 7.5, 40.0, 300.0)
BATCHES = (1.0, 64.0, 1024.0, 1e5, 1e9)
NOISE = (1e-3, 10.0, 1500.0, 4e4, 1e10)
X = (1e-3, 0.25, 1.0, 2.0, 64.0, 1e5)
FRACTIONS = (1e-12, 1e-6, 0.01, 0.3, 1.0, 1.7, 1.999)


def _chunks(chunk: float, train_batch: float, sq_norm_chunk: float, sq_norm_batch: float) -> Any:
    count = round(train_batch / chunk)
    return from_chunk_norms(train_batch, count, [sq_norm_chunk] * 24, [sq_norm_batch] * 24)


def _nested(prompts: float, group_size: float, response: float, group: float, batch: float) -> Any:
    return from_nested_norms([prompts] * 24, int(group_size), [response] * 24, [group] * 24, [batch] * 24)


def _nested_moments(
    signal_square: float, prompts: float, group_size: float, prompt_variance: float, response_variance: float
) -> Any:
    own = prompt_variance + response_variance
    group = prompt_variance + response_variance / group_size
    return _nested(prompts, group_size, signal_square + own, signal_square + group, signal_square + group / prompts)


def _adam(b: float, snr_shape: float = math.inf) -> float:
    return float(progress.usable_slope(b, noise_scale=1.0, snr_shape=snr_shape))


def _hyperbola(train_batch: float, reference_batch: float, noise_scale: float, lr_fraction: float = 1.0) -> Any:
    return sample_cost.sample_cost_ratio(
        train_batch,
        reference_batch=reference_batch,
        noise_scale=noise_scale,
        lr_fraction=lr_fraction,
        lr_rule="tuned",
    )


def _slow(rule: str) -> Callable[..., Any]:
    def cost(batch_ratio: float, reference_batch: float, noise_scale: float) -> Any:
        return sample_cost.sample_cost_ratio(
            batch_ratio * reference_batch, reference_batch=reference_batch, noise_scale=noise_scale, lr_rule=rule
        )

    return cost


def _invariant_slow(batch_ratio: float, reference_batch: float, noise_scale: float) -> Any:
    slopes = progress.usable_slope([reference_batch, batch_ratio * reference_batch], noise_scale=noise_scale)
    return lr_rule.learning_rate_ratio(batch_ratio, lr_rule="invariant", slope_ratio=slopes[0] / slopes[1])


def _at_rate(**values: float) -> Any:
    return sample_cost.cost_at_rate(values.pop("batch_ratio"), **values)


def _converges(**v: float) -> bool:
    return v["lr_fraction"] * v["learning_rate_ratio"] * v["slope_ratio"] * v["cost_ratio"] < 1.99


def _softly(**v: float) -> bool:
    p, c = v["penalty_shape"], v["lr_fraction"] * v["learning_rate_ratio"] * v["slope_ratio"] * v["cost_ratio"]
    return 1 + p * c / (1 - p) > 0.01 and 1 + p * v["lr_fraction"] / (1 - p) > 0.01


def _room(batch_ratio: float, lr_fraction: float, slope_ratio: float, cost_ratio: float) -> float:
    return batch_ratio * slope_ratio**2 * cost_ratio * lr_fraction * (2 - lr_fraction)


def _tuned_rate(lr_fraction: float, slope_ratio: float, cost_ratio: float) -> Any:
    return lr_rule.learning_rate_ratio(
        3.0, lr_rule="tuned", lr_fraction=lr_fraction, slope_ratio=slope_ratio, cost_ratio=cost_ratio
    )


def _tuned(**v: float) -> Any:
    s = _tuned_rate(v["lr_fraction"], v["slope_ratio"], v["cost_ratio"])
    return _at_rate(learning_rate_ratio=s, **v)


def _optimum(rule: str) -> Callable[..., Any]:
    return lambda **law: time_to_target.optimal_train_batch(lr_rule=rule, **law)


def _tuned_time(batch: float, reference: float, noise_scale: float, tau0: float, tau1: float) -> float:
    return float(_hyperbola(batch, reference, noise_scale)) * (tau0 / batch + tau1)


def _least_time(
    reference_batch: float, noise_scale: float, update_time_intercept: float, update_time_slope: float
) -> float:
    law = (update_time_intercept, update_time_slope)
    best = time_to_target.optimal_train_batch(
        noise_scale=noise_scale, update_time_intercept=law[0], update_time_slope=law[1]
    )
    return _tuned_time(float(best), reference_batch, noise_scale, *law)


def _excess(factor: float, root_ratio: float) -> float:
    law = (1.0, 900.0, 900.0 * root_ratio**2 * 0.5, 0.5)
    best = float(
        time_to_target.optimal_train_batch(noise_scale=law[1], update_time_intercept=law[2], update_time_slope=law[3])
    )
    return _tuned_time(factor * best, *law) / _tuned_time(best, *law)


def _growing(responses_to_target: float, throughput: float, growth: float) -> Any:
    nodes = 1 / throughput * (1 + growth * np.array(pipeline.PROGRESS))
    return responses_to_target * np.asarray(pipeline.mean_curve(([1.0], nodes[:, None]))[1])[0]


def _decode(
    decode_step_time: float, context_time: float, context_sum: float, decode_steps: float, rows: float, one_token: float
) -> Any:
    n = int(rows)
    law = DecodeLaw(step_time=np.array([0.0] + [decode_step_time] * n), context_time=context_time)
    prompt = int(context_sum / rows)
    # The first token comes with the prompt's step; a decode step then reads its own token too.
    done = [
        rollout(
            law=law,
            prompt_tokens=prompt - 1,
            response_tokens=np.full(n, length),
            max_num_seqs=n,
            max_num_batched_tokens=10**9,
        )
        for length in (1, int(decode_steps) + 1)
    ]
    return float(done[1]["gen_time"]) - float(done[0]["gen_time"])


def _adam_state(beta1: float, relative_batch: float) -> float:
    return _state_ratio(beta1, 1 - 1e-15, None)(relative_batch, math.inf)


LAW: Grid = {
    "noise_scale": NOISE,
    "update_time_intercept": (1e-3, 247.0, 1e6),
    "update_time_slope": (1e-6, 0.71, 1e3),
}
COST: Grid = {"batch_ratio": X, "reference_batch": BATCHES[:4], "noise_scale": NOISE}
NESTED: Grid = {
    "signal_square": (0.05, 3.0),
    "prompts": (2.0, 64.0, 4096.0),
    "group_size": (2.0, 8.0, 64.0),
    "prompt_variance": (0.1, 40.0),
    "response_variance": (0.5, 300.0),
}
NORMS: Grid = {
    "prompts": (2.0, 64.0, 4096.0),
    "group_size": (2.0, 8.0, 64.0),
    "sq_norm_response": (30.0, 900.0),
    "sq_norm_group": (7.0, 20.0),
    "sq_norm_batch": (1.5, 3.0),
}
PAIR: Grid = {
    "chunk": (1.0, 64.0),
    "train_batch": (128.0, 4096.0, 65536.0),
    "sq_norm_chunk": (3.0, 40.0),
    "sq_norm_batch": (0.9, 2.0),
}
RATE: Grid = {
    "batch_ratio": X,
    "learning_rate_ratio": (0.01, 1.0, 8.0, 300.0),
    "lr_fraction": FRACTIONS,
    "slope_ratio": (0.03, 0.7, 1.0, 4.0),
    "cost_ratio": (0.2, 1.0, 3.0),
}
INVARIANT: Grid = {k: RATE[k] for k in ("batch_ratio", "lr_fraction", "slope_ratio", "cost_ratio")}


FORMS: dict[str, Form] = {
    "criterion/time": Form(
        shipped=criterion.time_to_target, grids=({"responses_to_target": DECADES, "throughput": DECADES},)
    ),
    "criterion/ratio": Form(
        shipped=criterion.time_ratio, grids=({"sample_cost_ratio": DECADES, "throughput_ratio": DECADES},)
    ),
    "criterion/saving": Form(
        shipped=lambda value, time_ratio: criterion.saving(value, time_ratio=time_ratio),
        grids=({"value": DECADES, "time_ratio": (1e-12, 0.3, 0.9, 1 - 1e-9, 1 + 1e-9, 1.7, 1e6)},),
    ),
    "changing_throughput/time": Form(
        shipped=_growing, grids=({"responses_to_target": DECADES, "throughput": DECADES, "growth": (1e-9, 0.3, 4.0)},)
    ),
    "batch_gradient/signal": Form(shipped=lambda **v: _chunks(**v).signal_square, grids=(PAIR,)),
    "batch_gradient/trace": Form(shipped=lambda **v: _chunks(**v).noise_trace, grids=(PAIR,)),
    "batch_gradient/noise_scale": Form(
        shipped=lambda signal_square, noise_trace: (
            _chunks(4.0, 512.0, signal_square + noise_trace / 4, signal_square + noise_trace / 512).noise_scale
        ),
        grids=({"signal_square": (0.05, 1.0, 30.0), "noise_trace": (10.0, 700.0)},),
    ),
    "batch_gradient/square_norm": Form(
        shipped=lambda signal_square, noise_trace, train_batch: _nested_moments(
            signal_square, 64.0, 8.0, 0.0, noise_trace
        ).square_norm(prompts=train_batch / 8, group_size=8),
        grids=({"signal_square": (0.05, 3.0), "noise_trace": (10.0, 700.0), "train_batch": (64.0, 8192.0)},),
    ),
    "nested_noise/signal": Form(
        shipped=lambda prompts, sq_norm_group, sq_norm_batch: (
            _nested(prompts, 8, 90.0, sq_norm_group, sq_norm_batch).signal_square
        ),
        grids=({k: NORMS[k] for k in ("prompts", "sq_norm_group", "sq_norm_batch")},),
        keep=lambda **v: abs(v["prompts"] * v["sq_norm_batch"] / v["sq_norm_group"] - 1) > 0.1,
    ),
    "nested_noise/response_variance": Form(
        shipped=lambda group_size, sq_norm_response, sq_norm_group: (
            _nested(64, group_size, sq_norm_response, sq_norm_group, 2.0).response_variance
        ),
        grids=({k: NORMS[k] for k in ("group_size", "sq_norm_response", "sq_norm_group")},),
    ),
    "nested_noise/prompt_variance": Form(
        shipped=lambda sq_norm_response, sq_norm_group, sq_norm_batch, **v: (
            _nested(v["prompts"], v["group_size"], sq_norm_response, sq_norm_group, sq_norm_batch).prompt_variance
        ),
        grids=(NORMS,),
    ),
    "nested_noise/group_trace": Form(
        shipped=lambda prompts, group_size, sq_norm_group, sq_norm_batch: (
            _nested(prompts, group_size, 90.0, sq_norm_group, sq_norm_batch).group_trace
        ),
        grids=({k: NORMS[k] for k in ("prompts", "group_size", "sq_norm_group", "sq_norm_batch")},),
    ),
    "nested_noise/square_norm": Form(
        shipped=lambda **v: _nested_moments(**v).square_norm(prompts=v["prompts"], group_size=v["group_size"]),
        grids=(NESTED,),
    ),
    "nested_noise/noise_scale": Form(
        shipped=lambda **v: _nested_moments(prompts=64.0, **v).responses.noise_scale,
        grids=({k: NESTED[k] for k in NESTED if k != "prompts"},),
    ),
    "nested_noise/mixed_trace": Form(
        shipped=lambda **v: _nested_moments(signal_square=1.0, **v).mixed_trace(),
        grids=({k: NESTED[k] for k in NESTED if k != "signal_square"},),
    ),
    "mean_norm/bias": Form(shipped=mean_norm_bias, grids=({"variation": DECADES},)),
    "adam_state/ratio": Form(
        shipped=_adam_state,
        grids=({"beta1": (0.0625, 0.5, 0.9, 0.99), "relative_batch": (1e-6, 0.03, 1.0, 40.0, 1e6)},),
    ),
    "group_baseline/plain": Form(
        shipped=lambda right, group_count: group_signal(int(group_count), pass_rate=0.3, normalised=False),
        grids=({"right": (1,), "group_count": (2, 3)},),
    ),
    "group_baseline/normalised": Form(
        shipped=lambda right, group_count: group_signal(int(group_count), pass_rate=0.3),
        grids=({"right": (1,), "group_count": (2, 3)},),
    ),
    "mccandlish/ratio": Form(
        shipped=_hyperbola, grids=({"train_batch": BATCHES, "reference_batch": BATCHES, "noise_scale": NOISE},)
    ),
    "mccandlish/relative_gain": Form(
        shipped=lambda train_batch, noise_scale: (
            1 / progress.step_cost(train_batch, noise_scale=noise_scale, optimizer="sgd")
        ),
        grids=({"train_batch": BATCHES, "noise_scale": NOISE},),
    ),
    "mccandlish/updates": Form(
        shipped=lambda updates_min, train_batch, noise_scale: (
            updates_min * progress.step_cost(train_batch, noise_scale=noise_scale, optimizer="sgd")
        ),
        grids=({"updates_min": (3.0, 1e4), "train_batch": BATCHES, "noise_scale": NOISE},),
    ),
    "mccandlish/responses": Form(
        shipped=lambda updates_min, train_batch, noise_scale: (
            updates_min * (1.0 + noise_scale) * _hyperbola(train_batch, 1.0, noise_scale)
        ),
        grids=({"updates_min": (3.0, 1e4), "train_batch": BATCHES, "noise_scale": NOISE},),
    ),
    "mccandlish/trade_off": Form(
        # From r_N alone, against a reference batch so small that its cost is the least.
        shipped=lambda: (
            (float(_hyperbola(700.0, 1e-13, 900.0)) * 900.0 / 700.0 - 1) * (float(_hyperbola(700.0, 1e-13, 900.0)) - 1)
        ),
        grids=({},),
    ),
    "adam_drift/usable_slope": Form(
        shipped=lambda relative_batch: _adam(relative_batch), grids=({"relative_batch": RELATIVE},)
    ),
    "adam_drift/signal_function": Form(
        shipped=lambda relative_batch: progress.signal_function(relative_batch), grids=({"relative_batch": RELATIVE},)
    ),
    "adam_drift/epsilon_slope": Form(
        shipped=lambda relative_batch, epsilon: mechanism.epsilon_slope(relative_batch, epsilon=epsilon),
        grids=({"relative_batch": RELATIVE, "epsilon": (1e-12, 0.03, 1.0, 1e6)},),
    ),
    "adam_drift/step_cost": Form(
        shipped=lambda relative_batch, curvature_ratio: progress.step_cost(
            relative_batch, noise_scale=1.0, curvature_ratio=curvature_ratio
        ),
        grids=({"relative_batch": RELATIVE, "curvature_ratio": (1e-3, 0.2, 1.0, 5.0, 1e3)},),
    ),
    "adam_coordinates/signal_function": Form(
        shipped=lambda relative_batch, snr_shape: progress.signal_function(relative_batch, snr_shape=snr_shape),
        grids=({"relative_batch": RELATIVE, "snr_shape": SHAPES},),
    ),
    "adam_coordinates/definition": Form(
        shipped=lambda relative_batch, snr_shape: progress.signal_function(relative_batch, snr_shape=snr_shape),
        grids=({"relative_batch": (1e-4, 0.5, 8.0, 1e3), "snr_shape": (1.0, 2.0, 7.5)},),
    ),
    "adam_coordinates/small": Form(
        shipped=lambda relative_batch, snr_shape: progress.signal_function(relative_batch, snr_shape=snr_shape),
        grids=({"relative_batch": (1e-12, 1e-8, 1e-6), "snr_shape": SHAPES},),
    ),
    "adam_coordinates/large": Form(
        shipped=lambda snr_shape: _adam(1e15, snr_shape), grids=({"snr_shape": (1.0, 2.0, 7.5, 40.0)},)
    ),
    "adam_coordinates/drift": Form(
        shipped=lambda relative_batch: progress.signal_function(relative_batch, snr_shape=math.inf),
        grids=({"relative_batch": RELATIVE},),
    ),
    "adam_coordinates/first_order_factor": Form(
        shipped=lambda snr_shape: (1 - progress.signal_function(1e-7, snr_shape=snr_shape)) / 0.5e-7,
        grids=({"snr_shape": SHAPES},),
        rel=1e-5,  # a first order, read at a finite batch
    ),
    "sample_cost/ratio": Form(shipped=_at_rate, grids=(RATE,), keep=_converges),
    "sample_cost/tuned_rate": Form(
        shipped=_tuned_rate, grids=({k: RATE[k] for k in ("lr_fraction", "slope_ratio", "cost_ratio")},)
    ),
    "sample_cost/tuned": Form(shipped=_tuned, grids=(INVARIANT,)),
    "sample_cost/tuned_drift": Form(
        shipped=_hyperbola,
        grids=({"train_batch": BATCHES, "reference_batch": BATCHES, "noise_scale": NOISE, "lr_fraction": FRACTIONS},),
    ),
    "sample_cost/slow": Form(
        shipped=lambda **v: _at_rate(lr_fraction=0.0, **v),
        grids=({k: RATE[k] for k in ("batch_ratio", "learning_rate_ratio", "slope_ratio")},),
    ),
    "penalty/factor": Form(
        shipped=lambda relative_rate, penalty_shape: np.exp(
            progress.log_progress_factor(relative_rate, penalty_shape=penalty_shape)
        ),
        grids=(
            {
                "relative_rate": (1e-12, 1e-3, 0.5, 1.0, 1.9, 30.0),
                "penalty_shape": (-1.0, -0.5, -1e-3, -1e-9, 1e-9, 0.2, 0.8),
            },
        ),
        keep=lambda relative_rate, penalty_shape: 1 + penalty_shape * relative_rate / (1 - penalty_shape) > 1e-3,
    ),
    "penalty/quadratic": Form(
        shipped=lambda relative_rate: np.exp(progress.log_progress_factor(relative_rate)),
        grids=({"relative_rate": (1e-12, 0.3, 1.0, 1.9, 1.999999)},),
    ),
    "penalty/exponential": Form(
        shipped=lambda relative_rate: np.exp(progress.log_progress_factor(relative_rate, penalty_shape=0.0)),
        grids=({"relative_rate": (1e-12, 0.3, 1.0, 1.9, 30.0)},),
    ),
    "penalty/ratio": Form(
        shipped=_at_rate,
        grids=(
            {
                "batch_ratio": (0.25, 64.0),
                "learning_rate_ratio": (0.01, 1.0, 8.0),
                "lr_fraction": (1e-6, 0.3, 1.7),
                "slope_ratio": (0.03, 0.7, 1.0),
                "cost_ratio": (0.2, 1.0),
                "penalty_shape": (-1.0, -0.5, 1e-6, 0.2, 0.8),
            },
        ),
        keep=_softly,
    ),
    "rate_rules/sqrt": Form(
        shipped=lambda batch_ratio: lr_rule.learning_rate_ratio(batch_ratio, lr_rule="sqrt"),
        grids=({"batch_ratio": X},),
    ),
    "rate_rules/linear": Form(
        shipped=lambda batch_ratio: lr_rule.learning_rate_ratio(batch_ratio, lr_rule="linear"),
        grids=({"batch_ratio": X},),
    ),
    "rate_rules/invariant": Form(shipped=_invariant_slow, grids=(COST,)),
    "rate_rules/cost_fixed": Form(shipped=_slow("fixed"), grids=(COST,)),
    "rate_rules/cost_sqrt": Form(shipped=_slow("sqrt"), grids=(COST,)),
    "rate_rules/cost_linear": Form(shipped=_slow("linear"), grids=(COST,)),
    "invariant_rate/rate": Form(
        shipped=lambda batch_ratio, **v: lr_rule.learning_rate_ratio(batch_ratio, lr_rule="invariant", **v),
        grids=(INVARIANT,),
        keep=lambda **v: _room(**v) < 0.999,
    ),
    "trust_region/ceiling": Form(
        shipped=mechanism.trust_region_ceiling, grids=({"kl_max": DECADES, "kl_reference": DECADES},)
    ),
    "companions/proximal_beta": Form(
        shipped=lambda batch_ratio, reference_beta: (
            companions.adam_companions(batch_ratio, proximal_beta=reference_beta).proximal_beta
        ),
        grids=({"batch_ratio": X, "reference_beta": (0.125, 0.9, 0.98, 0.9999)},),
    ),
    "companions/beta": Form(
        shipped=lambda batch_ratio, reference_beta: companions.adam_companions(batch_ratio, beta2=reference_beta).beta2,
        grids=({"batch_ratio": X, "reference_beta": (0.125, 0.9, 0.98, 0.9999)},),
        keep=lambda batch_ratio, reference_beta: batch_ratio * (1 - reference_beta) < 0.999,
    ),
    "companions/centre": Form(
        # One update more or less matters by the mean age of what momentum averages.
        shipped=lambda beta1: mechanism.few_updates_factor(1.0, reference_updates=1e300, beta1=beta1, loss=1.0) - 1,
        grids=({"beta1": (0.125, 0.5, 0.9, 0.9999)},),
    ),
    "optimal_batch/tuned": Form(shipped=_optimum("tuned"), grids=(LAW,)),
    "optimal_batch/sqrt": Form(shipped=_optimum("sqrt"), grids=(LAW,)),
    "optimal_batch/fixed": Form(shipped=_optimum("fixed"), grids=(LAW,)),
    "optimal_batch/least_time": Form(shipped=_least_time, grids=({**LAW, "reference_batch": (64.0, 4096.0)},)),
    "optimal_batch/excess": Form(
        shipped=_excess, grids=({"factor": (1e-3, 0.5, 0.9, 1.1, 2.0, 1e4), "root_ratio": (1e-3, 0.3, 1.0, 5.0)},)
    ),
    "optimal_batch/worst": Form(shipped=time_to_target.worst_penalty, grids=({"factor": DECADES},)),
    "optimal_batch/factor_of_two": Form(shipped=lambda: time_to_target.worst_penalty(2.0), grids=({},)),
    "optimal_batch/plateau": Form(
        shipped=lambda root_ratio, tolerance: time_to_target.plateau_factor(
            noise_scale=64.0,
            update_time_intercept=64.0 * root_ratio**2,
            update_time_slope=1.0,
            tolerance=tolerance,
        ),
        grids=({"root_ratio": (1 / 1024, 0.25, 1.0, 8.0, 1024.0), "tolerance": (1e-12, 1e-6, 0.05, 1.0, 1e3)},),
    ),
    "regimes/best": Form(
        shipped=lambda amortisation_batch, noise_scale: time_to_target.optimal_train_batch(
            noise_scale=noise_scale, update_time_intercept=amortisation_batch, update_time_slope=1.0
        ),
        grids=({"amortisation_batch": (1e-3, 348.0, 1e6), "noise_scale": NOISE},),
    ),
    "regimes/critical_gen": Form(
        shipped=lambda amortisation_batch, plateau_share: pipeline.critical_gen_batch(
            gen_time_intercept=amortisation_batch * 0.5, gen_time_slope=0.5
        ),
        grids=({"amortisation_batch": (1e-3, 348.0, 1e6), "plateau_share": (pipeline.PLATEAU_SHARE,)},),
    ),
    "regimes/critical_train": Form(
        shipped=lambda noise_scale, tolerance: sample_cost.critical_train_batch(
            reference_batch=noise_scale, noise_scale=noise_scale, lr_fraction=1.0, lr_rule="tuned"
        ),
        grids=({"noise_scale": (10.0, 1500.0, 4e4), "tolerance": (sample_cost.DEPARTURE - 1,)},),
        rel=1e-6,  # its small-batch limit is taken at 1e-8 of the noise scale
    ),
    "touched_experts/touched": Form(
        shipped=lambda tokens, experts, per_token: touched_experts(
            tokens, experts=int(experts), per_token=int(per_token)
        ),
        grids=({"tokens": (1, 2, 64, 4096), "experts": (8, 128, 384), "per_token": (1, 2, 8)},),
    ),
    "kv_capacity/concurrency": Form(
        shipped=lambda replicas, tensor_parallel, **v: memory.concurrency_max(
            gpus=replicas * tensor_parallel, tensor_parallel=tensor_parallel, **v
        )[0],
        grids=(
            {
                "replicas": (1, 4),
                "tensor_parallel": (1, 8),
                "memory": (2.0**36, 2.0**38),
                "memory_share": (0.5, 0.875),
                "weight_bytes": (2.0**34,),
                # Whole numbers of responses, so that rounding down to one does nothing.
                "kv_bytes_per_token": (2.0**9,),
                "context_length": (2.0**4,),
            },
        ),
    ),
    "kv_capacity/context_equal": Form(
        shipped=lambda prompt_tokens, response_tokens: (
            Lengths(prompt_mean=prompt_tokens, response_mean=response_tokens).context_in_flight
        ),
        grids=({"prompt_tokens": (1.0, 300.0, 1e5), "response_tokens": (10.0, 4000.0, 1e5)},),
    ),
    "decode_steps/total": Form(
        shipped=_decode,
        grids=(
            {
                "decode_step_time": (0.01,),
                "context_time": (2e-8,),
                "context_sum": (1000.0, 64000.0),
                "decode_steps": (1, 2, 700),
                "rows": (1, 10),
                "one_token": (1,),
            },
        ),
    ),
    "generation/plateau": Form(
        shipped=lambda concurrency_max, **v: pipeline.capped_throughput(concurrency_max, **v),
        grids=({"concurrency_max": BATCHES, "gen_time_intercept": (1e-3, 216.0), "gen_time_slope": (1e-6, 0.415)},),
    ),
    "generation/critical": Form(
        shipped=lambda plateau_share, **v: pipeline.critical_gen_batch(**v),
        grids=(
            {
                "plateau_share": (pipeline.PLATEAU_SHARE,),
                "gen_time_intercept": (1e-3, 216.0, 1e6),
                "gen_time_slope": (1e-6, 0.25),
                "gen_throughput_max": (1e-3, 1.1, 3.9),
            },
        ),
    ),
    "generation/critical_free": Form(
        shipped=lambda plateau_share, **v: pipeline.critical_gen_batch(**v),
        grids=(
            {
                "plateau_share": (pipeline.PLATEAU_SHARE,),
                "gen_time_intercept": (1e-3, 216.0, 1e6),
                "gen_time_slope": (1e-6, 0.25, 1e3),
            },
        ),
    ),
    "staleness/in_flight": Form(
        shipped=lambda in_flight, train_batch: mechanism.rollout_lag(in_flight=in_flight, rollout_batch=train_batch),
        grids=({"in_flight": DECADES, "train_batch": BATCHES},),
    ),
    "staleness/lag": Form(
        shipped=mechanism.rollout_lag,
        grids=({"updates_per_rollout": (1, 4, 32), "in_flight": DECADES, "rollout_batch": BATCHES},),
    ),
    "noise_floor/factor": Form(
        shipped=lambda start, target_distance, floor, reference_floor: mechanism.noise_floor_factor(
            start=start, target=target_distance, floor=floor, reference_floor=reference_floor
        ),
        grids=(
            {
                "start": (1.0, 1.0 + 2.0**-40, 3.0, 1e6),
                "target_distance": (1e-6, 0.5, 1.0, 1.0 + 2.0**-41),
                "floor": (1e-12, 1e-7, 0.3, 0.49999),
                "reference_floor": (1e-12, 0.1),
            },
        ),
        keep=lambda **v: v["start"] > v["target_distance"] > max(v["floor"], v["reference_floor"]),
    ),
    "few_updates/factor": Form(
        shipped=lambda updates, **v: mechanism.few_updates_factor(updates, **v),
        grids=(
            {
                "updates": (1.0, 19.0, 1e6),
                "reference_updates": (1.0, 542.0, 1e6),
                "beta1": (0.125, 0.9, 0.999),
                "loss": (0.35, 1.0),
            },
        ),
    ),
    "kl_penalty/factor": Form(
        shipped=lambda share, reference_share: mechanism.kl_penalty_factor(share, reference_share=reference_share),
        grids=({"share": (1e-12, 0.3, 0.999), "reference_share": (1e-12, 0.3, 0.999)},),
    ),
}
"""By derivation and result."""
