r"""Strategies and checks for tests of your own: models of batch scaling, or numbers that you measured.

Checks take plain numbers. Where these contradict what must hold, an AssertionError says which numbers contradict what
and where to look; numbers that cannot be judged (NaN, text, unequal lengths) are an `InputError` instead.

    check_criterion    T/T_0 = r_N/r_q for every batch, so that T < T_0 exactly where r_q > r_N        an identity
    check_invariance   curves of several batches agree at equal responses                             a claim
    check_sublinear    x times the batch takes at most x times as long: throughput does not fall       a claim
    check_unimodal     over the batches, time falls to its least and then rises                       a claim

The identity can only fail where the three numbers were taken over different stretches of the run. Claims hold over a
range of batches and within a tolerance that the numbers' own scatter sets: that of repeats, two standard errors, say.

Strategies draw what the package's functions take: `recipes`, `specifications`, `step_laws`, `learning_laws`,
`noise_scales`, `curves` and `worlds`. Their numbers lie within the bounds of the package's own types; sizes are
log-uniform, since batches and noise scales span decades.

Needs Hypothesis: the extra `testing`, ``pip install ".[testing]"`` in a clone. `docs/testing.md` has a test file that
runs on a CSV.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296 (the criterion; invariance up to a critical batch; sublinear collection time).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

try:
    from hypothesis import strategies as st
except ImportError as missing:  # pragma: no cover
    raise ImportError("batchsim.testing needs Hypothesis: install batchsim with its extra 'testing'") from missing

from batchsim.errors import InputError
from batchsim.learning.curve.families import FAMILIES, Curve
from batchsim.specs.gpu import GPU
from batchsim.specs.lengths import Lengths
from batchsim.specs.model import Model
from batchsim.specs.recipe import Recipe

if TYPE_CHECKING:
    from batchsim.learning.worlds.quadratic import Quadratic

ROUNDING = 1e-9
"""Relative difference that rounding alone may make."""
MEMORY_SHARE = 0.9
"""Share of a GPU's memory within which the weights of `specifications` fit."""

Floats = NDArray[np.float64]


class Specification(NamedTuple):
    """A model on GPUs that hold it, and the lengths of its responses.

    `tensor_parallel` GPUs hold the weights in `MEMORY_SHARE` of their memory, and at least one response besides.
    """

    model: Model
    gpu: GPU
    lengths: Lengths
    tensor_parallel: int


# -- strategies -----------------------------------------------------------------------------------------


def _log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(lambda v: min(max(math.exp(v), low), high))


@st.composite
def recipes(draw: st.DrawFn, *, prompts_max: int = 4096, group_size_max: int = 64, updates_max: int = 8) -> Recipe:
    """Recipes whose batches are whole numbers.

    Parameters
    ----------
    prompts_max, group_size_max, updates_max : int
        Most prompts per update, responses per prompt, and updates per pass over a rollout batch.

    Returns
    -------
    strategy of Recipe
    """
    minibatches, epochs = draw(st.integers(1, updates_max)), draw(st.integers(1, 3))
    rate = draw(st.none() | _log_uniform(1e-8, 1e-2))
    ceiling = None if rate is None else draw(st.none() | st.floats(1, 16).map(lambda above: rate * above))
    return Recipe(
        prompts=draw(st.integers(1, prompts_max)) * minibatches,
        group_size=draw(st.integers(1, group_size_max)),
        updates_per_rollout=minibatches * epochs,
        epochs=epochs,
        gen_ratio=draw(st.floats(1, 4)),
        learning_rate=rate,
        lr_rule=draw(st.sampled_from(("fixed", "sqrt", "linear", "tuned", "invariant"))),
        max_learning_rate=ceiling,
        optimizer=draw(st.sampled_from(("adam", "sgd"))),
    )


