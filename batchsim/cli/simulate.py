"""`batchsim simulate`: `rollout`, the generation of a step, and worlds that learn, `grpo`, `ppo` and `quadratic`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchsim.cli import options as opt
from batchsim.cli.files import check_netcdf
from batchsim.cli.simulate_policy import grpo, ppo
from batchsim.cli.simulate_quadratic import quadratic
from batchsim.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

    from batchsim.cli.table import Cell
    from batchsim.specs.lengths import Lengths
    from batchsim.system.decode_law import DecodeLaw

app = typer.Typer(help="Simulate a rollout, or a world that learns.", no_args_is_help=True, rich_markup_mode=None)

SHOWN = {
    "sync": (
        "gen_time",
        "kept_throughput",
        "token_throughput",
        "tail_share",
        "truncated_share",
        "responses_launched",
        "responses_kept",
        "responses_wasted",
        "wasted_tokens",
        "preemptions_total",
        "recomputed_tokens",
    ),
    "pipeline": (
        "step_time",
        "kept_throughput",
        "staleness_mean",
        "staleness_max",
        "response_length",
        "response_length_launched",
        "responses_launched",
        "responses_wasted",
        "preemptions_total",
        "recomputed_tokens",
    ),
}
CACHE_BITS = {"bf16": 16.0, "fp8": 8.0}
MARGIN = 4
"""Groups drawn per group that filtering is expected to need."""


@app.callback()
def _simulate() -> None:
    """Simulate a rollout, or a world that learns."""


app.command(epilog="Try: batchsim simulate grpo --out runs.nc && batchsim predict runs.nc")(grpo)
app.command(epilog="Try: batchsim simulate ppo --clip 0.2 --updates-per-rollout 8 --epochs 2")(ppo)
app.command()(quadratic)


@app.command()
def rollout(
    model: Annotated[
        str | None, typer.Option(help="Model of `batchsim models`, or a config.json.", metavar="NAME|FILE")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU of `batchsim gpus`.", metavar="NAME")] = None,
    tp: Annotated[int, typer.Option(help="GPUs that share each layer (tensor parallelism).", min=1)] = 1,
    replicas: Annotated[int, typer.Option(help="Copies of the model that generate.", min=1)] = 1,
    engine: Annotated[str, typer.Option(help="vllm, sglang or trtllm.")] = "vllm",
    cache: Annotated[str, typer.Option(help="KV cache: bf16 or fp8.")] = "bf16",
    memory_share: Annotated[float, typer.Option(help="Share of GPU memory for the engine.")] = 0.9,
    law: Annotated[
        str | None,
        typer.Option(
            help="Instead of a model and a GPU: seconds of a step with n sequences of summed context c, "
            "t0 + t1 n + kappa c, and per prompt token pi.",
            metavar="T0,T1,KAPPA[,PI]",
        ),
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(help="Tokens that a replica's cache holds [default: the GPU's, or no limit].", min=1)
    ] = None,
    prompts: Annotated[int, typer.Option(help="Prompts kept per rollout step, P.", min=1)] = 128,
    group_size: Annotated[int, typer.Option(help="Responses per prompt, G.", min=1)] = 8,
    prompt_tokens: Annotated[float, typer.Option(help="Mean prompt length.")] = 512,
    response_tokens: Annotated[float, typer.Option(help="Mean response length, as cut.")] = 2048,
    spread: Annotated[float, typer.Option(help="Standard deviation of the logarithm of response lengths.")] = 0.7,
    max_tokens: Annotated[int | None, typer.Option(help="Where a response is cut.", min=1)] = None,
    group_share: Annotated[float, typer.Option(help="Share of that log variance between prompts.")] = 0.0,
    max_num_seqs: Annotated[int, typer.Option(help="Most sequences that run on a replica.", min=1)] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Token budget of a step.", min=1)] = 8192,
    dispatch: Annotated[str, typer.Option(help="static, least_loaded or length_aware.")] = "static",
    pass_rate: Annotated[
        float | None, typer.Option(help="Mean pass rate; groups of equal rewards are dropped and refilled.")
    ] = None,
    concentration: Annotated[float, typer.Option(help="How alike prompts' pass rates are (a+b of a Beta).")] = 1.0,
    refill: Annotated[str, typer.Option(help="For dropped groups: continuous or rounds.")] = "continuous",
    mode: Annotated[str, typer.Option(help="sync, partial or async.")] = "sync",
    gen_ratio: Annotated[
        float, typer.Option(help="Responses launched (sync) or in flight (partial) per kept one.")
    ] = 1.0,
    updates: Annotated[int, typer.Option(help="Updates to simulate (partial, async).", min=2)] = 24,
    update_seconds: Annotated[float, typer.Option(help="Time of an update (partial, async).")] = 0.0,
    in_flight: Annotated[int | None, typer.Option(help="Most groups in flight (async) [default: P].", min=1)] = None,
    queue: Annotated[
        int | None, typer.Option(help="Most complete groups that wait (async) [default: P].", min=0)
    ] = None,
    launch_ahead: Annotated[
        int | None, typer.Option(help="Versions whose groups may start before their weights (async).", min=0)
    ] = None,
    turns: Annotated[float, typer.Option(help="Mean number of turns of a response.", min=1)] = 1.0,
    environment_seconds: Annotated[float, typer.Option(help="Mean time of the environment between turns.")] = 0.0,
    environment_tokens: Annotated[float, typer.Option(help="Tokens that it appends.")] = 0.0,
    give_back_kv: Annotated[bool, typer.Option("--give-back-kv", help="Drop the cache between turns.")] = False,
    stale: Annotated[bool, typer.Option("--stale-kv", help="Keep in-flight caches under new weights.")] = False,
    batches: Annotated[
        str | None,
        typer.Option(
            help="Also the time to generate these many responses, and its tangent at P x G.", metavar="N,N,..."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Draws of the lengths to average.", min=1)] = 8,
    seed: opt.Seed = 0,
    plot: Annotated[Path | None, typer.Option(help="Write the plot of concurrency over time (png, pdf, svg).")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the first draw's data (.nc).", metavar="FILE.nc")] = None,
    json: opt.Json = False,
) -> None:
    """Simulate the generation of a rollout step: batching, memory, preemption, filtering, the tail.

    Times of a step come from --model and --gpu, or from --law. Partial and asynchronous modes simulate a row of updates
    and average what follows the first quarter of them.
    """
    opt.check_plot(plot)
    check_netcdf(out)
    replica = _replica(
        model,
        gpu,
        law,
        tp=tp,
        engine=engine,
        cache=cache,
        memory_share=memory_share,
        kv_tokens=kv_tokens,
        max_num_seqs=max_num_seqs,
    )
    lengths = _lengths(
        prompt_mean=prompt_tokens,
        response_mean=response_tokens,
        response_spread=spread,
        max_tokens=max_tokens,
        group_share=group_share,
        turns=turns,
        environment_seconds=environment_seconds,
        environment_tokens=environment_tokens,
        keep_kv=not give_back_kv,
    )
    asked = _Asked(
        replica=replica,
        lengths=lengths,
        prompts=prompts,
        group_size=group_size,
        mode=mode,
        gen_ratio=gen_ratio,
        updates=updates,
        course={
            "update_seconds": update_seconds,
            "recompute": not stale,
            "in_flight": in_flight,
            "queue_groups": queue,
            "launch_ahead": launch_ahead,
        },
        pass_rate=pass_rate,
        concentration=concentration,
        refill=refill,
        engine={
            "max_num_batched_tokens": max_num_batched_tokens,
            "replicas": replicas,
            "dispatch": dispatch,
        },
    )
    sizes = _sizes(batches, group_size)
    with bar(seeds, "rollout") as advance:
        found = []
        for number in range(seeds):
            found.append(_simulate_once(asked, seed, number))
            advance()
    curve = _curve(asked, sizes, seeds, seed) if sizes else None
    _deliver(asked, found, curve, seed=seed, plot=plot, out=out, json=json)


@dataclass(frozen=True, kw_only=True)
class _Replica:
    """Times and memory of one replica."""

    law: DecodeLaw
    kv_blocks: int | None
    fixed_blocks: int
    max_num_seqs: int


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What the options describe."""

    replica: _Replica
    lengths: Lengths
    prompts: int
    group_size: int
    mode: str
    gen_ratio: float
    updates: int
    course: dict[str, Any]
    pass_rate: float | None
    concentration: float
    refill: str
    engine: dict[str, Any]

    @property
    def warm_up(self) -> int:
        return self.updates // 4


