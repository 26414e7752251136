r"""Measured training updates: reading the benchmark's rows and what each of them computed.

A row is an update of `micro_batches` micro-batches of one sequence of `seq_len` tokens on every GPU, sharded in full
over all of them, compiled, bf16 products, fp32 states. `step_time_mean_s` is its time: forward, backward, optimizer.
Three things of the table must not be taken at their word:

- `throughput_tok_s` counts micro_batches x seq_len x GPUs per step time for adapters, but fewer for full training with
  the loss of reinforcement learning, since there its clock also runs while a copy of the model is written. What is
  missing is a measurement of that: `written_seconds`.
- `mfu_pct` counts attention without the causal half, heads of hidden/heads wide, fewer FLOPs for adapters, and takes
  an RTX A6000's peak for that of an A100 (312 TFLOP/s). It is not used.
- A zero is a run that failed.

"Offload" keeps recomputation and moves what it keeps to the host. Adapters of rank 16 sit on every matrix, for up to
four runs at once. Experts ran in one grouped kernel on Hopper; on B200 the rows look like one after the other.
INTELLECT-3 is GLM-4.5-Air post-trained; the Instruct models have their base models' shapes.

References
----------
.. [1] prime-rl (Apache-2.0), commit 559b447: benchmarks/, whose scripts give the meaning of every column.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from batchsim.errors import InputError
from batchsim.specs.counts import total_parameters
from batchsim.specs.gpus import find_gpu
from batchsim.specs.models import find_model
from batchsim.system.training.efficiency import START, generation, training_efficiency
from batchsim.system.training.trainer import Trainer, make_trainer

TABLE = "published/prime_rl_trainer_benchmarks.csv"
SAMPLE = "data/measured/training_sample.csv"
SAMPLE_STEP = 4
"""Every how manieth row ships."""
SAMPLE_COLUMNS = (
    "type,model,device,num_gpus,lora_rank,seq_len,activation_ckpt,attention,micro_batches,step_time_mean_s,"
    "throughput_tok_s,peak_mem_gib,source"
)
SOURCE = "prime-rl @ 559b447: benchmarks"
SAME_SHAPES = {
    "PrimeIntellect/INTELLECT-3": "zai-org/GLM-4.5-Air",
    "Qwen/Qwen3-235B-A22B-Instruct-2507": "Qwen/Qwen3-235B-A22B",
}
"""Post-trained models by the catalogue's row of equal shapes, as their model cards say."""
GIB = 2.0**30


@dataclass(frozen=True, kw_only=True)
class TrainingRow:
    """One measured update.

    Parameters
    ----------
    loss : {'rl', 'plain'}
    model : str
        As the table names it.
    gpu : str
        As the catalogue does.
    gpus : int [GPU]
    lora_rank : int or None [1]
    length : int [tokens]
    offload : bool
    attention : str
    micro_batches : int
        Of each GPU.
    measured : float [s]
        0 if the run failed.
    throughput : float [tokens/s]
    peak_memory : float [B]
        Reserved on a GPU.
    """

    loss: str
    model: str
    gpu: str
    gpus: int
    lora_rank: int | None
    length: int
    offload: bool
    attention: str
    micro_batches: int
    measured: float
    throughput: float
    peak_memory: float

    @property
    def responses(self) -> int:
        """Sequences of the update."""
        return self.micro_batches * self.gpus

    @property
    def variant(self) -> str:
        """Loss and what is trained."""
        return f"{self.loss}, {'all parameters' if self.lora_rank is None else 'adapters'}"

    @property
    def name(self) -> str:
        """The row in words."""
        where = "offloaded" if self.offload else "recomputed"
        return (
            f"{self.model} on {self.gpus} x {self.gpu}, {self.length} tokens, {self.variant}, {self.attention}, {where}"
        )

    @property
    def written_seconds(self) -> float | None:
        """Seconds that the throughput's clock ran beyond the update [s]; None for adapters and plain losses."""
        if self.lora_rank is not None or self.loss != "rl" or not self.throughput:
            return None
        return self.responses * self.length / self.throughput - self.measured

    @property
    def written_bytes(self) -> float:
        """Bytes of the model in bf16 [B]."""
        return 2.0 * total_parameters(find_model(SAME_SHAPES.get(self.model, self.model)))


