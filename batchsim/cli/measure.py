"""`batchsim measure`: what happened, no model."""

from __future__ import annotations

from batchsim.cli import options as opt
from batchsim.errors import InputError


def measure(
    logs: opt.Logs = None,
    target: opt.Target = None,
    metric: opt.Metric = None,
    example: opt.Example = None,
    level: opt.Level = 0.8,
    seed: opt.Seed = 0,
    prompts: opt.Prompts = None,
    group_size: opt.GroupSize = None,
    updates_per_rollout: opt.UpdatesPerRollout = None,
    epochs: opt.Epochs = None,
    step_seconds: opt.StepSeconds = None,
    learning_rate: opt.LearningRate = None,
    chunks: opt.Chunks = None,
    column: opt.Column = None,
    json: opt.Json = False,
) -> None:
    """State N*, q, T, r_N, r_q and the verdict of measured runs.

    Runs that share batch, group size and learning rate are one arm; ratios are against the smallest
    batch. N* is an interval, since evaluations are sparse.
    """
    from batchsim.cli import answer, table
    from batchsim.measure import measure as measure_runs

    paths = list(logs or [])
    if example is not None:
        paths.append(str(opt.example_path(example)))
    plans = [p for p in paths if p.endswith(".toml")]
    if plans:
        raise InputError(f"{plans[0]} is a plan, and measure reads logs", remedy=f"batchsim predict {plans[0]}")
    if not paths:
        raise InputError(
            "no logs given", remedy="name files or folders, or try: batchsim measure --example verl-sweep --target 0.55"
        )
    runs = opt.load_runs(
        paths,
        {
            "prompts": prompts,
            "group_size": group_size,
            "updates_per_rollout": updates_per_rollout,
            "epochs": epochs,
            "step_seconds": step_seconds,
            "learning_rate": learning_rate,
            "chunks": chunks,
            "columns": opt.column_map(column),
        },
    )
    measured = measure_runs(runs, target=target, metric=metric, level=level, seed=seed)
    if json:
        answer.write(answer.from_measurement(measured))
    else:
        table.print_measurement(measured)