@contextmanager
def bar(total: int, title: str) -> Iterator[Callable[[], object]]:
    """A progress bar on standard error where a person watches; silent elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda: None
        return
    with Progress(console=console, transient=True) as progress:
        # Numba compiles on the first run and keeps the result.
        task = progress.add_task(f"{title} (the first run compiles, up to 20 s)", total=total)
        yield lambda: progress.update(task, advance=1, description=title)


def _lengths(**stated: Any) -> Lengths:
    from pydantic import ValidationError

    from batchsim.specs.lengths import Lengths

    try:
        return Lengths(**stated)
    except ValidationError as error:
        first = error.errors()[0]
        names = {"prompt_mean": "prompt-tokens", "response_mean": "response-tokens", "response_spread": "spread"}
        name = str(first["loc"][0]) if first["loc"] else ""
        option = names.get(name, name.replace("_", "-"))
        raise InputError(f"--{option} {first['input']}: {first['msg']}", remedy="see --help") from error


def _replica(
    model: str | None,
    gpu: str | None,
    law: str | None,
    *,
    tp: int,
    engine: str,
    cache: str,
    memory_share: float,
    kv_tokens: int | None,
    max_num_seqs: int,
) -> _Replica:
    block = 16
    given = None if kv_tokens is None else kv_tokens // block
    if law is not None:
        if model is not None or gpu is not None:
            raise InputError("--law stands in the place of --model and --gpu", remedy="give one or the other")
        return _Replica(law=stated_law(law, max_num_seqs), kv_blocks=given, fixed_blocks=0, max_num_seqs=max_num_seqs)
    if model is None or gpu is None:
        raise InputError("nothing says how long a step takes", remedy="give --model and --gpu, or --law 0.01,2e-5,3e-9")
    from batchsim.errors import nearest
    from batchsim.specs.gpus import find_gpu
    from batchsim.specs.models import find_model
    from batchsim.system.memory import cache_room
    from batchsim.system.roofline import decode_law, deploy

    if cache not in CACHE_BITS:
        raise InputError(f"--cache {cache} is not known", remedy=nearest(cache, CACHE_BITS))
    if not 0 < memory_share <= 1:
        raise InputError(f"--memory-share {memory_share:g} is outside (0, 1]", remedy="vLLM's default is 0.9")
    architecture, card, bits = find_model(model), find_gpu(gpu), CACHE_BITS[cache]
    deployment = deploy(architecture, card, tensor_parallel=tp, engine=engine, cache_bits=bits)
    room = cache_room(
        architecture,
        memory=float(card.usable_memory or 0),
        tensor_parallel=tp,
        memory_share=memory_share,
        cache_bits=bits,
    )
    blocks, fixed = room.blocks(block)
    if room.token_bytes == 0:
        # Nothing grows: memory only bounds how many run.
        max_num_seqs, blocks, fixed = max(1, min(max_num_seqs, blocks)), 0, 0
    return _Replica(
        law=decode_law(deployment, concurrency=max_num_seqs),
        kv_blocks=given if given is not None else blocks or None,
        fixed_blocks=fixed,
        max_num_seqs=max_num_seqs,
    )


def stated_law(text: str, concurrency: int) -> DecodeLaw:
    """Decode law of `--law t0,t1,kappa[,pi]`.

    Raises
    ------
    InputError
        For anything but three or four numbers that are not negative, t0 positive.
    """
    import numpy as np

    from batchsim.system.decode_law import DecodeLaw

    numbers = opt.numbers(text, "--law")
    if len(numbers) not in (3, 4) or min(numbers) < 0 or not np.isfinite(numbers).all() or numbers[0] <= 0:
        raise InputError(
            f"--law {text} is not t0,t1,kappa or t0,t1,kappa,pi in seconds",
            remedy="as --law 0.01,2e-5,3e-9,1e-5: a step, per sequence, per token of context, per prompt token",
        )
    table = numbers[0] + numbers[1] * np.arange(concurrency + 1, dtype=np.float64)
    table[0] = 0.0
    return DecodeLaw(
        step_time=table,
        context_time=numbers[2],
        prefill_time=numbers[3] if len(numbers) == 4 else 0.0,
        name=f"t = {numbers[0]:g} + {numbers[1]:g} n + {numbers[2]:g} c",
    )


def _groups(asked: _Asked) -> int:
    """Groups to draw, more than will be launched."""
    import math

    from batchsim.system.rollout import kept_share

    one = math.ceil(asked.prompts * asked.gen_ratio)
    needed = one if asked.mode == "sync" else asked.prompts * (asked.updates + 2) + 2 * one
    if asked.pass_rate is None:
        return needed
    share = float(kept_share(asked.group_size, pass_rate=asked.pass_rate, concentration=asked.concentration))
    if share < 1e-3:
        raise InputError(
            f"a share of {share:.2g} of the groups would be kept", remedy="raise --group-size, or change --pass-rate"
        )
    return math.ceil(MARGIN * needed / share)


def _simulate_once(asked: _Asked, seed: int, number: int) -> xr.Dataset:
    import numpy as np

    from batchsim.system import rollout as simulate

    # Streams apart: the lengths do not depend on whether groups are filtered.
    streams = np.random.SeedSequence([seed, number]).spawn(2)
    groups = _groups(asked)
    drawn = simulate.draw(
        asked.lengths, groups=groups, group_size=asked.group_size, rng=np.random.default_rng(streams[0])
    )
    kept = None
    if asked.pass_rate is not None:
        kept = simulate.draw_kept(
            groups=groups,
            group_size=asked.group_size,
            pass_rate=asked.pass_rate,
            concentration=asked.concentration,
            rng=np.random.default_rng(streams[1]),
        )
    common: dict[str, Any] = {
        "law": asked.replica.law,
        "prompt_tokens": drawn.prompt_tokens,
        "response_tokens": drawn.response_tokens,
        "environment_tokens": drawn.environment_tokens if drawn.environment_tokens.size else 0,
        "environment_seconds": drawn.environment_seconds if drawn.environment_seconds.size else 0.0,
        "keep_kv": asked.lengths.keep_kv,
        "group_size": asked.group_size,
        "kept": kept,
        "max_num_seqs": asked.replica.max_num_seqs,
        "kv_blocks": asked.replica.kv_blocks,
        "fixed_blocks": asked.replica.fixed_blocks,
    } | asked.engine
    if asked.mode == "sync":
        return simulate.rollout(
            **common,
            prompts=asked.prompts,
            launch=round(asked.prompts * asked.gen_ratio),
            refill="none" if kept is None else asked.refill,
            truncated=drawn.truncated,
        )
    return simulate.pipelined_rollout(
        **common,
        prompts=asked.prompts,
        updates=asked.updates,
        mode=asked.mode,
        gen_ratio=asked.gen_ratio,
        warm_up=asked.warm_up,
        **asked.course,
    )


def _sizes(text: str | None, group_size: int) -> list[int]:
    sizes = opt.numbers(text, "--batches")
    for size in sizes:
        if size < 1 or size % group_size:
            raise InputError(
                f"--batches {size:g} is no whole number of groups of {group_size}", remedy="as --batches 256,512,1024"
            )
    return [int(size) for size in sizes]


def _curve(asked: _Asked, sizes: list[int], seeds: int, seed: int) -> dict[str, Any]:
    """Time to generate batches, and the local law at P G."""
    from batchsim.cli.answer import number
    from batchsim.system.rollout import generation_curve, generation_law

    common: dict[str, Any] = {
        "law": asked.replica.law,
        "lengths": asked.lengths,
        "group_size": asked.group_size,
        "draws": seeds,
        "seed": seed,
        "max_num_seqs": asked.replica.max_num_seqs,
        "kv_blocks": asked.replica.kv_blocks,
        "fixed_blocks": asked.replica.fixed_blocks,
    } | asked.engine
    with bar(seeds * (len(sizes) + 5), "batches") as advance:
        curve = generation_curve(sizes, **common, progress=lambda done, total: advance())
        tangent = generation_law(asked.prompts * asked.group_size, **common, progress=lambda done, total: advance())
    rows = [
        {
            "gen_batch": size,
            "gen_time": number(curve["gen_time"].values[i]),
            "standard_error": number(curve["gen_time_se"].values[i]),
            "gen_throughput": number(curve["gen_throughput"].values[i]),
        }
        for i, size in enumerate(sizes)
    ]
    names = ("gen_batch", "gen_time_intercept", "gen_time_slope", "gen_throughput_max")
    return {"batches": rows, "tangent": {name: number(tangent[name]) for name in names}}


def _deliver(
    asked: _Asked,
    found: list[xr.Dataset],
    curve: dict[str, Any] | None,
    *,
    seed: int,
    plot: Path | None,
    out: Path | None,
    json: bool,
) -> None:
    from batchsim.cli import answer

    if out is not None:
        from batchsim.cli.files import replace_file

        with replace_file(out) as temporary:
            found[0].to_netcdf(temporary, engine="h5netcdf")
    if plot is not None:
        from batchsim.plot import plot_rollout

        opt.save_plot(plot, lambda ax: plot_rollout(found[0], ax=ax))
    result = as_answer(asked, found, seed) | (curve or {})
    if json:
        answer.write(result)
    else:
        print_rollout(result)


def as_answer(asked: _Asked, found: list[xr.Dataset], seed: int) -> dict[str, Any]:
    """The JSON answer: means over draws with their standard errors, in SI units."""
    import numpy as np

    from batchsim.cli.answer import number
    from batchsim.variables import SCHEMA, VARIABLES

    shown = SHOWN["sync" if asked.mode == "sync" else "pipeline"]
    summary = {}
    for name in shown:
        values = np.array([_one(ds, name, asked.warm_up) for ds in found])
        error = float(values.std(ddof=1) / np.sqrt(values.size)) if values.size > 1 else None
        summary[name] = {
            "mean": number(values.mean()),
            "standard_error": None if error is None else number(error),
            "unit": VARIABLES[name].unit,
        }
    blocks = asked.replica.kv_blocks
    return {
        "schema": SCHEMA,
        "verb": "simulate rollout",
        "mode": asked.mode,
        "law": asked.replica.law.name,
        "prompts": asked.prompts,
        "group_size": asked.group_size,
        "replicas": asked.engine["replicas"],
        "max_num_seqs": asked.replica.max_num_seqs,
        "kv_tokens": None if blocks is None else 16 * blocks,
        "seeds": len(found),
        "seed": seed,
        "summary": summary,
        "warnings": _notes(asked, found),
    }


def _one(ds: xr.Dataset, name: str, warm_up: int) -> float:
    values = ds[name].values
    return float(values[warm_up:].mean()) if values.ndim else float(values)


def _notes(asked: _Asked, found: list[xr.Dataset]) -> list[str]:
    said = []
    largest = max(int(ds["running"].values.max()) for ds in found)
    cap = asked.replica.max_num_seqs * asked.engine["replicas"]
    held = "" if asked.replica.kv_blocks is None else f", cache for {16 * asked.replica.kv_blocks:,} tokens per replica"
    said.append(f"at most {largest:,} sequences ran at once; max_num_seqs allows {cap:,}{held}")
    preempted = sum(int(ds["preemptions_total"]) for ds in found) / len(found)
    launched = sum(int(ds["start_time"].notnull().sum()) for ds in found) / len(found)
    if preempted > 0.01 * launched:
        said.append(
            f"{preempted:,.0f} preemptions per {launched:,.0f} responses: the cache is full; a lower max_num_seqs may "
            f"be faster"
        )
    if asked.mode != "sync":
        said.append(f"means over updates {asked.warm_up + 1} to {asked.updates}")
    return said


def print_rollout(result: dict[str, Any]) -> None:
    """Print the summary of `as_answer`."""
    from batchsim.cli.table import make_console, print_notes, print_rows, say, short
    from batchsim.variables import VARIABLES

    console = make_console()
    rows: list[dict[str, Cell]] = []
    for name, value in result["summary"].items():
        error = value["standard_error"]
        unit = "" if value["unit"] == "1" else value["unit"]
        rows.append(
            {
                "quantity": VARIABLES[name].long_name,
                "mean": (short(value["mean"]), "" if not error else f"(+- {short(error, 2)})"),
                "unit": unit,
            }
        )
    title = (
        f"{result['mode']}: {result['prompts']} prompts x {result['group_size']} on {result['replicas']} replica"
        f"{'s' if result['replicas'] != 1 else ''}; {result['law']}"
    )
    print_rows(console, title, rows, wraps=("quantity",))
    if "batches" in result:
        cells: list[dict[str, Cell]] = [
            {
                "generated responses": f"{row['gen_batch']:,}",
                "time (s)": (short(row["gen_time"]), f"(+- {short(row['standard_error'], 2)})"),
                "responses/s": short(row["gen_throughput"]),
            }
            for row in result["batches"]
        ]
        at = result["tangent"]
        law = (
            f"at {at['gen_batch']:,}: t_gen = {short(at['gen_time_intercept'])} s + "
            f"{short(at['gen_time_slope'])} s x B_gen, at most {short(at['gen_throughput_max'])} responses/s"
        )
        print_rows(console, "all groups kept", cells)
        say(console, law)
    print_notes(console, result["warnings"])
