r"""Training phases and weight copies that other frameworks print, predicted from specifications: nothing is fitted.

    NeMo-RL    issue 959: GRPO of Llama-3.1 8B and 70B on H100, 64 prompts x 32 responses, four updates of 512, policy
               and reference log-probabilities; batch sizes, micro-batches and parallelism from the project's
               examples/configs of that time. 150 prompt tokens are assumed, 95 % packing. The 70B's DTensor division is
               not stated, so its two rows are left out.
    RLinf      1.5B on 8 H100, 16-k responses: tokens from the printed throughput of its log-probability pass. Its
               micro-batches are assumed to hold 32,768 tokens, its update to be one, full recomputation.
    verl       checkpoint-engine table: trainer GPUs broadcast to as many of the engine, NCCL; GPUs of 8 per node with
               a network of 50 GB/s each are assumed.

A copy that the benchmark's own clock saw is the model in bf16 written to files; `sync.FILE_BANDWIDTH` is the median of
these very rows, so they score no prediction.

References
----------
.. [1] NVIDIA-NeMo/RL issue 959 and examples/configs at commit 06f6343; RLinf (Apache-2.0); verl (Apache-2.0), commit
   1dda039: fully asynchronous trainer, checkpoint-engine ablation.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchsim.specs.counts import weight_bytes
from batchsim.specs.gpus import find_gpu
from batchsim.specs.models import find_model
from batchsim.system.training.sync import sync_seconds
from batchsim.system.training.trainer import Trainer, make_trainer
from batchsim.system.training.update import forward_seconds, update_seconds
from batchsim.system.training_rows import TrainingRow

NEMO = "published/nemo_rl_issue959_step_phases.csv"
RLINF = "published/rlinf_vs_verl_1.5b_8xh100.csv"
VERL = "published/verl_fully_async_tables_long.csv"
NETWORK = 50e9
"""B/s per GPU: 400 Gb/s, the network of an H100 server."""
PROMPT, RESPONSES, UPDATES, PACKING = 150.0, 2048, 4, 0.95
WRITTEN_LEAST = 0.3
"""Seconds; below this the clock of a row did not count writing (newer code), which two rows show."""
SKIPPED = [
    "nemo_rl_v0.6_performance: prints whole steps, no training part",
    "skyrl_docs_tables: prints training parts without the lengths of responses",
    "verl_fully_async_tables: prints update times without the lengths of responses",
]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A printed time and what specifications say.

    Parameters
    ----------
    split, of, claim : str
    predicted, measured : float [s]
    engine : str
        Whose rows they are.
    """

    split: str
    of: str
    claim: str
    predicted: float
    measured: float
    engine: str = "elsewhere"

    def as_row(self) -> dict[str, Any]:
        """In the form of every validation's rows."""
        return {
            "claim": f"{self.engine}, {self.split}: {self.claim}",
            "predicted": self.predicted,
            "interval": None,
            "measured": self.measured,
            "error": self.predicted / self.measured - 1,
            "covered": None,
            "peer": None,
        }


def _table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_phases(folder: Path) -> tuple[list[Phase], list[str]]:
    """Training and log-probability phases of other frameworks.

    Parameters
    ----------
    folder : Path
        Of measured data.

    Returns
    -------
    phases : list of Phase
    skipped : list of str
    """
    phases, skipped = [], list(SKIPPED)
    for name, read in ((NEMO, _nemo), (RLINF, _rlinf)):
        if (folder / name).is_file():
            found, reasons = read(_table(folder / name))
            phases += found
            skipped += reasons
        else:
            skipped.append(f"{name}: absent")
    return phases, skipped


def nemo_trainer(model: str, backend: str, gpus: int) -> Trainer | None:
    """How NeMo-RL's rows divide a model over H100s, None where it is not stated.

    Parameters
    ----------
    model : str
        In the catalogue.
    backend : str
        'Megatron' or 'DTensor'.
    gpus : int [GPU]

    Returns
    -------
    Trainer or None
    """
    how: dict[str, Any] = {"micro_batch_tokens": 4096, "packing": PACKING, "recompute": "none"}
    if backend == "Megatron":
        # bf16 weights, fp32 gradients; fp32 weights and moments are the distributed optimizer's.
        how |= {"sharding": "optimizer", "weight_bytes": 2.0, "optimizer_bytes": 12.0}
        how |= {"tensor_parallel": 4, "pipeline_parallel": 4} if "70B" in model else {"pipeline_parallel": 2}
    elif "70B" in model:
        return None
    return make_trainer(find_model(model), find_gpu("H100"), gpus=gpus, network_bandwidth=NETWORK, **how)


