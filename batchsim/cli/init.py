"""`batchsim init`: write a commented plan.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from batchsim.errors import InputError

TEMPLATE = """\
# plan.toml: what is known before a sweep. Every section but [recipe] may be left out, and [recipe] too
# where logs supply it. Quantities may carry units: "80 GB", "3.35 TB/s", "11.9 h".
# Then: batchsim predict plan.toml

[target]
# metric = "val-core/math/acc/mean@8"   # as the log names it
# score = 0.55
# responses_to_target = 120_000         # N* of the recipe below, if known
# time_to_target = "11.9 h"             # T of the recipe below, if known

[recipe]                                # the reference; candidates are its batch times 2^k, k = -2 ... 6
prompts = 64                            # prompt groups per rollout step
group_size = 8                          # responses per prompt; 1 for PPO
updates_per_rollout = 1                 # optimizer updates per rollout step
learning_rate = 1e-6
lr_rule = "sqrt"                        # fixed, sqrt, linear, tuned, invariant
# max_learning_rate = 4e-6              # largest rate that training survives
# gen_ratio = 2.0                       # responses in flight per kept response
# batches = [256, 512, 1024]            # candidate responses per update

[learning]                              # leave out what is not known: it becomes a prior, and is said to be one
# noise_scale = [1000, 6000]            # a value, or a central 80 % interval, in responses
# snr_shape = "drift"                   # or a number k
# lr_fraction = 0.2                     # learning rate over the optimal one, or an interval

# [[learning.observed]]                 # a pilot that reached the target
# prompts = 128
# lr_rule = "fixed"
# updates_ratio = [0.75, 0.83]          # its updates over the recipe's

[engine]
mode = "sync"                           # partial, or async
# max_num_seqs = 256
# tensor_parallel = 2

# [[engine.observed]]                   # steady rollout-step times of pilots; two batches fix the law
# prompts = 64
# step_seconds = 110
# [[engine.observed]]
# prompts = 128
# step_seconds = 150

# With [model] name, [gpu] name and count, and [lengths] response_mean, and no step times, the system is simulated.
[gpu]
# name = "H100"                         # batchsim gpus lists them
# count = 8                             # of which generation_count generate in mode async
# price = 3.0                           # USD per GPU and hour
# memory = "80 GB"

[model]                                 # with [gpu] memory and [lengths]: how many responses decode at once
# name = "Qwen3-8B"                     # batchsim models lists them; or its bytes:
# weight_bytes = "16 GB"
# kv_bytes_per_token = "144 kB"

[trainer]                               # how the model is divided over the GPUs that train
# tensor_parallel = 1
# micro_batch_tokens = 16_384

[lengths]
# prompt_mean = 200
# response_mean = 3000
# max_tokens = 8192
# response_growth = 2.0                 # mean response at the target over that at the start

[logs]
# paths = ["runs/*.log"]                # relative to this file
# columns = { train_reward = "my_reward" }   # for tables with column names of their own
# pilot_batches = [512]                 # calibrate on these; the others are drawn beside
"""


def init(
    file: Annotated[Path, typer.Argument(help="File to write.")] = Path("plan.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented plan.toml to start from."""
    from batchsim.cli.files import replace_file

    if file.suffix != ".toml":
        raise InputError(
            f"'{file.suffix or file.name}' is no ending of a plan", where=str(file), remedy="end it in .toml"
        )
    if file.exists() and not force:
        raise InputError("the file exists", where=str(file), remedy="choose another name, or pass --force")
    with replace_file(file) as temporary:
        temporary.write_text(TEMPLATE, encoding="utf-8")
    typer.echo(f"wrote {file}; next: batchsim predict {file}")
