"""Logs of every framework as text, made of numbers that tell where they belong.

`text(name, steps, tag)` is a log of the steps, in the exact shape that the framework prints. The number of a metric
is ``tag`` (the log), then the step, then the metric: 1.0712 is metric 12 of step 7 of log 1, so that a test
knows of every number that a reader hands out whose it is.
"""

from __future__ import annotations

import json
import pprint
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

Number = Callable[[int, int], str]


def coded(tag: int, step: int, metric: int) -> str:
    """The number of a metric: five digits, as the coarsest of the formats prints."""
    return f"{tag}.{step:02d}{metric:02d}"


def decoded(value: float) -> tuple[int, int, int]:
    """Log, step and metric of a number."""
    digits = round(Decimal(repr(value)) * 10_000)
    return digits // 10_000, digits // 100 % 100, digits % 100


def verl(steps: Iterable[int], tag: int) -> str:
    names = ("actor/grad_norm", "critic/rewards/mean", "response_length/mean", "timing_s/gen", "timing_s/step")
    lines = []
    for step in steps:
        values = " - ".join(f"{name}:{coded(tag, step, place)}" for place, name in enumerate(names))
        lines.append(f"(TaskRunner pid=1) step:{step} - {values}")
        lines.append("(TaskRunner pid=1) some other text")
    return "\n".join(lines) + "\n"


def verl_file(steps: Iterable[int], tag: int) -> str:
    names = ("actor/grad_norm", "critic/rewards/mean", "response_length/mean", "timing_s/step")
    rows = [{"step": s, "data": {n: float(coded(tag, s, p)) for p, n in enumerate(names)}} for s in steps]
    return "".join(json.dumps(row) + "\n" for row in rows)


def trl(steps: Iterable[int], tag: int) -> str:
    lines = []
    for step in steps:
        pairs = {"loss": 0, "grad_norm": 1, "reward": 2, "completions/mean_length": 3, "step_time": 4}
        row = ", ".join(f"'{name}': {coded(tag, step, place)}" for name, place in pairs.items())
        lines.append(f"  1%|▏         | {step}/99 [{step // 60:02d}:{step % 60:02d}<01:00,  1.00s/it]")
        lines.append(f"{{{row}, 'epoch': {round(step / 7, 4)}}}")
    return "\n".join(lines) + "\n"


def mlperf(steps: Iterable[int], tag: int) -> str:
    def event(time: int, key: str, value: object, **metadata: object) -> str:
        entry = {"namespace": "", "time_ms": time, "event_type": "POINT", "key": key, "value": value}
        return ":::MLLOG " + json.dumps({**entry, "metadata": metadata})

    head = {"global_batch_size": 16, "num_prompts_per_step": 4, "num_generations_per_prompt": 4}
    lines = [event(0, key, value) for key, value in head.items()] + [event(1, "run_start", None)]
    for step in steps:
        count, time = 16 * step, 1000 * step
        stats = {"reward": float(coded(tag, step, 1)), "grad_norm": float(coded(tag, step, 2))}
        times = {"train_step_time": float(coded(tag, step, 3)), "policy_training_time": float(coded(tag, step, 4))}
        lines += [event(time, "tracked_stats", part, step=step, samples_count=count) for part in (stats, times)]
        lines.append(event(time + 1, "eval_start", None, samples_count=count))
        lines.append(event(time + 2, "eval_accuracy", float(coded(tag, step, 5)), samples_count=count))
        lines.append(event(time + 3, "eval_stop", None, samples_count=count))
    return "\n".join(lines) + "\n"


def table(steps: Iterable[int], tag: int) -> str:
    rows = [",".join([str(s), *(coded(tag, s, p) for p in range(4))]) for s in steps]
    return "\n".join(["rollout_step,grad_norm,train_reward,response_length,score", *rows]) + "\n"


