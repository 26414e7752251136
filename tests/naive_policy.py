"""GRPO and PPO on a softmax world in plain Python: every response has a gradient of its own.

Written from the definitions. Shared with the package are the world's arrays, the settings' names and the order in
which random numbers are drawn; answers are never counted, and no gradient is joined over responses before it is whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from batchsim.learning.worlds import SoftmaxWorld, Trainer

Floats = NDArray[np.float64]


def splitmix64(state: int) -> Iterator[float]:
    """Numbers in [0, 1), in whole numbers of Python."""
    mask = (1 << 64) - 1
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield ((z ^ (z >> 31)) >> 11) / 2.0**53


def log_policy(features: NDArray[np.float32], offset: Floats, theta: Floats, bound: float) -> tuple[Floats, Floats]:
    """Log-probabilities of a prompt's answers, and the gradient of each by theta: (answer,), (answer, D)."""
    phi = features.astype(np.float64)
    z = phi @ theta
    t = np.tanh(z / bound)
    shift, by_theta = (z, phi) if math.isinf(bound) else (bound * t, (1 - t**2)[:, None] * phi)
    log_p = offset + shift - np.logaddexp.reduce(offset + shift)
    return log_p, by_theta - np.exp(log_p) @ by_theta


def advantages(rewards: Floats, kind: str) -> Floats:
    """GRPO's, of the responses of one group."""
    if kind == "group":
        return np.asarray((rewards - rewards.mean()) / rewards.std(ddof=1), dtype=np.float64)
    if kind == "mean":
        return np.asarray(rewards - rewards.mean())
    others = (rewards.sum() - rewards) / (rewards.size - 1)
    return np.asarray(rewards - others)


@dataclass(frozen=True)
class Response:
    prompt: int
    answer: int
    reward: float
    log_sampling: float
    """Log-probability under the policy that sampled it."""
    advantage: float = 0.0


@dataclass
class Learned:
    theta: Floats
    omega: Floats
    outcome: str = "running"
    updates: int = 0
    rollout_steps: int = 0
    record: list[dict[str, float]] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    half_mean: Floats = field(default_factory=lambda: np.zeros(0))
    half_variance: Floats = field(default_factory=lambda: np.zeros(0))
    half_responses: tuple[float, float] = (0.0, 0.0)


def objective(world: SoftmaxWorld, trainer: Trainer, responses: list[Response], theta: Floats) -> float:
    """What a group adds to the sum that is climbed."""
    total = 0.0
    for r in responses:
        log_p, _ = log_policy(world.features[r.prompt], world.offset[r.prompt], theta, world.bound)
        start, _ = log_policy(world.features[r.prompt], world.offset[r.prompt], 0 * theta, world.bound)
        ratio = math.exp(log_p[r.answer] - r.log_sampling)
        clipped = min(max(ratio, 1 - trainer.clip), 1 + trainer.clip)
        surrogate = min(ratio * r.advantage, clipped * r.advantage)
        total += surrogate if trainer.importance else log_p[r.answer] * r.advantage
        total -= trainer.kl * float(np.exp(log_p) @ (log_p - start))
    return total / len(responses)


def response_gradient(world: SoftmaxWorld, trainer: Trainer, r: Response, theta: Floats) -> tuple[Floats, bool]:
    """Derivative of a response's objective, and whether its ratio is clipped."""
    log_p, score = log_policy(world.features[r.prompt], world.offset[r.prompt], theta, world.bound)
    start, _ = log_policy(world.features[r.prompt], world.offset[r.prompt], 0 * theta, world.bound)
    ratio, clipped = 1.0, False
    if trainer.importance:
        ratio = math.exp(log_p[r.answer] - r.log_sampling)
        within = min(max(ratio, 1 - trainer.clip), 1 + trainer.clip)
        # Where the clipped product is the smaller one, nothing depends on theta.
        clipped = within * r.advantage < ratio * r.advantage
    gain = 0.0 if clipped else r.advantage * ratio
    pull = np.exp(log_p) @ ((log_p - start)[:, None] * score)
    return gain * score[r.answer] - trainer.kl * pull, clipped


class Optimizer:
    """Climbs."""

    def __init__(self, trainer: Trainer, rate: float, size: int) -> None:
        self.trainer, self.rate = trainer, rate
        self.first, self.second, self.n = np.zeros(size), np.zeros(size), 0

    def step(self, x: Floats, gradient: Floats) -> Floats:
        t = self.trainer
        norm = float(np.linalg.norm(gradient))
        g = gradient * (t.grad_clip / norm) if norm > t.grad_clip else gradient
        if t.optimizer == "sgd":
            return x + self.rate * g
        self.n += 1
        self.first = t.beta1 * self.first + (1 - t.beta1) * g
        self.second = t.beta2 * self.second + (1 - t.beta2) * g**2
        first, second = self.first / (1 - t.beta1**self.n), self.second / (1 - t.beta2**self.n)
        root = np.sqrt(second) + t.epsilon
        return np.asarray(x + self.rate * np.where(root > 0, first / np.where(root > 0, root, 1), 0))