@st.composite
def specifications(draw: st.DrawFn) -> Specification:
    """Models, GPUs and lengths that go together.

    Returns
    -------
    strategy of Specification
    """
    memory = draw(_log_uniform(16e9, 300e9))
    tensor_parallel = 2 ** draw(st.integers(0, 4))
    room = MEMORY_SHARE * memory * tensor_parallel
    lengths = Lengths(
        prompt_mean=draw(_log_uniform(16, 8000)),
        response_mean=draw(_log_uniform(16, 16_000)),
        response_spread=draw(st.floats(0, 1.5)),
    )
    weights = draw(st.floats(0.02, 0.8)) * room
    context = (lengths.prompt_mean or 0.0) + (lengths.response_mean or 0.0)
    most = min(1e6, (room - weights) / context)
    bandwidth = draw(_log_uniform(3e11, 1e13))
    return Specification(
        model=Model(weight_bytes=weights, kv_bytes_per_token=draw(_log_uniform(most / 1000, most))),
        gpu=GPU(
            name="drawn",
            count=tensor_parallel * draw(st.integers(1, 64)),
            memory=memory,
            memory_bandwidth=bandwidth,
            peak_flops=bandwidth * draw(st.floats(50, 600)),
            link_bandwidth=draw(_log_uniform(3e10, 2e12)),
            price=draw(st.floats(0.1, 20)),
        ),
        lengths=lengths,
        tensor_parallel=tensor_parallel,
    )


@st.composite
def step_laws(draw: st.DrawFn) -> dict[str, float]:
    """Affine laws of the rollout-step time, as arguments of `step_time`.

    Returns
    -------
    strategy of dict
        update_time_intercept [s] and update_time_slope [s/response].
    """
    return {"update_time_intercept": draw(_log_uniform(0.1, 1e4)), "update_time_slope": draw(_log_uniform(1e-4, 10))}


def noise_scales() -> st.SearchStrategy[float]:
    """Noise scales from 10 to 100,000 responses, which holds every one measured in RL.

    Returns
    -------
    strategy of float [responses]
    """
    return _log_uniform(10, 1e5)


@st.composite
def learning_laws(draw: st.DrawFn) -> dict[str, float]:
    """Laws of sample cost, as arguments of `sample_cost_ratio`.

    Returns
    -------
    strategy of dict
        noise_scale [responses], snr_shape, lr_fraction (below the best rate) and curvature_ratio [1].
    """
    return {
        "noise_scale": draw(noise_scales()),
        "snr_shape": draw(st.just(math.inf) | _log_uniform(0.2, 50)),
        "lr_fraction": draw(st.floats(0.01, 0.99)),
        "curvature_ratio": draw(_log_uniform(0.2, 5)),
    }


@st.composite
def curves(draw: st.DrawFn, *, families: Sequence[str] = tuple(FAMILIES)) -> Curve:
    """Learning curves that rise.

    Parameters
    ----------
    families : sequence of str
        Of `learning.curve.families`.

    Returns
    -------
    strategy of Curve
    """
    start = draw(st.floats(0, 0.6))
    return Curve(
        family=draw(st.sampled_from(list(families))),
        start=start,
        asymptote=start + draw(st.floats(0.05, 0.39)),
        scale=draw(_log_uniform(1e3, 1e7)),
        exponent=draw(st.floats(0.3, 3)),
    )


@st.composite
def worlds(draw: st.DrawFn, *, dim_max: int = 30) -> Quadratic:
    """Noisy quadratic worlds, whose optimizers can be followed exactly.

    Parameters
    ----------
    dim_max : int
        Most coordinates.

    Returns
    -------
    strategy of Quadratic
    """
    from batchsim.learning.worlds.quadratic import power_law  # compiles

    return power_law(
        draw(st.integers(1, dim_max)),
        exponent=draw(st.floats(0, 2)),
        noise=draw(_log_uniform(0.01, 100)),
        random_start=draw(st.booleans()),
    )


# -- checks ---------------------------------------------------------------------------------------------