def wandb_history(steps: Iterable[int], tag: int) -> str:
    names = ["_step", "_runtime", "training/global_step", "actor/grad_norm", "critic/rewards/mean"]
    rows = [f"{s},{100 * s},{s},{coded(tag, s, 0)},{coded(tag, s, 1)}" for s in steps]
    return "\n".join([",".join(names), *rows]) + "\n"


def openrlhf(steps: Iterable[int], tag: int) -> str:
    lines = []
    for step in steps:
        names = ["policy_loss", "actor_lr", "actor_grad_norm", "reward", "response_length", "timing/generation"]
        names += ["timing/make_experience", "timing/ppo_train", "timing/broadcast", "timing/step_total"]
        row = ", ".join(f"'{name}': {coded(tag, step, place)}" for place, name in enumerate(names))
        lines.append(f"2026-08-01 10:01:41 INFO ✨ Global step {step}: {{{row}}}")
        scores = f"'eval_aime_pass1': {coded(tag, step, 20)}, 'eval_num_samples': 30.0"
        lines.append(f"INFO ✨ Evaluation completed in 00:03:12, global_step {step}, eval_metrics: {{{scores}}}")
    return "\n".join(lines) + "\n"


def slime(steps: Iterable[int], tag: int) -> str:
    def line(kind: str, number: int, step: int, names: dict[str, int], file: str) -> str:
        row = ", ".join(f"'{name}': {coded(tag, step, place)}" for name, place in names.items())
        return f"[2026-08-01 10:00:{number % 60:02d}] {file}.py:268 - {kind} {number}: {{{row}}}"

    lines = []
    for step in steps:
        rollout = {"rollout/response_len/mean": 1, "rollout/truncated_ratio": 2, "perf/rollout_time": 3}
        lines.append(line("perf", step, step, rollout, "rollout_metrics"))
        lines.append(line("rollout", step, step, {"rollout/raw_reward": 4}, "train_metric_utils"))
        for update in (2 * step, 2 * step + 1):
            lines.append(line("step", update, step, {"train/grad_norm": 5, "train/lr-pg_0": 6}, "model"))
        trainer = {"perf/train_wait_time": 7, "perf/train_time": 8, "perf/actor_train_time": 9, "perf/step_time": 10}
        lines.append(line("perf", step, step, trainer, "train_metric_utils"))
        lines.append(line("eval", step, step, {"eval/aime": 11, "eval/aime-truncated_ratio": 12}, "rollout_metrics"))
    return "\n".join(lines) + "\n"


def nemo_rl(steps: Iterable[int], tag: int) -> str:
    lines = []
    for step in steps:
        total, train = 100.0 + step + tag / 10, 10.0 + step + tag / 10
        lines += [
            "",
            f"========================= Step {step}/99 =========================",
            "▶ Generating responses...",
            f"▶ Starting validation at step {step}...",
            "",
            "📊 Validation Results:",
            f"    • Accuracy: {coded(tag, step, 5)}",
            "    • Average response length: 801.2 tokens",
            "    • Samples processed: 256",
            "",
            "  ⏱️  Validation Timing:",
            "    • Total validation time: 0.50s",
            "",
            "📊 Training Results:",
            f"  • Loss: {coded(tag, step, 1)}",
            f"  • Avg Reward: {coded(tag, step, 2)}",
            f"  • Mean Generation Length: {coded(tag, step, 3)}",
            "",
            "⏱️  Timing:",
            f"  • Total step time: {total:.2f}s",
            f"  • policy_training: {train:.2f}s ({100 * train / total:.1f}%)",
            f"  • generation: 5.00s ({500 / total:.1f}%)",
            "",
            "🔍 Performance Metrics:",
            "  • Throughputs (per Group):",
            f"    - E2E (Samples/sec): {16 / total:.2f}",
        ]
    return "\n".join(lines) + "\n"


def merged(steps: Iterable[int], tag: int) -> str:
    names = ("timing/train/total_step_time", "train/grad_norm", "train/lr", "train/reward", "validation/accuracy")
    tags = {name: {str(s): float(coded(tag, s, p)) for s in steps} for p, name in enumerate(names)}
    return json.dumps(tags, indent=2)