def chunk_means(groups: Floats, chunks: int) -> tuple[Floats, Floats]:
    """Mean gradient of each chunk of groups (group, D), in order, and groups in each."""
    n = len(groups)
    at = np.array([k * chunks // n for k in range(n)])
    sizes = np.array([float((at == c).sum()) for c in range(chunks)])
    return np.array([groups[at == c].mean(axis=0) for c in range(chunks)]), sizes


class Twin:
    """One run."""

    def __init__(
        self, world: SoftmaxWorld, trainer: Trainer, *, prompts: int, group_size: int, rate: float, critic_rate: float,
        staleness: int, responses_max: float, every: float, target: float, mean_at: tuple[int, int],
        halves_until: float, stream: Iterator[float], theta: Floats,
    ) -> None:  # fmt: skip
        self.world, self.trainer, self.stream = world, trainer, stream
        self.prompts, self.group_size, self.staleness = prompts, group_size, staleness
        self.rate, self.critic_rate = rate, critic_rate
        self.responses_max, self.every, self.target, self.mean_at = responses_max, every, target, mean_at
        self.halves_until = halves_until
        self.versions: list[Floats] = []
        self.learned = Learned(theta=theta.copy(), omega=world.value_start.copy())
        self.ppo = trainer.algorithm == "ppo"
        self.psi = world.value_features.astype(np.float64)
        self.halves: list[tuple[int, Floats, Floats, float]] = []

    def draw(self, log_p: Floats) -> int:
        """An answer, by the sum of probabilities that first exceeds a uniform number."""
        u = next(self.stream)
        return sum(u >= total for total in np.cumsum(np.exp(log_p))[:-1])

    def below(self, n: int) -> int:
        return min(int(next(self.stream) * n), n - 1)

    def group(self) -> tuple[list[Response], int]:
        """One group as sampled, advantages not yet known, and the age of its policy."""
        w = self.world
        p = self.below(len(w.features))
        lag = self.staleness
        if self.trainer.lag == "uniform" and self.staleness:
            lag = self.below(self.staleness + 1)
        lag = min(lag, len(self.versions) - 1)
        log_p, _ = log_policy(w.features[p], w.offset[p], self.versions[-1 - lag], w.bound)
        answers = [self.draw(log_p) for _ in range(self.group_size)]
        return [Response(p, a, float(a < w.correct), float(log_p[a])) for a in answers], lag

    def rollout(self) -> tuple[list[list[Response]], list[int], list[float]] | None:
        """Groups kept, their ages, and all rewards; None where too few groups have variance."""
        kept: list[list[Response]] = []
        lags, seen = [], 0
        rewards: list[float] = []
        refills = not self.ppo and self.trainer.zero_variance == "refill"
        while len(kept) < self.prompts and (refills or seen < self.prompts):
            if seen >= 2000 * self.prompts:
                return None
            seen += 1
            responses, lag = self.group()
            own = np.array([r.reward for r in responses])
            rewards.extend(own.tolist())
            if self.ppo:
                value = self.psi[responses[0].prompt] @ self.learned.omega
                advantage = own - value
            elif own.min() < own.max():
                advantage = advantages(own, self.trainer.advantage)
            elif self.trainer.zero_variance == "keep":
                advantage = 0 * own
            else:
                continue
            kept.append([replace(r, advantage=float(a)) for r, a in zip(responses, advantage, strict=True)])
            lags.append(lag)
        if self.ppo and self.trainer.normalise:
            every = np.array([r.advantage for group in kept for r in group])
            mean, spread = every.mean(), every.std() + 1e-8
            kept = [[replace(r, advantage=float((r.advantage - mean) / spread)) for r in group] for group in kept]
        return kept, lags, rewards

    def evaluate(self, kept: float) -> float:
        w, good, drawn = self.world, [], 0
        for p in range(len(w.validation)):
            log_p, _ = log_policy(w.validation[p], w.validation_offset[p], self.learned.theta, w.bound)
            good.append(float(np.exp(log_p[: w.correct]).sum()))
            if p < self.mean_at[0]:
                drawn += sum(self.draw(log_p) < w.correct for _ in range(self.mean_at[1]))
        score = float(np.mean(good))
        if self.learned.evaluations and self.learned.evaluations[-1]["responses"] == kept:
            self.learned.evaluations.pop()
        self.learned.evaluations.append(
            {
                "responses": kept,
                "score": score,
                "sampled_score": drawn / math.prod(self.mean_at) if math.prod(self.mean_at) else math.nan,
                "updates": float(self.learned.updates),
            }
        )
        return score

    def run(self) -> Learned:
        out, t = self.learned, self.trainer
        actor = Optimizer(t, self.rate, out.theta.size)
        critic = Optimizer(t, self.critic_rate, out.omega.size)
        steps_max = math.ceil(self.responses_max / (self.prompts * self.group_size))
        steps_max *= 50 if t.zero_variance == "drop" else 1
        kept, generated, next_evaluation, empty, stuck = 0.0, 0.0, self.every, 0, False
        while True:
            last = kept >= self.responses_max or out.rollout_steps >= steps_max
            if not out.rollout_steps or kept >= next_evaluation or last or stuck:
                score = self.evaluate(kept)
                next_evaluation = (math.floor(kept / self.every + 1e-9) + 1) * self.every
                if score >= self.target or stuck or last:
                    out.outcome = "reached" if score >= self.target else "no signal" if stuck else "too many responses"
                    break
            self.versions.append(out.theta.copy())
            sampled = self.rollout()
            out.rollout_steps += 1
            if sampled is None:
                stuck = True
                continue
            groups, lags, rewards = sampled
            generated += len(rewards)
            empty = 0 if groups else empty + 1
            stuck = empty >= 2000
            if not groups:
                continue
            kept += len(groups) * self.group_size
            norms, critic_norms, cut, with_advantage = self.train(groups, actor, critic, kept)
            batch, chunk = np.mean(norms, axis=0)
            critic_batch, critic_chunk = np.mean(critic_norms, axis=0) if self.ppo else (0.0, 0.0)
            out.record.append(
                {
                    "responses": kept,
                    "responses_generated": generated,
                    "grad_norm": math.sqrt(batch),
                    "sq_norm_chunk": chunk,
                    "sq_norm_batch": batch,
                    "critic_grad_norm": math.sqrt(critic_batch),
                    "critic_sq_norm_chunk": critic_chunk,
                    "critic_sq_norm_batch": critic_batch,
                    "train_reward": float(np.mean(rewards)),
                    "staleness_mean": float(np.mean(lags)),
                    "clipped_share": cut / max(with_advantage, 1),
                    "kept": float(len(groups) * self.group_size),
                    "updates": float(out.updates),
                }
            )
            if not np.sum(out.theta**2) + np.sum(out.omega**2) < math.inf:
                out.outcome = "diverges"
                break
        self.sum_halves()
        return out

    def train(
        self, groups: list[list[Response]], actor: Optimizer, critic: Optimizer, kept: float
    ) -> tuple[list[tuple[float, float]], list[tuple[float, float]], int, int]:
        """All updates of a rollout step: squared norms of batch and chunks for actor and critic, responses clipped."""
        out, t = self.learned, self.trainer
        passes, n = t.updates_per_rollout // t.epochs, len(groups)
        norms: list[tuple[float, float]] = []
        critic_norms: list[tuple[float, float]] = []
        cut, with_advantage = 0, 0
        for epoch in range(t.epochs):
            order = list(range(n))
            if passes > 1:
                for j in range(n - 1, 0, -1):
                    other = self.below(j + 1)
                    order[j], order[other] = order[other], order[j]
            for i in range(passes):
                part = [groups[j] for j in order[i * n // passes : (i + 1) * n // passes]]
                if not part:
                    continue
                gradients, errors = [], []
                for group in part:
                    own = [response_gradient(self.world, t, r, out.theta) for r in group]
                    gradients.append(np.mean([g for g, _ in own], axis=0))
                    cut += sum(clipped for _, clipped in own)
                    with_advantage += sum(r.advantage != 0 for r in group)
                    psi = self.psi[group[0].prompt]
                    errors.append(np.mean([(r.reward - psi @ out.omega) * psi for r in group], axis=0))
                chunks = min(8, self.prompts // passes, len(part))
                means, sizes = chunk_means(np.array(gradients), chunks)
                if kept <= self.halves_until and epoch == 0 and chunks >= 4:
                    self.note_halves(means, sizes)
                gradient = np.mean(gradients, axis=0)
                norms.append((float(gradient @ gradient), float(np.average((means**2).sum(axis=1), weights=sizes))))
                out.theta = actor.step(out.theta, gradient)
                if self.ppo:
                    means, sizes = chunk_means(np.array(errors), chunks)
                    error = np.mean(errors, axis=0)
                    critic_norms.append(
                        (float(error @ error), float(np.average((means**2).sum(axis=1), weights=sizes)))
                    )
                    out.omega = critic.step(out.omega, error)
                out.updates += 1
        return norms, critic_norms, cut, with_advantage

    def note_halves(self, means: Floats, sizes: Floats) -> None:
        for half in range(2):
            own, s = means[half::2], sizes[half::2]
            mean = np.average(own, axis=0, weights=s)
            variance = s @ (own - mean) ** 2 / (len(s) - 1)
            self.halves.append((half, mean, np.asarray(variance), float(s.sum())))

    def sum_halves(self) -> None:
        if not self.halves:
            return
        mean, variance, responses = [], [], []
        for half in range(2):
            own = [(m, v, s) for h, m, v, s in self.halves if h == half]
            mean.append(np.average([m for m, _, _ in own], axis=0, weights=[s for _, _, s in own]))
            variance.append(self.group_size * np.mean([v for _, v, _ in own], axis=0))
            responses.append(self.group_size * sum(s for _, _, s in own))
        self.learned.half_mean, self.learned.half_variance = np.array(mean), np.array(variance)
        self.learned.half_responses = responses[0], responses[1]