def check_criterion(
    sample_cost_ratio: ArrayLike,
    throughput_ratio: ArrayLike,
    time: ArrayLike,
    *,
    reference_time: float = 1.0,
    tolerance: float = ROUNDING,
) -> None:
    """Check that T/T_0 = r_N/r_q, and so that a batch is faster exactly where r_q > r_N.

    Parameters
    ----------
    sample_cost_ratio, throughput_ratio : array_like, () or (batch,) [1]
        r_N and r_q relative to one reference.
    time : array_like, () or (batch,) [s]
        T, or T/T_0 if no reference time is given.
    reference_time : float [s]
        T_0.
    tolerance : float [1]
        Difference allowed between T/T_0 and r_N/r_q, relative to the latter: for measured numbers, what their scatter
        or their printed digits make.

    Raises
    ------
    AssertionError
        Where the three contradict each other, with the numbers of the worst batch.
    InputError
        For lengths that differ, or values that are not positive and finite.

    Examples
    --------
    >>> check_criterion([1, 1, 1.6], [1, 1.41, 1.30], [42840, 30312, 52690], reference_time=42840, tolerance=0.01)
    >>> check_criterion(1.6, 1.30, 0.95)
    Traceback (most recent call last):
    ...
    AssertionError: r_N = 1.6 and r_q = 1.3 give T/T_0 = 1.231, but T/T_0 = 0.95: 22.8 % less (tolerance 1e-07 %)...
    """
    tolerance = _tolerance(tolerance, sample_cost_ratio, throughput_ratio, time)
    named = {"sample_cost_ratio": sample_cost_ratio, "throughput_ratio": throughput_ratio, "time": time}
    values = {name: np.atleast_1d(_numbers(name, value)) for name, value in named.items()}
    _same_length(values)
    start = _numbers("reference_time", reference_time)
    if start.ndim:
        raise InputError(f"reference_time has shape {start.shape}; it is the one time T_0 that others are relative to")
    r_n, r_q = values["sample_cost_ratio"], values["throughput_ratio"]
    log_expected, log_ratio = np.log(r_n) - np.log(r_q), np.log(values["time"]) - np.log(start)
    with np.errstate(over="ignore"):
        outside = ~_within(np.abs(np.expm1(log_ratio - log_expected)), tolerance)
    if not outside.any():
        return
    i = int(np.argmax(np.where(outside, np.abs(log_ratio - log_expected), -1.0)))
    where = f"batch {i}: " if r_n.size > 1 else ""
    expected, ratio, apart = _exp(log_expected[i]), _exp(log_ratio[i]), _exp(log_ratio[i] - log_expected[i]) - 1
    verdict = ""
    if log_expected[i] * log_ratio[i] < 0:
        sign, said = (">", "faster") if r_q[i] > r_n[i] else ("<", "slower")
        other = "slower" if said == "faster" else "faster"
        verdict = f" r_q {sign} r_N says {said} than the reference, the time says {other}."
    if r_n.size > 1 and np.ptp(log_ratio - log_expected) <= 2 * (tolerance + ROUNDING):
        verdict += (
            " All batches are off by this factor: reference_time is missing, of another recipe or in another unit."
        )
    raise AssertionError(
        f"{where}r_N = {r_n[i]:.4g} and r_q = {r_q[i]:.4g} give T/T_0 = {expected:.4g}, but T/T_0 = {ratio:.4g}: "
        f"{_percent(apart)} (tolerance {100 * tolerance:.3g} %).{verdict} T = N*/q is an identity, so the "
        "three were not taken over one stretch of the run: look for time with evaluation beside a throughput without "
        "it, generated responses beside kept ones, another target, another reference, or another unit of time"
    )