def skyrl(steps: Iterable[int], tag: int) -> str:
    names = ["generate/avg_num_tokens", "policy/grad_norm", "policy/policy_loss", "reward/avg_raw_reward"]
    names += ["timing/fwd_logprobs_values_reward", "timing/generate", "timing/step", "eval/all/avg_score"]
    lines = []
    for step in steps:
        values: dict[str, object] = {name: coded(tag, step, place) for place, name in enumerate(names)}
        shown = pprint.pformat(values | {"trainer/global_step": step})
        lines.append(f"2026-08-01 10:01:41.000 | INFO     | skyrl.train.utils.tracking:log:1 - Step {step}: \n{shown}")
        lines.append("2026-08-01 10:01:42.000 | INFO     | skyrl.train.utils:log:1 - Started: 'generate'")
    return "\n".join(lines) + "\n"


def areal(steps: Iterable[int], tag: int) -> str:
    names = ["ppo_actor/update/grad_norm", "ppo_actor/update/lr", "ppo_actor/task_reward/avg", "ppo_actor/seq_len/avg"]
    names += ["timeperf/rollout", "timeperf/train_step", "timeperf/update_weights", "eval-rollout/reward"]
    lines = []
    for step in steps:
        cells = [(name, f"{float(coded(tag, step, place)):.4e}") for place, name in enumerate(names)]
        rows = [cells[row::2] for row in range(2)]
        widths = [max(len(rows[row][pair][side]) for row in range(2)) + 2 for pair in range(4) for side in range(2)]
        bars = ["═" * width for width in widths]
        lines.append(f"20260801-10:01:41.000 StatsLogger INFO: Epoch 1/9 Step {step}/9 Train step {step}/99 done.")
        lines += ["20260801-10:01:41.000 StatsLogger INFO: Stats (1/1):", "StatsLogger INFO: "]
        lines.append("╒" + "╤".join(bars) + "╕")
        for place, row in enumerate(rows):
            shown = [f" {cell:<{width - 1}}" for cell, width in zip(sum(row, ()), widths, strict=True)]
            lines += ["│" + "│".join(shown) + "│"]
            lines += ["├" + "┼".join("─" * width for width in widths) + "┤"] if place == 0 else []
        lines.append("╘" + "╧".join(bars) + "╛")
    return "\n".join(lines) + "\n"


def roll(steps: Iterable[int], tag: int) -> str:
    names = ["time/step_generate", "time/step_train", "actor_train/grad_norm", "actor/lr", "critic/rewards/mean"]
    names += ["token/response_length/mean", "val_correct/all/mean"]
    lines = []
    for step in steps:
        values: dict[str, float] = {name: float(coded(tag, step, place)) for place, name in enumerate(names)}
        values |= {"time/step_total": 100.0 * (step - 1) + tag if step else 0.0}
        values |= {"system/global_step": step, "system/batch_size": 16, "system/samples": 16 * (step + 1)}
        lines.append(f"[2026-08-01 10:01:41] [rlvr_pipeline.py (832)] [INFO] pipeline step {step} start...")
        lines.append(f"[2026-08-01 10:01:41] [rlvr_pipeline.py (832)] [INFO] {json.dumps(values)}")
    return "\n".join(lines) + "\n"


def prime_rl(steps: Iterable[int], tag: int) -> str:
    parts = (
        ("perf/throughput", "perf/mfu"),
        ("optim/lr", "optim/grad_norm"),
        ("reward/all/mean", "off_policy/mean", "off_policy/max"),
        ("time/step", "time/wait_for_batch", "time/forward_backward"),
    )
    lines = []
    for step in steps:
        for first, names in zip((0, 2, 4, 7), parts, strict=True):
            values = {name: float(coded(tag, step, first + place)) for place, name in enumerate(names)}
            lines.append(json.dumps({"step": step, "time": 1.5, **values}))
    return "\n".join(lines) + "\n"