def row_trainer(row: TrainingRow, constants: Mapping[str, float] | None = None, without: str | None = None) -> Trainer:
    """Trainer of a row.

    Parameters
    ----------
    row : TrainingRow
    constants : mapping or None
        Of a fit; the shipped ones if not given.
    without : str or None
        Model left out of the shipped fit.

    Returns
    -------
    Trainer

    Raises
    ------
    InputError
        As `make_trainer` does, for one that should not have fitted into memory.
    """
    gpu = find_gpu(row.gpu)
    return make_trainer(
        find_model(SAME_SHAPES.get(row.model, row.model)),
        gpu,
        gpus=row.gpus,
        micro_batch_tokens=row.length,
        lora_rank=row.lora_rank,
        offload=row.offload,
        loss=row.loss,
        grouped_experts=generation(gpu) == "hopper",
        efficiency=training_efficiency(gpu, attention=row.attention, without=without, constants=constants),
    )


def start_trainer(row: TrainingRow) -> Trainer:
    """Trainer of a row under the priors' medians."""
    return row_trainer(row, START)


def read_training(folder: Path) -> list[TrainingRow]:
    """All rows of the benchmark, failed ones among them.

    Parameters
    ----------
    folder : Path
        Of measured data, with `published/` in it.

    Returns
    -------
    list of TrainingRow

    Raises
    ------
    InputError
        If the table is absent.
    """
    path = folder / TABLE
    if not path.is_file():
        raise InputError(f"no training table {path.name}", where=str(path.parent), remedy="give --data")
    with path.open(encoding="utf-8", newline="") as file:
        return _rows(csv.DictReader(file))


def _rows(cells: Iterable[Mapping[str, str]]) -> list[TrainingRow]:
    return [
        TrainingRow(
            loss="rl" if c["type"] == "rl" else "plain",
            model=c["model"],
            gpu=find_gpu(c["device"]).name,
            gpus=int(c["num_gpus"]),
            lora_rank=int(c["lora_rank"]) if c["lora_rank"] else None,
            length=int(c["seq_len"]),
            offload=c["activation_ckpt"] == "Offload",
            attention=c["attention"],
            micro_batches=int(c["micro_batches"]),
            measured=float(c["step_time_mean_s"]),
            throughput=float(c["throughput_tok_s"]),
            peak_memory=float(c["peak_mem_gib"]) * GIB,
        )
        for c in cells
    ]


def measured_rows(rows: Iterable[TrainingRow]) -> list[TrainingRow]:
    """Rows that did not fail."""
    return [row for row in rows if row.measured > 0]


def write_training_sample(path: Path, rows: Sequence[TrainingRow]) -> None:
    """Write the rows that ship: every fourth of those measured.

    Parameters
    ----------
    path : Path
    rows : sequence of TrainingRow
    """
    lines = [SAMPLE_COLUMNS]
    for r in measured_rows(rows)[::SAMPLE_STEP]:
        cells = ["rl" if r.loss == "rl" else "sft", r.model, r.gpu, str(r.gpus), str(r.lora_rank or ""), str(r.length)]
        cells += ["Offload" if r.offload else "Recompute", r.attention, str(r.micro_batches), f"{r.measured:.6g}"]
        lines.append(",".join([*cells, f"{r.throughput:.6g}", f"{r.peak_memory / GIB:.6g}", SOURCE]))
    part = path.with_suffix(".part")
    part.write_text("\n".join(lines) + "\n", encoding="utf-8")
    part.replace(path)


def read_training_sample() -> list[TrainingRow]:
    """The rows that ship."""
    return _rows(csv.DictReader(files("batchsim").joinpath(SAMPLE).read_text(encoding="utf-8").splitlines()))
