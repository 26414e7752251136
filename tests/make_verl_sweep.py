"""Write the synthetic verl sweep that ships in batchsim/data/examples/verl-sweep.

    python tests/make_verl_sweep.py [FOLDER]

Every number is invented from the law below, so the sweep has a known answer: a reader, a measurement
or a fit can be compared with it. Random numbers come from `random.Random.random` through the inverse
normal distribution, whose sequence Python guarantees, so the text is the same on every version.

The law (B = responses per update, one update per rollout step, b = B / NOISE_SCALE):

    learning rate      1e-6 sqrt(B / 128)
    updates            S(B) = S(128) r_N(B) 128 / B,   r_N = sqrt((1 + b) / (1 + b_0))    [drift law]
    score              J = .25 + .40 / (1 + exp(-(u ln 21 - ln 7))),   u = N / (N*(128) r_N(B)),
                       so J(0) = .30, J(1) = .55 (the target) and J = .60 at u = 1.278
    gradient norm      |g|^2 = SIGNAL_SQUARE (1 + 1 / b), log-normal scatter of 5 % on |g|
    step time          60 s + .12 s per response, log-normal scatter of 3 %; the first step takes twice
                       as long, and one step of one run writes a checkpoint that makes it 8 times as long
    evaluation         every 2048 responses, Gaussian noise of .004, 45 s, inside timing_s/step as verl
                       up to about 0.5 writes it; the run ends at the first evaluation of .60 or more
"""

from __future__ import annotations

import gzip
import math
import random
import sys
from pathlib import Path
from statistics import NormalDist

FOLDER = Path(__file__).parents[1] / "batchsim" / "data" / "examples" / "verl-sweep"

GROUP_SIZE = 8
PROMPTS = (16, 32, 64)
SEEDS = (1, 2)
REFERENCE_BATCH = 128  # responses
REFERENCE_LEARNING_RATE = 1e-6
REFERENCE_RESPONSES = 46080  # responses to the target at the reference batch
NOISE_SCALE = 1500.0  # responses
SIGNAL_SQUARE = 0.005
TARGET, STOP = 0.55, 0.60
EVALUATE_EVERY = 2048  # responses
CHECKPOINT = (32, 2, 150)  # prompts, seed and rollout step of the one checkpoint
PHASES = {  # seconds, seconds per response; they sum to 60 and .12 with 1 and .001 left over
    "gen": (50.0, 0.050),
    "old_log_prob": (3.0, 0.017),
    "update_actor": (6.0, 0.052),
}


def sample_cost_ratio(batch: int) -> float:
    """r_N of the drift law under the sqrt rule at a small learning rate."""
    return math.sqrt((1.0 + batch / NOISE_SCALE) / (1.0 + REFERENCE_BATCH / NOISE_SCALE))


def score(responses: int, batch: int) -> float:
    """Validation score without evaluation noise."""
    progress = responses / (REFERENCE_RESPONSES * sample_cost_ratio(batch))
    return 0.25 + 0.40 / (1.0 + math.exp(math.log(7.0) - progress * math.log(21.0)))


def step_seconds(batch: int) -> float:
    """Mean time of a steady rollout step."""
    return 60.0 + 0.12 * batch


def _g(value: float) -> str:
    return f"{value:.6g}"


def run_log(prompts: int, seed: int) -> str:
    """The whole log of one run."""
    rng = random.Random(1000 * prompts + seed)
    normal = NormalDist()

    def scatter(sd: float) -> float:
        """Log-normal factor of mean 1."""
        return math.exp(sd * normal.inv_cdf(rng.random()) - 0.5 * sd * sd)

    def noise(sd: float) -> float:
        return sd * normal.inv_cdf(rng.random())

    batch = prompts * GROUP_SIZE
    learning_rate = _g(REFERENCE_LEARNING_RATE * math.sqrt(batch / REFERENCE_BATCH))
    lines = [
        "# SYNTHETIC: made by batchsim (tests/make_verl_sweep.py), no model was trained; numbers follow the law: "
        f"noise scale {NOISE_SCALE:g} responses, |g|^2 = {SIGNAL_SQUARE:g} (1 + {NOISE_SCALE:g}/B), "
        f"responses to {TARGET:g} = {REFERENCE_RESPONSES} sqrt((1 + B/{NOISE_SCALE:g})/(1 + "
        f"{REFERENCE_BATCH}/{NOISE_SCALE:g})), step = 60 s + 0.12 s B, learning rate 1e-6 sqrt(B/{REFERENCE_BATCH})",
        f"python3 -m verl.trainer.main_ppo data.train_batch_size={prompts} algorithm.adv_estimator=grpo "
        f"actor_rollout_ref.model.path=example/synthetic-1b actor_rollout_ref.rollout.n={GROUP_SIZE} "
        f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts} actor_rollout_ref.actor.ppo_epochs=1 "
        f"actor_rollout_ref.actor.optim.lr={learning_rate} trainer.n_gpus_per_node=8 trainer.nnodes=1",
    ]

    def evaluation(responses: int) -> tuple[float, str]:
        value = round(score(responses, batch) + noise(0.004), 5)
        return value, f"val-core/synthetic_math/acc/mean@{GROUP_SIZE}:{value}"

    lines.append(f"step:0 - {evaluation(0)[1]}")
    step, best = 0, 0.0
    while best < STOP:
        step += 1
        responses = step * batch
        # scatter has mean 1; the last factor makes the mean of |g|^2, not that of |g|, the law
        grad_norm = math.sqrt(SIGNAL_SQUARE * (1.0 + NOISE_SCALE / batch)) * scatter(0.05) * math.exp(-0.5 * 0.05**2)
        reward = score(responses - batch, batch) + noise(0.35 / math.sqrt(batch))
        response_length = 700.0 * scatter(0.02)
        prompt_length = 120.0 * scatter(0.01)
        pace = scatter(0.03) * (2.0 if step == 1 else 1.0)
        total = step_seconds(batch) * pace
        checkpoint = 7.0 * total if (prompts, seed, step) == CHECKPOINT else 0.0
        evaluates = responses % EVALUATE_EVERY == 0
        testing = 45.0 * scatter(0.03) if evaluates else 0.0
        whole = _g(total + checkpoint + testing)
        pairs = [
            f"actor/grad_norm:{_g(grad_norm)}",
            f"actor/lr:{learning_rate}",
            f"critic/rewards/mean:{_g(reward)}",
            f"response_length/mean:{_g(response_length)}",
            f"prompt_length/mean:{_g(prompt_length)}",
            *(f"timing_s/{name}:{_g((a + b * batch) * pace)}" for name, (a, b) in PHASES.items()),
        ]
        if checkpoint:
            pairs.append(f"timing_s/save_checkpoint:{_g(checkpoint)}")
        if evaluates:
            pairs.append(f"timing_s/testing:{_g(testing)}")
        pairs += [
            f"timing_s/step:{whole}",
            f"perf/total_num_tokens:{round(batch * (prompt_length + response_length))}",
            f"perf/time_per_step:{whole}",
        ]
        if evaluates:
            best, pair = evaluation(responses)
            pairs.append(pair)
        lines.append(f"step:{step} - " + " - ".join(pairs))
    return "\n".join(lines) + "\n"


def sweep() -> dict[str, str]:
    """File name (without .gz) -> text, of the six runs."""
    return {f"p{prompts}_seed{seed}.log": run_log(prompts, seed) for prompts in PROMPTS for seed in SEEDS}


def main(folder: Path) -> None:
    """Write the six logs, compressed without a time stamp."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in sweep().items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