def prime_rl_console(steps: Iterable[int], tag: int) -> str:
    lines = []
    for step in steps:
        c = [coded(tag, step, place) for place in range(6)]
        lines.append(
            f"10:01:41 SUCCESS Step {step} | Time: {c[0]}s | Loss: {c[1]} | Entropy: {c[2]} | Grad. Norm: {c[3]} | "
            f"LR: 1.00e-06 | Throughput: 15231 tokens/s | MFU: 31.0% | Peak Mem.: 60.1 GiB"
        )
    return "\n".join(lines) + "\n"


def tinker(steps: Iterable[int], tag: int) -> str:
    names = ("env/all/reward/total", "env/all/ac_tokens_per_turn", "time/total", "time/train_step", "optim/entropy")
    lines = []
    for step in steps:
        values = {name: float(coded(tag, step, place)) for place, name in enumerate(names)}
        fixed = {"progress/batch": step, "progress/done_frac": 0.5, "optim/lr": 4e-05, "env/all/total_episodes": 16}
        scores = {"test/env/all/correct": float(coded(tag, step, 20))}
        lines.append(json.dumps({"step": step, **fixed, **values, **scores}))
    return "\n".join(lines) + "\n"


def easyr1(steps: Iterable[int], tag: int) -> str:
    lines = []
    for step in steps:
        c = [float(coded(tag, step, place)) for place in range(6)]
        groups = {"actor": {"grad_norm": c[0], "lr": 1e-06}, "timing_s": {"gen": c[1], "step": c[2]}}
        more = {"critic": {"rewards": {"mean": c[3]}}, "val": {"reward_score": c[4]}}
        lines.append(json.dumps({"step": step, **groups, **more}))
    return "\n".join(lines) + "\n"


def rlinf(steps: Iterable[int], tag: int) -> str:
    lines = []
    for step in steps:
        c = [coded(tag, step, place) for place in range(6)]
        lines += [
            "╭" + "─" * 60 + "╮",
            "├" + "─" * 20 + " Metric Table " + "─" * 26 + "┤",
            f"│ Global Step:    {step}/99 │ Step Time: {c[0]}s │ ETA: 1:00 │",
            "├" + "─" * 26 + " Time " + "─" * 28 + "┤",
            f"│rollout={c[1]}      │ actor/training={c[2]} │ sync_weights={c[3]}  │",
            "├" + "─" * 20 + " Training/Actor " + "─" * 24 + "┤",
            f"│grad_norm={c[4]}    │ lr=1e-06              │",
            "├" + "─" * 20 + " Rollout " + "─" * 31 + "┤",
            f"│rewards={c[5]}      │",
            "╰" + "─" * 60 + "╯",
        ]
    return "\n".join(lines) + "\n"


LINES: dict[str, Callable[[Iterable[int], int], str]] = {
    "verl": verl,
    "verl_file": verl_file,
    "mlperf": mlperf,
    "table": table,
    "wandb_history": wandb_history,
    "openrlhf": openrlhf,
    "roll": roll,
    "prime_rl_console": prime_rl_console,
    "tinker": tinker,
    "easyr1": easyr1,
}
"""Formats in which a step is one line, or lines that each name their step."""

PARTS: dict[str, Callable[[Iterable[int], int], str]] = {"slime": slime, "prime_rl": prime_rl}
"""Formats in which several lines with the same number are one step."""

BLOCKS: dict[str, Callable[[Iterable[int], int], str]] = {
    "trl": trl,
    "nemo_rl": nemo_rl,
    "skyrl": skyrl,
    "areal": areal,
    "rlinf": rlinf,
}
"""Formats in which only the first line of a step names it."""

FORMATS = {**LINES, **PARTS, **BLOCKS}
ENDINGS = {"table": ".csv", "wandb_history": ".csv", "merged": ".json"}


def options(name: str) -> dict[str, Any]:
    """What the log of a format lacks."""
    if name in ("mlperf",):
        return {}
    return {
        "prompts": 4,
        "group_size": 4,
        **({} if name.startswith(("prime", "slime")) else {"updates_per_rollout": 1}),
    }
