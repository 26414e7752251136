"""Breaks each closed form in one place and shows which test notices: `python tests/break_formulas.py` (some minutes).

A mutation is one edit of one file: a sign, an exponent, a factor 2, a swapped ratio, a bound. It is made in a temporary
copy of the package and its tests, and the tests named with it run there until one fails; the working tree is only read.
The table goes to docs/broken.md. A mutation that nothing notices is a survivor: the exit status is 1, and a test is owed.

    python tests/break_formulas.py --only progress      # those of one file; writes nothing
"""

# ruff: noqa: E501 (edits are quoted as they stand)
from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copy2

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "broken.md"
REFERENCE = "tests/test_reference.py"
MARK = "| formula | broken as | noticed by |"


@dataclass(frozen=True, kw_only=True)
class Break:
    """One edit: `old`, which occurs once in `file`, becomes `new`."""

    file: str
    formula: str
    old: str
    new: str
    tests: tuple[str, ...] = (REFERENCE,)


def _of(file: str, *edits: tuple[str, str, str], tests: Sequence[str] = ()) -> list[Break]:
    return [
        Break(file=f"batchsim/{file}", formula=f, old=old, new=new, tests=(REFERENCE, *tests)) for f, old, new in edits
    ]


BREAKS: list[Break] = [
    *_of(
        "criterion.py",
        (
            "T = N*/q",
            "np.asarray(responses_to_target) / np.asarray(throughput)",
            "np.asarray(responses_to_target) * np.asarray(throughput)",
        ),
        (
            "T/T_0 = r_N/r_q",
            "np.asarray(sample_cost_ratio) / np.asarray(throughput_ratio)",
            "np.asarray(throughput_ratio) / np.asarray(sample_cost_ratio)",
        ),
        (
            "r_q > r_N",
            "np.asarray(throughput_ratio) > np.asarray(sample_cost_ratio)",
            "np.asarray(throughput_ratio) < np.asarray(sample_cost_ratio)",
        ),
        (
            "r_q > r_N, a tie",
            "np.asarray(throughput_ratio) > np.asarray(sample_cost_ratio)",
            "np.asarray(throughput_ratio) >= np.asarray(sample_cost_ratio)",
        ),
        ("saving", "(1 - np.asarray(time_ratio))", "(1 + np.asarray(time_ratio))"),
        ("GPU-hours", "np.asarray(gpus) / SECONDS_PER_HOUR", "np.asarray(gpus) * SECONDS_PER_HOUR"),
        ("verdict", "p_wins <= loses_at", "p_wins < loses_at"),
        tests=("tests/test_criterion.py",),
    ),
    *_of(
        "time_to_target.py",
        ("best batch, tuned", "np.sqrt(noise) * np.sqrt(a))", "np.sqrt(noise) / np.sqrt(a))"),
        ("best batch, sqrt rule", "np.sqrt(a + 8 * noise)) / 2", "np.sqrt(a + 4 * noise)) / 2"),
        (
            "best batch, fixed rate",
            "2 * a / (1 + np.sqrt(1 + 8 * a / noise))",
            "2 * a / (1 + np.sqrt(1 + 8 * noise / a))",
        ),
        ("penalty of a wrong batch", "(2 + k + 1 / k) / 4", "(2 + k + 1 / k) / 2"),
        ("plateau", "np.sqrt(off / w) * (1 + w) / 2", "np.sqrt(off / w) * (1 - w) / 2"),
        ("plateau, factor 2", "np.exp(2 * np.arcsinh(", "np.exp(np.arcsinh("),
        ("effective range", "p >= RANGE_PROBABILITY", "p > RANGE_PROBABILITY"),
        ("near the best", "t <= near_best * best", "t >= near_best * best"),
        ("star", "within[0] if within.size", "within[-1] if within.size"),
        tests=("tests/test_time_to_target.py",),
    ),
    *_of(
        "learning/progress.py",
        ("drift form", "np.asarray(1 / np.sqrt(1 + b))", "np.asarray(1 / (1 + b))"),
        (
            "f_k, exponent",
            "np.exp(-(ks + 1) * np.log1p(bs * _NODES**2 / ks))",
            "np.exp(-ks * np.log1p(bs * _NODES**2 / ks))",
        ),
        (
            "f_k, large batches",
            "-(s**2) - (ks + 1) * np.log1p(bs * s**2 / ks)",
            "-(s**2) - (ks - 1) * np.log1p(bs * s**2 / ks)",
        ),
        ("f_k, digits at large batches", "_LARGE = 1e4", "_LARGE = 1e20"),
        ("A(B), root of the batch", "np.sqrt(b) * signal_function", "b * signal_function"),
        ("step cost, SGD", "np.asarray(1 + 1 / b)", "np.asarray(1 + b)"),
        (
            "step cost, Adam",
            "(b + 1 / np.asarray(curvature_ratio)) / (b + 1)",
            "(b + np.asarray(curvature_ratio)) / (b + 1)",
        ),
        ("kept progress, sign", "-np.log1p(growth) / safe", "np.log1p(growth) / safe"),
        ("kept progress, best rate", "np.where(small, 1.0, 1 - p)", "np.where(small, 1.0, 1 + p)"),
        ("A from moments", "np.sqrt(scale + v / b) + epsilon", "np.sqrt(scale + v * b) + epsilon"),
        tests=("tests/test_progress.py", "tests/test_mechanism.py"),
    ),
    *_of(
        "learning/sample_cost.py",
        ("r_N, slope ratio", "(rk / s) * np.exp(log_cost)", "(1 / (rk * s)) * np.exp(log_cost)"),
        ("r_N, rate", "(rk / s) * np.exp(log_cost)", "(rk * s) * np.exp(log_cost)"),
        (
            "r_N, kept progress",
            "log_progress_factor(c0, penalty_shape=penalty_shape) - kept",
            "kept - log_progress_factor(c0, penalty_shape=penalty_shape)",
        ),
        ("r_N, curvature", "c0 * s * rk * np.asarray(cost_ratio)", "c0 * s * rk / np.asarray(cost_ratio)"),
        (
            "r_k = A(B_0)/A(B)",
            "usable_slope(reference_batch, **slope) / usable_slope(train_batch, **slope)",
            "usable_slope(train_batch, **slope) / usable_slope(reference_batch, **slope)",
        ),
        (
            "h_r = h(B)/h(B_0)",
            "step_cost(train_batch, **bend) / step_cost(reference_batch, **bend)",
            "step_cost(reference_batch, **bend) / step_cost(train_batch, **bend)",
        ),
        ("critical training batch", "limit = DEPARTURE * cost(low)", "limit = cost(low) / DEPARTURE"),
        tests=("tests/test_sample_cost.py",),
    ),
    *_of(
        "learning/lr_rule.py",
        ("sqrt rule", '"sqrt": 0.5', '"sqrt": 1.0'),
        ("linear rule", '"linear": 1.0', '"linear": 0.5'),
        ("tuned rate", "1 / (c0 * rk * hr)", "1 / (c0 * hr)"),
        (
            "invariant rate, root",
            "(1 + np.sqrt(np.maximum(1 - 2 * wanted, 0)))",
            "(1 - np.sqrt(np.maximum(1 - 2 * wanted, 0)))",
        ),
        ("invariant rate, factor", "x * rk * (2 - c0)", "x * rk * (1 - c0)"),
        ("invariant rate, wanted", "x * rk**2 * hr * c0", "x * rk * hr * c0"),
        ("invariant rate, soft penalty", "x * rk * start * high", "x * rk * high"),
        ("ceiling", "np.minimum(s, np.asarray(ceiling", "np.maximum(s, np.asarray(ceiling"),
        tests=("tests/test_lr_rule.py", "tests/test_mechanism.py"),
    ),
    *_of(
        "learning/mechanism.py",
        ("trust region", "np.sqrt(most / usual)", "most / usual"),
        ("few updates, sign", "(1 + memory / s) / (1 + memory / s0)", "(1 - memory / s) / (1 + memory / s0)"),
        ("few updates, mean age", "np.asarray(loss) * b / (1 - b)", "np.asarray(loss) / (1 - b)"),
        ("epsilon", "1 / (np.sqrt(1 + 1 / b) + e)", "1 / (np.sqrt(1 + 1 / b) - e)"),
        (
            "noise floor, candidate",
            "np.log1p((d0 - d) / np.where(f < d, d - f, np.nan))",
            "np.log1p((d0 - d) / np.where(f < d, d + f, np.nan))",
        ),
        ("noise floor, digits", "np.log1p((d0 - d) / (d - f0))", "np.log((d0 - f0) / (d - f0))"),
        ("staleness", "(1 + a * late**q) / (1 + a * usual**q)", "(1 + a * usual**q) / (1 + a * late**q)"),
        ("lag, position", "(m - 1) / 2 + m", "(m + 1) / 2 + m"),
        (
            "lag, Little's law",
            "m * np.asarray(in_flight) / np.asarray(rollout_batch)",
            "np.asarray(in_flight) / np.asarray(rollout_batch)",
        ),
        ("KL penalty", "np.asarray((1 - k0) / (1 - k))", "np.asarray((1 - k) / (1 - k0))"),
        ("actor and critic", "np.maximum(a, c)", "np.minimum(a, c)"),
        tests=("tests/test_mechanism.py",),
    ),
    *_of(
        "learning/companions.py",
        ("beta", "1 - batch_ratio * (1 - value)", "1 - (1 - value) / batch_ratio"),
        (
            "proximal beta",
            "proximal_beta / (1 - proximal_beta) / batch_ratio",
            "proximal_beta / (1 - proximal_beta) * batch_ratio",
        ),
        ("epsilon at another batch", "epsilon=epsilon / root", "epsilon=epsilon * root"),
        ("clip at another batch", "gradient_clip / root", "gradient_clip * root"),
        tests=("tests/test_mechanism.py",),
    ),
    *_of(
        "learning/noise_scale/norms.py",
        (
            "unbiased pair, signal",
            "(train_batch * large - b * small) / (train_batch - b)",
            "(train_batch * large + b * small) / (train_batch + b)",
        ),
        (
            "unbiased pair, noise",
            "(small - large) / (1 / b - 1 / train_batch)",
            "(small - large) / (1 / b + 1 / train_batch)",
        ),
        (
            "norms on 1/B",
            "np.stack([np.ones_like(batches), 1 / batches], axis=1)",
            "np.stack([np.ones_like(batches), batches], axis=1)",
        ),
        tests=("tests/test_noise_scale.py",),
    ),
    *_of(
        "learning/noise_scale/nested.py",
        ("nested signal", "(p * batch - group) / (p - 1)", "(p * batch - group) / (p + 1)"),
        ("nested group trace", "group_size * p * (group - batch) / (p - 1)", "group_size * (group - batch) / (p - 1)"),
        ("nested response trace", "group_size * (inner - group) / (parts - 1)", "group_size * (inner - group) / parts"),
        (
            "prompt variance",
            "(self.group_trace - self.response_trace) / self.group_size",
            "(self.group_trace + self.response_trace) / self.group_size",
        ),
        ("square norm", "self.response_variance / (p * g)", "self.response_variance / p"),
        ("another group size", "[0.0, x, 1 - x]", "[0.0, 1 - x, x]"),
        ("group baseline", "np.sqrt(share) if normalised else share", "share if normalised else np.sqrt(share)"),
        tests=("tests/test_noise_scale_nested.py",),
    ),
    *_of(
        "learning/noise_scale/units.py",
        (
            "mean norm",
            "1 / (1 + np.asarray(variation, dtype=np.float64) ** 2)",
            "1 / (1 - np.asarray(variation, dtype=np.float64) ** 2)",
        ),
        (
            "kept and generated",
            "np.asarray(kept, dtype=np.float64) / _share(kept_share)",
            "np.asarray(kept, dtype=np.float64) * _share(kept_share)",
        ),
        ("mini-batch", "np.asarray(b * e / m)", "np.asarray(b * m / e)"),
        tests=("tests/test_noise_scale_nested.py",),
    ),
    *_of(
        "learning/noise_scale/coordinates.py",
        ("Adam's state", "1 - (1 - rho) * one + spread", "1 - (1 + rho) * one + spread"),
        tests=("tests/test_noise_scale_coordinates.py",),
    ),
    *_of(
        "learning/noise_scale/estimate.py",
        ("B_noise", "value = noise / signal", "value = signal / noise"),
        tests=("tests/test_noise_scale.py",),
    ),
    *_of(
        "system/pipeline/__init__.py",
        (
            "capped concurrency",
            "1 / (np.asarray(gen_time_intercept) / c + np.asarray(gen_time_slope))",
            "1 / (np.asarray(gen_time_intercept) * c + np.asarray(gen_time_slope))",
        ),
        (
            "generation",
            "np.maximum(affine, b / np.asarray(gen_throughput_max))",
            "np.minimum(affine, b / np.asarray(gen_throughput_max))",
        ),
        (
            "critical generation batch",
            "gen_time_intercept / (1 / (PLATEAU_SHARE * plateau) - np.asarray(gen_time_slope))",
            "gen_time_intercept / (1 / (PLATEAU_SHARE * plateau) + np.asarray(gen_time_slope))",
        ),
        (
            "launched per kept",
            "r * np.asarray(gen_ratio) / np.asarray(kept_share)",
            "r * np.asarray(gen_ratio) * np.asarray(kept_share)",
        ),
        ("stages in turn", "else generation + training", "else np.maximum(generation, training)"),
        (
            "stages at once",
            'np.maximum(generation, training) if mode == "async"',
            'np.minimum(generation, training) if mode == "async"',
        ),
        (
            "throughput",
            "np.asarray(rollout_batch, dtype=np.float64) / rollout_step_time",
            "np.asarray(rollout_batch, dtype=np.float64) * rollout_step_time",
        ),
        ("mean over progress", "(5 / 18, 8 / 18, 5 / 18)", "(4 / 18, 8 / 18, 6 / 18)"),
        tests=("tests/test_pipeline.py",),
    ),
    *_of(
        "system/step_time.py",
        (
            "step time",
            "update_time_intercept + np.asarray(update_time_slope) * np.asarray(rollout_batch)",
            "update_time_intercept - np.asarray(update_time_slope) * np.asarray(rollout_batch)",
        ),
        tests=("tests/test_dimensions.py", "tests/test_step_time.py", "tests/test_properties.py"),
    ),
    *_of(
        "system/memory.py",
        (
            "KV capacity, weights",
            "memory_share * memory * tensor_parallel - weight_bytes",
            "memory_share * memory * tensor_parallel + weight_bytes",
        ),
        (
            "KV capacity, context",
            "free / (kv_bytes_per_token * context_length)",
            "free / kv_bytes_per_token * context_length",
        ),
        ("KV capacity, replicas", "return replicas * min(max_num_seqs, held)", "return min(max_num_seqs, held)"),
        (
            "cache of a window",
            "self.window_bytes * np.minimum(c, self.window)",
            "self.window_bytes * np.maximum(c, self.window)",
        ),
        tests=("tests/test_memory.py", "tests/test_roofline.py"),
    ),
    *_of(
        "specs/lengths.py",
        ("context in flight", "(self.prompt_mean or 0.0) + mean / 2", "(self.prompt_mean or 0.0) + mean"),
        tests=("tests/test_predict_specified.py",),
    ),
    *_of(
        "system/rollout/lengths.py",
        (
            "context of unequal lengths",
            "math.fsum(n * n for n in sample) / (2 *",
            "math.fsum(n * n for n in sample) / (1 *",
        ),
        ("square of cut lengths", "math.exp(2 * m + 2 * s * s)", "math.exp(2 * m + s * s)"),
        tests=("tests/test_rollout_lengths.py",),
    ),
    *_of(
        "system/roofline/__init__.py",
        (
            "ridge",
            "layer[:, 2] / layer[:, 3]) / np.sum(layer[:, 0] * layer[:, 4])",
            "layer[:, 3] / layer[:, 2]) / np.sum(layer[:, 0] * layer[:, 4])",
        ),
        ("ridge of experts", "per_expert / (per_token * groups)", "per_token / (per_expert * groups)"),
        tests=("tests/test_theory.py",),
    ),
    *_of(
        "system/roofline/deployment.py",
        ("FLOP of a product", "2 * inputs * outputs / (share * flops)", "inputs * outputs / (share * flops)"),
        ("bytes of a product", "inputs * outputs * m.bits / 8", "inputs * outputs * m.bits"),
        tests=("tests/test_theory.py",),
    ),
    *_of(
        "system/roofline/_kernels.py",
        ("touched experts", "-np.expm1(tokens * np.log1p(-p))", "-np.expm1(tokens * np.log1p(p))"),
        tests=("tests/test_roofline.py",),
    ),
    *_of(
        "system/rollout/_kernels.py",
        ("decode steps of one batch", "steps * (steps - 1.0) / 2.0", "steps * (steps + 1.0) / 2.0"),
        tests=("tests/test_rollout_exact.py",),
    ),
    *_of(
        "variables.py",
        (
            "unit of a noise scale",
            '_variable("B_noise", "responses", "gradient noise scale',
            '_variable("B_noise", "1", "gradient noise scale',
        ),
        tests=("tests/test_theory.py", "tests/test_dimensions.py"),
    ),
]