def check_invariance(
    curves: Mapping[Any, tuple[ArrayLike, ArrayLike]], tolerance: float, *, reference: Hashable | None = None
) -> None:
    """Check that learning curves of several batches agree at equal responses.

    Parameters
    ----------
    curves : mapping of batch to (responses, score), each (evaluation,) [responses], [1]
        Kept responses used at each evaluation, rising, and the validation score.
    tolerance : float [1]
        Largest gap allowed, in units of the score.
    reference : hashable or None
        The batch that others are compared with; the first one if None.

    Raises
    ------
    AssertionError
        Where a curve leaves the band around the reference, with the largest gap and what it means in responses.
    InputError
        For fewer than two curves, an unknown reference, responses that do not rise, curves that share no
        stretch, or values that are not finite.

    Notes
    -----
    Both curves are read at all evaluations within the stretch that they share, by linear interpolation. Gaps at one
    batch's evaluations scatter; a tolerance below that scatter finds departures by chance.

    Examples
    --------
    >>> n = [1000, 2000, 3000]
    >>> check_invariance({256: (n, [0.2, 0.3, 0.4]), 512: ([2000, 3000], [0.295, 0.4])}, 0.01)
    >>> check_invariance({256: (n, [0.2, 0.3, 0.4]), 2048: ([2000, 3000], [0.21, 0.3])}, 0.01)
    Traceback (most recent call last):
    ...
    AssertionError: at 3,000 responses the score of 2048 is 0.3 and that of 256 is 0.4: a gap of -0.1, above 0.01. ...
    """
    tolerance = _tolerance(tolerance)
    if not isinstance(curves, Mapping) or len(curves) < 2:
        raise InputError(
            "curves must map two or more batches to (responses, score)", remedy="{256: (n, score), 512: (n, score)}"
        )
    read = {batch: _curve(batch, curve) for batch, curve in curves.items()}
    first = next(iter(read)) if reference is None else reference
    if first not in read:
        raise InputError(f"reference {first!r} has no curve", remedy=f"known: {', '.join(map(str, read))}")
    n0, j0 = read[first]
    worst: tuple[float, float, Any, float, float] | None = None
    for batch, (n, j) in read.items():
        if batch == first:
            continue
        low, high = max(n[0], n0[0]), min(n[-1], n0[-1])
        if low > high:
            raise InputError(
                f"the curves of {batch} and {first} share no stretch: {n[0]:,.0f} to {n[-1]:,.0f} and {n0[0]:,.0f} to "
                f"{n0[-1]:,.0f} responses"
            )
        at = np.unique(np.concatenate([n, n0]))
        at = at[(at >= low) & (at <= high)]
        ours, theirs = np.interp(at, n, j), np.interp(at, n0, j0)
        i = int(np.argmax(np.abs(ours - theirs)))
        if worst is None or abs(ours[i] - theirs[i]) > abs(worst[3] - worst[4]):
            worst = (abs(ours[i] - theirs[i]), float(at[i]), batch, float(ours[i]), float(theirs[i]))
    assert worst is not None
    gap, where, batch, score, wanted = worst
    if gap <= tolerance * (1 + ROUNDING):
        return
    behind, ahead = (batch, first) if score < wanted else (first, batch)
    if isinstance(behind, Real) and isinstance(ahead, Real) and behind < ahead:
        cause = f"{behind} is the smaller batch, which no critical training batch sets back: look for what else differs"
    else:
        cause = (
            f"{behind} is beyond the critical training batch under this learning-rate rule, or the runs differ in "
            "something else"
        )
    cost = _in_responses(read[first], batch, first, score, where)
    raise AssertionError(
        f"at {where:,.0f} responses the score of {batch} is {score:.4g} and that of {first} is {wanted:.4g}: a gap of "
        f"{score - wanted:+.3g}, above {tolerance:g}. {cost}Equal responses do not teach the same: {cause} (rate, "
        "evaluation, seed)"
    )


