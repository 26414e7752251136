"""`batchsim simulate grpo` and `simulate ppo`: a softmax policy that learns, as runs that `measure` takes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchsim.cli import options as opt
from batchsim.cli.files import check_netcdf
from batchsim.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

    from batchsim.learning.worlds import SoftmaxWorld, Trainer

# -- the world ------------------------------------------------------------------------------------------
Dim = Annotated[int, typer.Option(help="Features per answer: parameters of the policy.")]
TrainPrompts = Annotated[int, typer.Option(help="Prompts to train on.")]
ValidationPrompts = Annotated[int, typer.Option(help="Prompts of the validation score.")]
Answers = Annotated[int, typer.Option(help="Answers of a prompt.")]
Correct = Annotated[int, typer.Option(help="Correct ones among them.")]
Signal = Annotated[int | None, typer.Option(help="Features that matter; the fewer, the sparser the gradient [all].")]
ScaleSpread = Annotated[float, typer.Option(help="Spread of the log scale of features.")]
Rotated = Annotated[bool, typer.Option(help="Turn the features by a random rotation.")]
Overlap = Annotated[float, typer.Option(help="Share of features that prompts of a topic have in common.")]
Difficulty = Annotated[float, typer.Option(help="Spread over prompts of the log odds of success at first.")]
LabelNoise = Annotated[float, typer.Option(help="Noise in what is correct: a share that cannot be learned.")]
StartScore = Annotated[float, typer.Option(help="Mean score before training.")]
Bound = Annotated[float | None, typer.Option(help="Largest shift of a logit [no bound].")]
WorldSeed = Annotated[int, typer.Option(help="Seed of the world.")]

# -- the trainer ----------------------------------------------------------------------------------------
Advantage = Annotated[str, typer.Option(help="group (normalised), mean (not divided), leave_one_out.")]
ZeroVariance = Annotated[
    str, typer.Option(help="Groups of equal rewards: refill (sample anew), drop (smaller batch), keep (as zero).")
]
Normalise = Annotated[bool, typer.Option(help="Give advantages mean 0 and deviation 1 over the batch.")]
OptimizerName = Annotated[str, typer.Option(help="adam or sgd.")]
Beta1 = Annotated[float, typer.Option(help="Adam's decay of the mean gradient.")]
Beta2 = Annotated[float, typer.Option(help="Adam's decay of the mean square.")]
UpdatesPerRollout = Annotated[int, typer.Option(help="Updates M of a rollout step: B = P G E/M.")]
Epochs = Annotated[int, typer.Option(help="Passes E over the responses of a rollout step; M is a multiple.")]
Clip = Annotated[float | None, typer.Option(help="Clip of the ratio, as 0.2 [never].")]
GradClip = Annotated[float | None, typer.Option(help="Largest gradient norm [no limit].")]
Staleness = Annotated[int, typer.Option(help="Age of the responses, in versions of the policy.")]
Lag = Annotated[str, typer.Option(help="constant (all that old) or uniform (up to that old).")]
Kl = Annotated[float, typer.Option(help="Weight of the KL to the policy before training.")]

# -- the runs -------------------------------------------------------------------------------------------
Prompts = Annotated[str, typer.Option(help="Prompts P per rollout step, one arm each.", metavar="P,P,...")]
GroupSize = Annotated[str, typer.Option(help="Responses G per prompt: one, or one per arm.", metavar="G[,G,...]")]
Rate = Annotated[
    str,
    typer.Option(
        help="Learning rate at the smallest batch (see --lr-rule), or one per arm.", metavar="RATE[,RATE,...]"
    ),
]
CriticRate = Annotated[
    str | None, typer.Option(help="The critic's rate, likewise [the actor's].", metavar="RATE[,RATE,...]")
]
LrRule = Annotated[str | None, typer.Option(help="How one rate follows B: fixed, sqrt or linear [sqrt].")]
ResponsesMax = Annotated[float, typer.Option(help="Kept responses after which a run ends.")]
Target = Annotated[float, typer.Option(help="Exact score at which a run ends; 0 for none, so that it runs to its end.")]
EvaluateEvery = Annotated[float, typer.Option(help="Kept responses between evaluations.")]
MeanAt = Annotated[
    str | None,
    typer.Option(help="Also a noisy score val/mean@k on N prompts, k samples each.", metavar="N,K"),
]
StepSeconds = Annotated[float, typer.Option(help="Seconds of a rollout step, whatever its size.")]
ResponseSeconds = Annotated[float, typer.Option(help="And per response generated, kept or not.")]
Seeds = Annotated[int, typer.Option(help="Runs of every arm.")]
Seed = Annotated[int, typer.Option(help="Seed of the runs.")]
Out = Annotated[
    Path | None, typer.Option(help="Write the runs; batchsim measure and predict read them.", metavar="FILE.nc")
]
Plot = Annotated[Path | None, typer.Option(help="Write the plot of scores over responses (png, pdf, svg).")]


def grpo(
    prompts: Prompts = "8,32,128,512",
    group_size: GroupSize = "8",
    rate: Rate = "0.003",
    lr_rule: LrRule = None,
    responses_max: ResponsesMax = 1e6,
    target: Target = 0.7,
    evaluate_every: EvaluateEvery = 2000,
    mean_at: MeanAt = None,
    step_seconds: StepSeconds = 10,
    response_seconds: ResponseSeconds = 0.05,
    seeds: Seeds = 4,
    seed: Seed = 0,
    advantage: Advantage = "group",
    zero_variance: ZeroVariance = "refill",
    optimizer: OptimizerName = "adam",
    beta1: Beta1 = 0.9,
    beta2: Beta2 = 0.999,
    updates_per_rollout: UpdatesPerRollout = 1,
    epochs: Epochs = 1,
    clip: Clip = None,
    grad_clip: GradClip = None,
    staleness: Staleness = 0,
    lag: Lag = "constant",
    kl: Kl = 0,
    dim: Dim = 128,
    train_prompts: TrainPrompts = 1024,
    validation_prompts: ValidationPrompts = 512,
    answers: Answers = 8,
    correct: Correct = 1,
    signal: Signal = None,
    scale_spread: ScaleSpread = 0,
    rotated: Rotated = False,
    overlap: Overlap = 0,
    difficulty: Difficulty = 0.5,
    label_noise: LabelNoise = 0,
    start_score: StartScore = 0.28,
    bound: Bound = None,
    world_seed: WorldSeed = 0,
    out: Out = None,
    plot: Plot = None,
    json: opt.Json = False,
) -> None:
    """Train a policy by GRPO at several batches, and see what each costs.

    A softmax policy over shared features answers prompts: what it learns on one helps on all others. Every run is a
    real one, with sampled responses, advantages within groups and an optimizer; only time is a law. N* is where the
    exact validation score reaches the target, r_N the same relative to the smallest batch, and the noise scale stands
    beside them: as it truly is before training, and as the norms of the runs show it.
    """
    _run(
        "grpo",
        trainer={
            "advantage": advantage, "zero_variance": zero_variance, "optimizer": optimizer, "beta1": beta1,
            "beta2": beta2, "updates_per_rollout": updates_per_rollout, "epochs": epochs, "clip": clip,
            "grad_clip": grad_clip, "lag": lag, "kl": kl,
        },
        world={
            "dim": dim, "prompts": train_prompts, "validation": validation_prompts, "answers": answers,
            "correct": correct, "signal": signal, "scale_spread": scale_spread, "rotated": rotated,
            "overlap": overlap, "difficulty": difficulty, "label_noise": label_noise, "start_score": start_score,
            "bound": bound, "seed": world_seed,
        },
        prompts=prompts, group_size=group_size, rate=rate, critic_rate=None, lr_rule=lr_rule,
        responses_max=responses_max, target=target, evaluate_every=evaluate_every, mean_at=mean_at,
        step_seconds=step_seconds, response_seconds=response_seconds, seeds=seeds, seed=seed, staleness=staleness,
        out=out, plot=plot, json=json,
    )  # fmt: skip


def ppo(
    prompts: Prompts = "64,256,1024,4096",
    group_size: GroupSize = "1",
    rate: Rate = "0.003",
    critic_rate: CriticRate = None,
    lr_rule: LrRule = None,
    responses_max: ResponsesMax = 1e6,
    target: Target = 0.7,
    evaluate_every: EvaluateEvery = 2000,
    mean_at: MeanAt = None,
    step_seconds: StepSeconds = 10,
    response_seconds: ResponseSeconds = 0.05,
    seeds: Seeds = 4,
    seed: Seed = 0,
    normalise: Normalise = True,
    optimizer: OptimizerName = "adam",
    beta1: Beta1 = 0.9,
    beta2: Beta2 = 0.999,
    updates_per_rollout: UpdatesPerRollout = 1,
    epochs: Epochs = 1,
    clip: Clip = None,
    grad_clip: GradClip = None,
    staleness: Staleness = 0,
    lag: Lag = "constant",
    kl: Kl = 0,
    dim: Dim = 128,
    train_prompts: TrainPrompts = 1024,
    validation_prompts: ValidationPrompts = 512,
    answers: Answers = 8,
    correct: Correct = 1,
    signal: Signal = None,
    scale_spread: ScaleSpread = 0,
    rotated: Rotated = False,
    overlap: Overlap = 0,
    difficulty: Difficulty = 0.5,
    label_noise: LabelNoise = 0,
    start_score: StartScore = 0.28,
    bound: Bound = None,
    world_seed: WorldSeed = 0,
    out: Out = None,
    plot: Plot = None,
    json: opt.Json = False,
) -> None:
    """Train a policy and its critic by PPO at several batches, and see what each costs.

    As `simulate grpo`, with advantages against a value function that learns beside the policy, one response per prompt
    unless --group-size says more. --clip 0.2 --updates-per-rollout 8 --epochs 2 makes it PPO as commonly run.
    """
    _run(
        "ppo",
        trainer={
            "normalise": normalise, "optimizer": optimizer, "beta1": beta1, "beta2": beta2,
            "updates_per_rollout": updates_per_rollout, "epochs": epochs, "clip": clip, "grad_clip": grad_clip,
            "lag": lag, "kl": kl,
        },
        world={
            "dim": dim, "prompts": train_prompts, "validation": validation_prompts, "answers": answers,
            "correct": correct, "signal": signal, "scale_spread": scale_spread, "rotated": rotated,
            "overlap": overlap, "difficulty": difficulty, "label_noise": label_noise, "start_score": start_score,
            "bound": bound, "seed": world_seed,
        },
        prompts=prompts, group_size=group_size, rate=rate, critic_rate=critic_rate, lr_rule=lr_rule,
        responses_max=responses_max, target=target, evaluate_every=evaluate_every, mean_at=mean_at,
        step_seconds=step_seconds, response_seconds=response_seconds, seeds=seeds, seed=seed, staleness=staleness,
        out=out, plot=plot, json=json,
    )  # fmt: skip


def _run(
    algorithm: str,
    *,
    trainer: dict[str, Any],
    world: dict[str, Any],
    prompts: str,
    group_size: str,
    rate: str,
    critic_rate: str | None,
    lr_rule: str | None,
    responses_max: float,
    target: float,
    evaluate_every: float,
    mean_at: str | None,
    step_seconds: float,
    response_seconds: float,
    seeds: int,
    seed: int,
    staleness: int,
    out: Path | None,
    plot: Path | None,
    json: bool,
) -> None:
    from batchsim.cli import simulated_runs as shown

    opt.check_plot(plot)
    check_netcdf(out, new=True)
    rates = opt.numbers(rate, "--rate")
    critic = None if critic_rate is None else opt.numbers(critic_rate, "--critic-rate")
    arms = {"prompts": opt.numbers(prompts, "--prompts"), "group_size": opt.numbers(group_size, "--group-size")}
    if not 0 <= target <= 1:
        raise InputError(
            f"--target {target:g} is outside 0 to 1", remedy="a score is a share of correct answers; 0 stands for none"
        )
    for option, value, least in (
        ("--train-prompts", world["prompts"], 1),
        ("--validation-prompts", world["validation"], 1),
        ("--world-seed", world["seed"], 0),
    ):
        if value < least:
            raise InputError(f"{option} is {value}, and it must be at least {least}", remedy=f"as {option} 64")
    sampled = _mean_at(mean_at, world["validation"])
    if lr_rule is None and len(rates) == 1:
        lr_rule = "sqrt"
    from batchsim.cli.simulate import bar
    from batchsim.learning.worlds import Trainer, simulate_grpo, simulate_ppo, softmax_world

    unlimited = {name: math.inf for name in ("clip", "grad_clip") if trainer[name] is None}
    how = Trainer(algorithm=algorithm, **(trainer | unlimited))
    built = softmax_world(**(world | ({"bound": math.inf} if world["bound"] is None else {})))
    options: dict[str, Any] = {
        **arms,
        "trainer": how,
        "staleness": staleness,
        "learning_rate": rates,
        "lr_rule": lr_rule,
        "responses_max": responses_max,
        "target": target or None,
        "evaluate_every": evaluate_every,
        "mean_at": sampled,
        "step_time_intercept": step_seconds,
        "step_time_slope": response_seconds,
        "seeds": seeds,
        "seed": seed,
    }
    with bar(max(len(v) for v in (*arms.values(), rates, critic or [])) * seeds, "runs") as advance:
        options["progress"] = lambda done, total: advance()
        tree = (
            simulate_grpo(built, **options)
            if algorithm == "grpo"
            else simulate_ppo(built, critic_learning_rate=critic, **options)
        )
    if out is not None:
        shown.save(tree, out)
    if plot is not None:
        opt.save_plot(plot, lambda ax: shown.draw_runs(tree, target or None, ax))
    result = _as_answer(tree, algorithm, built, how, options, world, trainer, out)
    if json:
        from batchsim.cli import answer

        answer.write(result)
    else:
        _print(result)


def _mean_at(text: str | None, validation: int) -> tuple[int, int]:
    """Prompts and samples of `--mean-at`."""
    if text is None:
        return 0, 0
    found = opt.numbers(text, "--mean-at")
    if len(found) != 2 or not all(1 <= v <= 2**20 and v == int(v) for v in found) or found[0] > validation:
        raise InputError(
            f"--mean-at {text} is not N,K with N from 1 to {validation:,} validation prompts and K from 1 to 1,048,576",
            remedy="as --mean-at 64,8",
        )
    return int(found[0]), int(found[1])


def _as_answer(
    tree: xr.DataTree,
    algorithm: str,
    built: SoftmaxWorld,
    how: Trainer,
    options: dict[str, Any],
    world: dict[str, Any],
    trainer: dict[str, Any],
    out: Path | None,
) -> dict[str, Any]:
    """The JSON answer; what is not known or never reached is null."""
    from batchsim.cli import simulated_runs as shown
    from batchsim.variables import SCHEMA

    known: dict[int, float | None] = {}

    def noise_scale(ds: xr.Dataset) -> float | None:
        group = int(ds.attrs["group_size"])
        if group not in known:
            known[group] = _true_noise(built, how, group)
        return known[group]

    rows = shown.rows_of(tree, options["target"], noise_scale)
    return {
        "schema": SCHEMA,
        "verb": f"simulate {algorithm}",
        **{name: options[name] for name in ("target", "seeds", "seed", "responses_max", "evaluate_every")},
        **{name: options[name] for name in ("step_time_intercept", "step_time_slope", "staleness")},
        "mean_at": list(options["mean_at"]),
        "trainer": trainer,
        "world": world,
        "batches": rows,
        "soonest": shown.soonest(rows),
        "out": None if out is None else str(out),
        "warnings": list(tree.attrs["warnings"]),
    }


NOISE_BYTES = 2**28
"""Of features, beyond which their exact moments, some ten times as large, are not computed."""


def _true_noise(built: SoftmaxWorld, how: Trainer, group: int) -> float | None:
    """Noise scale before training [responses], without a KL penalty."""
    import numpy as np

    from batchsim.cli.answer import number
    from batchsim.learning.worlds import true_noise, true_value_noise

    if built.features.nbytes > NOISE_BYTES:
        return None
    start = np.zeros(built.dim)
    if how.algorithm == "grpo":
        return number(
            true_noise(
                built, start, group_size=group, advantage=how.advantage, zero_variance=how.zero_variance
            ).noise_scale
        )
    if group > 1:
        # Responses to one prompt share it: what is exact is the noise of one response per prompt.
        return None
    return number(true_value_noise(built, start, built.value_start, normalise=how.normalise)[0].noise_scale)


def _print(result: dict[str, Any]) -> None:
    """Print the table of `_as_answer`."""
    from batchsim.cli.simulated_runs import print_runs
    from batchsim.cli.table import make_console, print_notes

    console = make_console()
    world = result["world"]
    goal = "" if result["target"] is None else f" to a score of {result['target']:g}"
    title = (
        f"{result['verb'].split()[1].upper()}{goal}: {world['prompts']:,} prompts, {world['answers']} answers, "
        f"{world['dim']:,} features; {result['seeds']} run{'s' if result['seeds'] != 1 else ''} per batch; a step "
        f"takes {result['step_time_intercept']:g} s + {result['step_time_slope']:g} s per generated response"
    )
    print_runs(console, title, result["batches"], target=result["target"])
    if result["out"] is not None:
        metric = " --metric val/score" if result["mean_at"][0] else ""
        console.print(f"Runs: {result['out']}; next: batchsim measure {result['out']}{metric}", soft_wrap=True)
    print_notes(console, result["warnings"])