def broken_text(change: Break) -> str:
    """Text of the file with the edit made.

    Raises
    ------
    ValueError
        If the old text does not occur exactly once, or the new one does not compile.
    """
    text = (ROOT / change.file).read_text(encoding="utf-8")
    if text.count(change.old) != 1:
        raise ValueError(f"{change.file} holds {change.old!r} {text.count(change.old)} times, not once")
    new = text.replace(change.old, change.new)
    compile(new, change.file, "exec")
    return new


def _copy(folder: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copy2(ROOT / name, folder / name)


def _write(path: Path, text: str) -> None:
    """Write a module; its bytecode goes, since equal sizes within a second would pass for current."""
    path.write_text(text, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


def noticed(change: Break, folder: Path) -> str:
    """Test that fails first with the edit made, or nothing.

    Raises
    ------
    RuntimeError
        If the tests could not run at all.
    """
    path = folder / change.file
    before = path.read_text(encoding="utf-8")
    _write(path, broken_text(change))
    try:
        environment = os.environ | {"PYTHONPATH": str(folder)}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *change.tests],
            cwd=folder,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
    finally:
        _write(path, before)
    if done.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)", done.stdout, re.M)
    if done.returncode != 1 or failed is None:
        raise RuntimeError(f"{change.formula}: the tests did not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed[1]


def row(change: Break, test: str) -> str:
    """Row of the table."""
    shown = f"`{test}`" if test else "**nothing**"
    file = change.file.removeprefix("batchsim/").removesuffix("/__init__.py").removesuffix(".py")
    cells = (f"{change.formula} (`{file}`)", f"`{change.old}` -> `{change.new}`".replace("|", "\\|"), shown)
    return f"| {' | '.join(cells)} |"


HEAD = f"""# Broken on purpose

Each row is one edit of one closed form, in a copy of the package, and the first of the tests named with it that fails. The
reference values are asked first, then the module's own tests. `python tests/break_formulas.py` makes the edits, writes this
page, and fails if nothing notices one of them.

{{count}} edits, {{noticed}} noticed.

{MARK}
|---|---|---|
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the edits one by one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="edits of files whose name contains this; writes no page")
    chosen = parser.parse_args(arguments).only
    rows, survivors = [], 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _copy(folder)
        for change in (b for b in BREAKS if chosen in b.file):
            test = noticed(change, folder)
            survivors += not test
            rows.append(row(change, test))
            print(f"{change.formula:32} {test or 'NOTHING'}", flush=True)
    if not chosen:
        head = HEAD.format(count=len(rows), noticed=len(rows) - survivors)
        PAGE.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