def check_sublinear(batches: ArrayLike, times: ArrayLike, *, tolerance: float = ROUNDING) -> None:
    """Check that x times the batch takes at most x times as long, so that throughput never falls.

    Parameters
    ----------
    batches : array_like, (batch,) [responses]
        Distinct, in any order.
    times : array_like, (batch,) [s]
        Of a rollout step, or of its generation; in any one unit.
    tolerance : float [1]
        Relative fall of throughput that scatter may make.

    Raises
    ------
    AssertionError
        Where a larger batch has a lower throughput, with the two batches whose fall is largest.
    InputError
        For fewer than two batches, repeated ones, lengths that differ, or values that are not positive and finite.

    Examples
    --------
    >>> check_sublinear([256, 1024], [39, 68])
    >>> check_sublinear([256, 512, 1024], [39, 50, 110])
    Traceback (most recent call last):
    ...
    AssertionError: 2 times the batch (512 to 1024) takes 2.2 times as long (50 to 110): throughput falls from...
    """
    tolerance = _tolerance(tolerance, batches, times)
    b, t = _over_batches(batches, times, least=2)
    log_speed = np.log(b) - np.log(t)
    fall = np.exp(log_speed - np.maximum.accumulate(log_speed))
    j = int(np.argmin(fall))
    if _within(1 - fall[j], tolerance):
        return
    i = int(np.argmax(log_speed[:j]))
    before, after = _exp(log_speed[i]), _exp(log_speed[j])
    larger, longer = _exp(math.log(b[j]) - math.log(b[i])), _exp(math.log(t[j]) - math.log(t[i]))
    raise AssertionError(
        f"{larger:.3g} times the batch ({b[i]:g} to {b[j]:g}) takes {longer:.3g} times as long ({t[i]:g} to "
        f"{t[j]:g}): throughput falls from {before:.4g} to {after:.4g}, {_percent(fall[j] - 1)} "
        f"(tolerance {100 * tolerance:.3g} %). Shared time tau_0 >= 0 and a constant time per response cannot do this: "
        "look for preemption at full KV memory, longer responses, more filtering, or cold steps at the larger batch"
    )


def check_unimodal(batches: ArrayLike, times: ArrayLike, *, tolerance: float = ROUNDING) -> None:
    """Check that time to target falls with the batch to its least value and then rises.

    Parameters
    ----------
    batches : array_like, (batch,) [responses]
        Distinct, in any order.
    times : array_like, (batch,) [s]
        Time to target, or relative to one batch; infinite where training diverges.
    tolerance : float [1]
        Relative height of a bump that scatter may make.

    Raises
    ------
    AssertionError
        Where a batch is slower than a smaller AND a larger one, with the three of the highest bump.
    InputError
        For fewer than three batches, repeated ones, lengths that differ, or values that are not positive.

    Examples
    --------
    >>> check_unimodal([1024, 4096, 8192, 16384], [1.0, 0.74, 0.71, 1.23])
    >>> check_unimodal([1024, 4096, 8192, 16384], [1.0, 0.74, 0.81, 0.72], tolerance=0.05)
    Traceback (most recent call last):
    ...
    AssertionError: time rises from 0.74 (batch 4096) to 0.81 (8192) and falls to 0.72 (16384): a bump of 9.46 % ...
    """
    tolerance = _tolerance(tolerance, batches, times)
    b, t = _over_batches(batches, times, least=3, endless=True)
    left = np.minimum.accumulate(t)
    right = np.minimum.accumulate(t[::-1])[::-1]
    edge = np.maximum(left, right)
    with np.errstate(invalid="ignore", over="ignore"):
        bump = np.where(t > edge, t / edge - 1, 0.0)
    j = int(np.argmax(bump))
    if _within(bump[j], tolerance):
        return
    i, k = int(np.argmin(t[: j + 1])), j + int(np.argmin(t[j:]))
    raise AssertionError(
        f"time rises from {t[i]:.4g} (batch {b[i]:g}) to {t[j]:.4g} ({b[j]:g}) and falls to {t[k]:.4g} ({b[k]:g}): a "
        f"bump of {100 * bump[j]:.3g} % (tolerance {100 * tolerance:.3g} %). A sample cost that rises with the batch "
        "and an affine step time have one least time: look for an unlucky seed, a coarse evaluation grid, another "
        "learning-rate rule at one of them, or a step time that jumps (micro-batches, replicas, memory)"
    )


# -- numbers as people pass them --------------------------------------------------------------------------