def _nemo(rows: list[dict[str, str]]) -> tuple[list[Phase], list[str]]:
    phases, skipped = [], []
    for row in rows:
        model, who = row["model"].removesuffix("-Instruct"), f"{row['model']} {row['backend']}, {row['who']}"
        t = nemo_trainer(model, row["backend"], int(row["nodes"]) * int(row["gpus_per_node"]))
        if t is None:
            skipped.append(f"NeMo-RL {who}: how its GPUs are divided is not stated")
            continue
        length = PROMPT + float(row["avg_gen_tokens"])
        update = UPDATES * float(update_seconds(t, responses=RESPONSES / UPDATES, length=length))
        forward = 2 * float(forward_seconds(t, responses=RESPONSES, length=length))
        for part, predicted, column in (("training", update, "policy_train_s"), ("logprobs", forward, "logprob_s")):
            phases.append(
                Phase(
                    split=part,
                    of=f"NeMo-RL {model} {row['backend']}",
                    claim=f"NeMo-RL {who}",
                    predicted=predicted,
                    measured=float(row[column]),
                )
            )
    return phases, skipped


def _rlinf(rows: list[dict[str, str]]) -> tuple[list[Phase], list[str]]:
    phases = []
    table = {row["metric"]: row for row in rows}
    for who in ("rlinf", "verl_0.5.0"):
        value = {name: float(row[who]) for name, row in table.items()}
        tokens = 8 * value["prev_logprob_throughput"] * value["prev_logprob_time"]
        t = make_trainer(
            find_model("DeepSeek-R1-Distill-Qwen-1.5B"), find_gpu("H100"), gpus=8, micro_batch_tokens=32_768
        )
        length = value["response_length"]
        for part, predicted, column in (
            ("training", float(update_seconds(t, responses=tokens / length, length=length)), "training_time"),
            ("logprobs", float(forward_seconds(t, responses=tokens / length, length=length)), "prev_logprob_time"),
        ):
            phases.append(
                Phase(
                    split=part,
                    of=f"{'RLinf' if who == 'rlinf' else 'verl'} 1.5B",
                    claim=f"{who} 1.5B on 8 x H100",
                    predicted=predicted,
                    measured=value[column],
                )
            )
    return phases, []


def read_synchronisations(folder: Path, rows: Sequence[TrainingRow]) -> tuple[list[Phase], list[str]]:
    """Copies of a model: files of the benchmark, refits of NeMo-RL, verl's checkpoint engine.

    Parameters
    ----------
    folder : Path
        Of measured data.
    rows : sequence of TrainingRow

    Returns
    -------
    phases : list of Phase
    skipped : list of str
    """
    phases, skipped = [], []
    for row in rows:
        seconds = row.written_seconds
        if seconds is None or not row.measured:
            continue
        if seconds < WRITTEN_LEAST:
            skipped.append(f"{row.name}: newer code, its clock does not count writing")
            continue
        # Written once; the engine's reading is not in that clock.
        half = float(sync_seconds(row.written_bytes, find_gpu(row.gpu), route="file")) / 2
        phases.append(
            Phase(
                split="written to files, in sample",
                of=row.model,
                claim=row.name,
                predicted=half,
                measured=seconds,
                engine="prime-rl",
            )
        )
    if (folder / NEMO).is_file():
        for line in _table(folder / NEMO):
            size = weight_bytes(find_model(line["model"].removesuffix("-Instruct")))
            tensor = 4 if "70B" in line["model"] else 1
            predicted = float(sync_seconds(size, find_gpu("H100"), route="colocated", tensor_parallel=tensor))
            who = f"NeMo-RL refit, {line['model']} {line['backend']}, {line['who']}"
            phases.append(_copy("colocated", line["model"], who, predicted, float(line["refit_s"])))
    if (folder / VERL).is_file():
        phases += _verl(_table(folder / VERL))
    return phases, skipped


def _verl(rows: list[dict[str, str]]) -> list[Phase]:
    """Blocks of five lines: model, trainer GPUs, rollout GPUs, whether the engine is on, seconds."""
    phases = []
    block: dict[str, str] = {}
    for row in rows:
        if not row["table"].startswith("checkpoint-engine"):
            continue
        block[row["column"]] = row["value_raw"]
        if row["column"] != "total sync time":
            continue
        model, gpus = block["model"], int(block["trainer rank"])
        inside = gpus <= 4
        predicted = sync_seconds(
            weight_bytes(find_model(model)),
            find_gpu("H20"),
            route="broadcast" if inside else "network",
            network_bandwidth=NETWORK,
        )
        how = "with" if block["checkpoint-engine"] == "True" else "without"
        who = f"verl, {model} from {gpus} GPUs, {how} checkpoint engine"
        phases.append(_copy(f"broadcast, {how} engine", model, who, float(predicted), float(row["value_raw"][:-1])))
    return phases


def _copy(of: str, model: str, claim: str, predicted: float, measured: float) -> Phase:
    return Phase(
        split="synchronisation",
        of=of,
        claim=f"{of}: {claim}" if model in claim else f"{of}: {claim}, {model}",
        predicted=predicted,
        measured=measured,
    )
