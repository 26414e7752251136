r"""Compiled training of a softmax policy: floats and arrays only, nothing from another file.

`run` is one run: one stream of random numbers, one thread, from the first update to the last, so that results do
not depend on the number of threads, of which each holds no lock. Features are read as float32 and everything else
is float64.

A prompt is a block of A x D features and costs two passes over it, whatever G: logits (A D multiply-adds), and the
gradient, since the G responses of a group enter through the weight of each answer alone,

    g = sum_a w_a phi_a,      w_a = (1/G) sum_j advantage_j [answer_j = a]

Whoever trains once per rollout on its own policy accumulates g while it samples (`fused` in `_rollout`). All else
(several mini-batches and epochs, stale responses, a value function, an unknown number of groups) stores what w is made
of and the log-probabilities of the policy that sampled, and comes back for d log pi/d theta under the present one
(`_stored`):

    g = sum_a u_a phi_a - (sum_a u_a) sum_a pi_a phi_a,      u_a = w_a ratio_a unless clipped

Random numbers are splitmix64, whose state is one word per run.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.int64]

RUNNING, REACHED, DIVERGES, NO_SIGNAL, UNFINISHED = range(5)
REFILL, DROP, KEEP = range(3)
GROUP, MEAN, LEAVE_ONE_OUT = range(3)
CONSTANT, UNIFORM = range(2)
COLUMNS = 13
(
    KEPT, GENERATED, NORM, CHUNK, BATCH, CRITIC_NORM, CRITIC_CHUNK, CRITIC_BATCH, REWARD, LAG, CLIPPED, KEPT_NOW, DONE,
) = range(COLUMNS)  # fmt: skip
EVALUATION = 4
AT, SCORE, SAMPLED, UPDATES = range(EVALUATION)
CHUNKS = 8
ATTEMPTS = 2000
"""Groups sampled per group kept after which a rollout step is given up."""
GOLDEN, MIX_1, MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
S30, S27, S31, S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
UNIT = 2.0**-53


class World(NamedTuple):
    """Prompts: features (N, A, D), offsets (N, A), log-probabilities of the start (N, A), value features (N, V)."""

    features: Singles
    offset: Floats
    start: Floats
    value_features: Singles
    validation: Singles
    validation_offset: Floats
    correct: int
    bound: float


class How(NamedTuple):
    """What all runs share."""

    ppo: bool
    normalise: bool
    advantage: int
    zero_variance: int
    updates: int
    epochs: int
    clip: float
    importance: bool
    lag_law: int
    kl: float
    adam: bool
    beta1: float
    beta2: float
    epsilon: float
    grad_clip: float
    target: float
    sampled: int
    samples: int


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def _mixed(z: np.uint64) -> float:
    """Number in [0, 1) of a state of splitmix64."""
    z = (z ^ (z >> S30)) * MIX_1
    z = (z ^ (z >> S27)) * MIX_2
    z = z ^ (z >> S31)
    return float(z >> S11) * UNIT


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def _uniform(state: NDArray[np.uint64]) -> float:
    state[0] += GOLDEN
    return _mixed(state[0])


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})  # type: ignore[misc,unused-ignore]
def _logits(features: Singles, offset: Floats, theta: Floats, bound: float, logits: Floats, slope: Floats) -> None:
    """Logits of one prompt and, where they are bounded, their derivative by phi . theta."""
    for a in range(features.shape[0]):
        z = 0.0
        for i in range(features.shape[1]):
            z += features[a, i] * theta[i]
        slope[a] = 1.0
        if bound < np.inf:
            t = math.tanh(z / bound)
            z = bound * t
            slope[a] = 1.0 - t * t
        logits[a] = offset[a] + z


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def _softmax(logits: Floats, probability: Floats) -> float:
    """Probabilities; returns the logarithm of their normalisation, so that log p = logit - it."""
    top: float = logits[0]
    for a in range(1, logits.size):
        if logits[a] > top:
            top = logits[a]
    total = 0.0
    for a in range(logits.size):
        probability[a] = math.exp(logits[a] - top)
        total += probability[a]
    for a in range(logits.size):
        probability[a] /= total
    return top + math.log(total)


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def _sample(
    probability: Floats, draws: int, correct: int, count: Floats, cumulative: Floats, state: NDArray[np.uint64]
) -> int:
    """Draw answers, count each, and return how many are among the first `correct`."""
    total = 0.0
    for a in range(probability.size):
        total += probability[a]
        cumulative[a], count[a] = total, 0.0
    good = 0
    word = state[0]
    for _ in range(draws):
        word += GOLDEN
        u = _mixed(word)
        # Without a branch, which could not be predicted; rounding of the last sum is no answer's.
        a = 0
        for k in range(probability.size - 1):
            a += u >= cumulative[k]
        count[a] += 1.0
        good += a < correct
    state[0] = word
    return good


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def _advantages(good: int, draws: int, kind: int) -> tuple[float, float]:
    """Advantage of a correct and of a wrong response in a group."""
    mean = good / draws
    if kind == GROUP:
        spread = math.sqrt(good * (draws - good) / (draws * (draws - 1.0)))
        return (1.0 - mean) / spread, -mean / spread
    scale = 1.0 if kind == MEAN else draws / (draws - 1.0)
    return (1.0 - mean) * scale, -mean * scale


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})  # type: ignore[misc,unused-ignore]
def _add_group(gradient: Floats, weight: Floats, slope: Floats, features: Singles) -> None:
    for a in range(weight.size):
        w = weight[a] * slope[a]
        if w != 0.0:
            for i in range(gradient.size):
                gradient[i] += w * features[a, i]


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})  # type: ignore[misc,unused-ignore]
def _add(gradient: Floats, weight: float, row: Singles) -> None:
    for i in range(gradient.size):
        gradient[i] += weight * row[i]


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def _pull(kl: float, logits: Floats, log_norm: float, probability: Floats, start: Floats, weight: Floats) -> None:
    """Add -kl dKL(pi, pi_start)/dlogit to the weights of a prompt's answers."""
    divergence = 0.0
    for a in range(logits.size):
        divergence += probability[a] * (logits[a] - log_norm - start[a])
    for a in range(logits.size):
        weight[a] -= kl * probability[a] * (logits[a] - log_norm - start[a] - divergence)


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})  # type: ignore[misc,unused-ignore]
def _norms(chunks: Floats, share: Floats, gradient: Floats) -> tuple[float, float]:
    """Join chunk gradients, each of which becomes a mean; squared norm of the whole, mean squared norm of a chunk.

    That mean is weighted by groups: its expectation is then |G|^2 + tr(Sigma)/(B/chunks) also where the groups do not
    divide into equal chunks.
    """
    gradient[:] = 0.0
    total = 0.0
    for c in range(chunks.shape[0]):
        total += share[c]
    small = 0.0
    for c in range(chunks.shape[0]):
        own, part, scale = 0.0, share[c] / total, 1.0 / share[c]
        for i in range(gradient.size):
            mean = chunks[c, i] * scale
            chunks[c, i] = mean
            gradient[i] += part * mean
            own += mean * mean
        small += part * own
    whole = 0.0
    for i in range(gradient.size):
        whole += gradient[i] * gradient[i]
    return whole, small


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})  # type: ignore[misc,unused-ignore]
def _step(
    theta: Floats,
    gradient: Floats,
    first: Floats,
    second: Floats,
    n: int,
    rate: float,
    adam: bool,
    beta1: float,
    beta2: float,
    epsilon: float,
    shrink: float,
) -> float:
    """One ascent step; the gradient is scaled by `shrink`. Returns the squared norm of what results."""
    size = 0.0
    if not adam:
        for i in range(theta.size):
            theta[i] += rate * shrink * gradient[i]
            size += theta[i] * theta[i]
        return size
    one, two = 1.0 / (1.0 - beta1**n), 1.0 / (1.0 - beta2**n)
    for i in range(theta.size):
        g = shrink * gradient[i]
        first[i] = beta1 * first[i] + (1.0 - beta1) * g
        second[i] = beta2 * second[i] + (1.0 - beta2) * g * g
        root = math.sqrt(second[i] * two) + epsilon
        # A gradient of exactly 0 from the start on has no direction to scale.
        theta[i] += rate * (first[i] * one) / root if root > 0.0 else 0.0
        size += theta[i] * theta[i]
    return size


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})  # type: ignore[misc,unused-ignore]
def _dot(row: Singles, vector: Floats) -> float:
    total = 0.0
    for i in range(vector.size):
        total += row[i] * vector[i]
    return total


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def _evaluate(
    world: World, theta: Floats, sampled: int, samples: int, state: NDArray[np.uint64], work: Floats
) -> tuple[float, float]:
    """Expected share of correct answers over all validation prompts, and mean@k on the first `sampled` of them."""
    exact, drawn = 0.0, 0.0
    for p in range(world.validation.shape[0]):
        _logits(world.validation[p], world.validation_offset[p], theta, world.bound, work[0], work[1])
        _softmax(work[0], work[2])
        for a in range(world.correct):
            exact += work[2, a]
        if p < sampled:
            drawn += _sample(work[2], samples, world.correct, work[3], work[5], state)
    return exact / world.validation.shape[0], drawn / (max(sampled, 1) * max(samples, 1))


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})  # type: ignore[misc,unused-ignore]
def _collect(chunks: Floats, share: Floats, moments: Floats) -> None:
    """Add an update's chunk means to sums per coordinate: even and odd chunks are the two halves.

    Rows: sum of the groups' gradients in the first half and variance of one group's, the same in the second, then
    groups in the first, groups in the second, and updates. Two chunks per half or more, else nothing.
    """
    if chunks.shape[0] < 4:
        return
    for half in range(2):
        n = 0
        size = 0.0
        for c in range(half, chunks.shape[0], 2):
            n += 1
            size += share[c]
        for i in range(chunks.shape[1]):
            total, square = 0.0, 0.0
            for c in range(half, chunks.shape[0], 2):
                total += share[c] * chunks[c, i]
                square += share[c] * chunks[c, i] * chunks[c, i]
            moments[2 * half, i] += total
            # A chunk of s groups has 1/s of a group's variance: weighted by s, all estimate the same.
            moments[2 * half + 1, i] += (square - total * total / size) / (n - 1)
        moments[4, half] += size
    moments[4, 2] += 1.0


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def _rollout(
    world: World,
    how: How,
    prompts: int,
    group: int,
    staleness: int,
    step: int,
    ring: Floats,
    omega: Floats,
    fused: bool,
    chunks: Floats,
    share: Floats,
    chosen: Ints,
    drawn: Floats,
    advantage: Floats,
    logs: Floats,
    work: Floats,
    state: NDArray[np.uint64],
) -> tuple[int, int, int, int]:
    """Sample groups until a rollout step is full: groups kept and sampled, correct responses, sum of lags.

    Where the run trains once on its own policy, chunk gradients are sums over groups when this returns; else the
    groups are stored: responses per answer, the advantages of a correct and of a wrong one (PPO's before they are
    normalised), and log-probabilities.
    """
    answers = world.features.shape[1]
    logits, slope, probability, count, weight = work[0], work[1], work[2], work[3], work[4]
    versions = staleness + 1
    kept, tried, right_total, lag_total = 0, 0, 0, 0
    while kept < prompts and (how.zero_variance == REFILL or tried < prompts):
        if tried >= ATTEMPTS * prompts:
            return -1, tried, right_total, lag_total
        tried += 1
        p = min(int(_uniform(state) * world.features.shape[0]), world.features.shape[0] - 1)
        lag = staleness
        if how.lag_law == UNIFORM and staleness > 0:
            lag = min(int(_uniform(state) * versions), staleness)
        # There is no policy before the first.
        lag = min(lag, step)
        _logits(world.features[p], world.offset[p], ring[(step - lag) % versions], world.bound, logits, slope)
        log_norm = _softmax(logits, probability)
        right = _sample(probability, group, world.correct, count, work[5], state)
        right_total += right
        gain, loss = 0.0, 0.0
        if how.ppo:
            expected = _dot(world.value_features[p], omega)
            gain, loss = 1.0 - expected, -expected
        elif 0 < right < group:
            gain, loss = _advantages(right, group, how.advantage)
        elif how.zero_variance != KEEP:
            continue
        lag_total += lag
        if fused:
            for a in range(answers):
                weight[a] = count[a] / group * (gain if a < world.correct else loss)
            c = kept * share.size // prompts
            share[c] += 1.0
            if how.kl > 0.0:
                _pull(how.kl, logits, log_norm, probability, world.start[p], weight)
            _add_group(chunks[c], weight, slope, world.features[p])
        else:
            chosen[kept], advantage[kept, 0], advantage[kept, 1] = p, gain, loss
            for a in range(answers):
                drawn[kept, a], logs[kept, a] = count[a], logits[a] - log_norm
        kept += 1
    return kept, tried, right_total, lag_total


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def _normalise(drawn: Floats, advantage: Floats, correct: int) -> None:
    """Give the advantages of all responses mean 0 and standard deviation 1."""
    n, mean, square = 0.0, 0.0, 0.0
    for j in range(drawn.shape[0]):
        for a in range(drawn.shape[1]):
            n += drawn[j, a]
            mean += drawn[j, a] * advantage[j, 0 if a < correct else 1]
    mean /= n
    for j in range(drawn.shape[0]):
        for a in range(drawn.shape[1]):
            square += drawn[j, a] * (advantage[j, 0 if a < correct else 1] - mean) ** 2
    spread = math.sqrt(square / n) + 1e-8
    for j in range(drawn.shape[0]):
        advantage[j, 0] = (advantage[j, 0] - mean) / spread
        advantage[j, 1] = (advantage[j, 1] - mean) / spread


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def _stored(
    world: World,
    how: How,
    theta: Floats,
    omega: Floats,
    part: Ints,
    group: int,
    chosen: Ints,
    drawn: Floats,
    advantage: Floats,
    logs: Floats,
    chunks: Floats,
    critic_chunks: Floats,
    share: Floats,
    work: Floats,
) -> tuple[float, float]:
    """Chunk gradients (sums over groups) of a mini-batch of stored groups.

    Returns the responses whose ratio was clipped, and those that had an advantage.
    """
    answers = world.features.shape[1]
    logits, slope, probability, weight = work[0], work[1], work[2], work[4]
    clipped, touched = 0.0, 0.0
    for k in range(part.size):
        j = part[k]
        p = chosen[j]
        c = k * share.size // part.size
        share[c] += 1.0
        _logits(world.features[p], world.offset[p], theta, world.bound, logits, slope)
        log_norm = _softmax(logits, probability)
        total, right = 0.0, 0.0
        for a in range(answers):
            right += drawn[j, a] / group if a < world.correct else 0.0
            weight[a] = drawn[j, a] / group * advantage[j, 0 if a < world.correct else 1]
            if weight[a] != 0.0:
                touched += drawn[j, a]
                if how.importance:
                    ratio = math.exp(min(logits[a] - log_norm - logs[j, a], 60.0))
                    if (weight[a] > 0.0 and ratio > 1.0 + how.clip) or (weight[a] < 0.0 and ratio < 1.0 - how.clip):
                        ratio = 0.0
                        clipped += drawn[j, a]
                    weight[a] *= ratio
            total += weight[a]
        for a in range(answers):
            weight[a] -= total * probability[a]
        if how.kl > 0.0:
            _pull(how.kl, logits, log_norm, probability, world.start[p], weight)
        _add_group(chunks[c], weight, slope, world.features[p])
        if how.ppo:
            _add(critic_chunks[c], right - _dot(world.value_features[p], omega), world.value_features[p])
    return clipped, touched


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def _shuffle(order: Ints, state: NDArray[np.uint64]) -> None:
    for j in range(order.size - 1, 0, -1):
        other = min(int(_uniform(state) * (j + 1)), j)
        order[j], order[other] = order[other], order[j]


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def run(
    world: World,
    how: How,
    prompts: int,
    group: int,
    staleness: int,
    rate: float,
    critic_rate: float,
    responses_max: float,
    every: float,
    steps_max: int,
    moments_until: float,
    state: NDArray[np.uint64],
    theta: Floats,
    omega: Floats,
    rows: Floats,
    evaluations: Floats,
    moments: Floats,
    counts: Ints,
) -> None:
    """One run, to the target, to its end, or to where nothing can be learned; theta and omega move in place.

    `counts` receives updates, outcome, rows, evaluations and rollout steps.
    """
    dim, answers = theta.size, world.features.shape[1]
    first, second, gradient = np.zeros(dim), np.zeros(dim), np.zeros(dim)
    critic_first, critic_second, critic_gradient = np.zeros(omega.size), np.zeros(omega.size), np.zeros(omega.size)
    chunk_count = min(CHUNKS, prompts * how.epochs // how.updates)
    chunks, critic_chunks = np.zeros((chunk_count, dim)), np.zeros((chunk_count, omega.size))
    share, work = np.zeros(chunk_count), np.zeros((6, answers))
    ring = np.zeros((staleness + 1, dim))
    fused = not how.ppo and how.updates == 1 and staleness == 0 and how.zero_variance != DROP
    held = 0 if fused else prompts
    chosen, order = np.zeros(held, np.int64), np.zeros(held, np.int64)
    drawn, advantage, logs = np.zeros((held, answers)), np.zeros((held, 2)), np.zeros((held, answers))
    kept, generated, next_evaluation = 0.0, 0.0, every
    step, row, evaluated, empty = 0, 0, 0, 0
    outcome, stuck = RUNNING, False
    while True:
        # -- evaluate -----------------------------------------------------------------------------------
        last = kept >= responses_max or step >= steps_max
        if step == 0 or kept >= next_evaluation or last or stuck:
            exact, mean = _evaluate(world, theta, how.sampled, how.samples, state, work)
            # A run that ends without having learned since its last evaluation has not two of them.
            if evaluated == 0 or kept > evaluations[evaluated - 1, AT]:
                evaluated += 1
            evaluations[evaluated - 1, AT], evaluations[evaluated - 1, SCORE] = kept, exact
            evaluations[evaluated - 1, SAMPLED], evaluations[evaluated - 1, UPDATES] = mean, float(counts[0])
            next_evaluation = (math.floor(kept / every * (1.0 + 1e-12)) + 1.0) * every
            if exact >= how.target:
                outcome = REACHED
            elif stuck:
                outcome = NO_SIGNAL
            elif last:
                outcome = UNFINISHED
        if outcome != RUNNING:
            break
        # -- generate -----------------------------------------------------------------------------------
        ring[step % (staleness + 1)] = theta
        chunks[:] = 0.0
        share[:] = 0.0
        got, tried, right, lags = _rollout(
            world, how, prompts, group, staleness, step, ring, omega, fused, chunks, share, chosen, drawn, advantage,
            logs, work, state,
        )  # fmt: skip
        generated += float(tried) * group
        empty = empty + 1 if got == 0 else 0
        stuck = got < 0 or empty >= ATTEMPTS
        step += 1
        if got <= 0:
            continue
        kept += float(got) * group
        if how.ppo and how.normalise:
            _normalise(drawn[:got], advantage[:got], world.correct)
        # -- train --------------------------------------------------------------------------------------
        total, total_chunk, critic_total, critic_chunk, clipped, touched, done = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0
        passes = how.updates // how.epochs
        for update in range(how.updates):
            used = chunk_count
            if not fused:
                begin, end = update % passes * got // passes, (update % passes + 1) * got // passes
                if update % passes == 0:
                    for j in range(got):
                        order[j] = j
                    if passes > 1:
                        _shuffle(order[:got], state)
                # Fewer groups than mini-batches leave some of them empty.
                if begin == end:
                    continue
                used = min(chunk_count, end - begin)
                chunks[:] = 0.0
                critic_chunks[:] = 0.0
                share[:] = 0.0
                cut, seen = _stored(
                    world, how, theta, omega, order[begin:end], group, chosen, drawn, advantage, logs, chunks[:used],
                    critic_chunks[:used], share[:used], work,
                )  # fmt: skip
                clipped += cut
                touched += seen
            whole, small = _norms(chunks[:used], share[:used], gradient)
            # Later passes see the same groups, in other halves.
            if kept <= moments_until and update < passes:
                _collect(chunks[:used], share[:used], moments)
            counts[0] += 1
            done += 1
            total += whole
            total_chunk += small
            norm = math.sqrt(whole)
            shrink = how.grad_clip / norm if norm > how.grad_clip else 1.0
            size = _step(
                theta, gradient, first, second, counts[0], rate, how.adam, how.beta1, how.beta2, how.epsilon, shrink
            )
            if how.ppo:
                whole, small = _norms(critic_chunks[:used], share[:used], critic_gradient)
                critic_total += whole
                critic_chunk += small
                norm = math.sqrt(whole)
                shrink = how.grad_clip / norm if norm > how.grad_clip else 1.0
                size += _step(
                    omega, critic_gradient, critic_first, critic_second, counts[0], critic_rate, how.adam, how.beta1,
                    how.beta2, how.epsilon, shrink,
                )  # fmt: skip
            if not size < np.inf:
                outcome = DIVERGES
                break
        if row < rows.shape[0]:
            rows[row, KEPT], rows[row, GENERATED], rows[row, KEPT_NOW] = kept, generated, float(got) * group
            rows[row, NORM], rows[row, BATCH], rows[row, CHUNK] = (
                math.sqrt(total / done),
                total / done,
                total_chunk / done,
            )
            rows[row, CRITIC_NORM] = math.sqrt(critic_total / done)
            rows[row, CRITIC_BATCH], rows[row, CRITIC_CHUNK] = critic_total / done, critic_chunk / done
            rows[row, REWARD], rows[row, LAG] = right / (float(tried) * group), lags / got
            rows[row, CLIPPED], rows[row, DONE] = clipped / max(touched, 1.0), float(counts[0])
            row += 1
        if outcome != RUNNING:
            break
    counts[1], counts[2], counts[3], counts[4] = outcome, row, evaluated, step