def _numbers(name: str, value: Any, *, positive: bool = True, endless: bool = False) -> Floats:
    try:
        array = np.asarray(value)
    except ValueError:
        raise InputError(f"{name} is ragged: its rows have different lengths") from None
    if array.dtype.kind not in "iuf":
        shown = f"'{value}'" if isinstance(value, str) else f"of type {array.dtype}"
        raise InputError(f"{name} is {shown}, not numbers", remedy="convert it first; a check does not guess")
    if array.ndim > 1:
        raise InputError(f"{name} has shape {array.shape}", remedy="give one number per batch")
    if not array.size:
        raise InputError(f"{name} is empty: there is nothing to check")
    numbers = array.astype(np.float64)
    if isinstance(value, np.ma.MaskedArray):
        numbers = np.where(np.ma.getmaskarray(value), np.nan, numbers)
    good = np.isfinite(numbers) | (endless & (numbers == np.inf))
    if positive:
        good &= numbers > 0
    if not good.all():
        i = int(np.argmin(good)) if numbers.ndim else 0
        wanted = ("positive" if positive else "") + (" and " if positive and not endless else "")
        wanted += "" if endless else "finite"
        at = f"{name}[{i}]" if numbers.ndim else name
        raise InputError(
            f"{at} is {np.atleast_1d(numbers)[i]:g}, and it must be {wanted}",
            remedy="leave out what is unknown",
        )
    return numbers


def _tolerance(value: Any, *numbers: Any) -> float:
    """The tolerance, or what rounding to the numbers' own type makes if that is more."""
    number = _numbers("tolerance", value, positive=False)
    if number.ndim or number < 0:
        raise InputError(f"tolerance is {value}, and it must be one number that is not negative")
    types = [v.dtype for v in numbers if isinstance(getattr(v, "dtype", None), np.dtype) and v.dtype.kind == "f"]
    return max(float(number), *(4 * float(np.finfo(t).eps) for t in types), 0.0)


def _same_length(values: Mapping[str, Floats]) -> None:
    if len({v.size for v in values.values()}) > 1:
        raise InputError(
            f"lengths differ: {', '.join(f'{name} {v.size}' for name, v in values.items())}",
            remedy="give one value of each per batch",
        )


def _over_batches(batches: Any, times: Any, *, least: int, endless: bool = False) -> tuple[Floats, Floats]:
    """Batches in increasing order, and their times."""
    b, t = np.atleast_1d(_numbers("batches", batches)), np.atleast_1d(_numbers("times", times, endless=endless))
    _same_length({"batches": b, "times": t})
    if b.size < least:
        raise InputError(f"{b.size} batch(es) where the check needs {least} or more")
    order = np.argsort(b)
    b, t = b[order], t[order]
    if (np.diff(b) == 0).any():
        raise InputError(f"batch {b[:-1][np.diff(b) == 0][0]:g} is given twice", remedy="average repeats first")
    return b, t


def _curve(batch: Any, curve: Any) -> tuple[Floats, Floats]:
    if not isinstance(curve, tuple | list | np.ndarray) or len(curve) != 2:
        raise InputError(f"the curve of {batch} is not a pair (responses, score)")
    n = np.atleast_1d(_numbers(f"responses of {batch}", curve[0], positive=False))
    j = np.atleast_1d(_numbers(f"score of {batch}", curve[1], positive=False))
    _same_length({f"responses of {batch}": n, "score": j})
    if (np.diff(n) <= 0).any() or n[0] < 0:
        raise InputError(
            f"responses of {batch} do not rise from 0 on", remedy="give one score per evaluation, in order"
        )
    return n, j


def _within(off: Any, tolerance: float) -> Any:
    # 1.05/1 - 1 exceeds .05 by rounding alone.
    return off <= tolerance + ROUNDING


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _percent(change: float) -> str:
    return f"{100 * abs(change):.3g} % {'less' if change < 0 else 'more'}"


def _in_responses(theirs: tuple[Floats, Floats], batch: Any, first: Any, score: float, where: float) -> str:
    """The gap as a sample cost: where the reference had that score."""
    n, j = theirs
    passed = np.flatnonzero(j >= score)
    if not passed.size or passed[0] == 0 or not (j[passed[0]] > j[passed[0] - 1]):
        return ""
    i = int(passed[0])
    used = n[i - 1] + (n[i] - n[i - 1]) * (score - j[i - 1]) / (j[i] - j[i - 1])
    return f"{first} had that score after {used:,.0f} responses, so {batch} needs {where / used:.2f} times as many. "
