r"""Training of a rollout step from specifications: updates, log-probabilities, a critic, weight synchronisation.

    t_update = (m + pp - 1) [max(FLOPs/(share F) + passes bytes/BW + layers t_layer, gathered bytes/link) + exchanges]
               + gradients + optimizer + t_fixed
    t_train  = (old + reference + value passes, forward only) + M (update of the policy, and of a critic) + sync

    FLOPs/token of an update: 6 P + 3 sum c a, P read parameters, c a attention's; 4/3 of it with full recomputation;
    a frozen model with adapters 4 P; forward only 2 P + sum c a

m is the number of micro-batches of a data-parallel rank, rounded up; (pp - 1)/m a pipeline's bubble. Without rounding
the sum is affine in the rollout batch, which gives `system.pipeline` its two numbers (`train_time_law`).

Attention makes time rise with the square of a sequence's length: of Qwen3-4B at 65,536 tokens on H100 it is three
fifths of an update. Adapters save FLOPs and still took longer than a full update in the measured rows: their products
are thin and their rows cross memory.

Constants (`efficiency`) are fitted to measured updates and validated by models and rows left out
(`batchsim validate training`). Left out: contention of the network, uneven stages, imbalance of experts and of
packed lengths between ranks, ring attention's exchange, stalls of the host.

References
----------
.. [1] Kaplan et al. 2020, arXiv:2001.08361; Narayanan et al. 2021, arXiv:2104.04473; Rajbhandari et al. 2019,
   arXiv:1910.02054; Hu et al. 2021, arXiv:2106.09685.
"""

from batchsim.system.training.efficiency import TrainingEfficiency, training_efficiency, training_error
from batchsim.system.training.sync import sync_seconds
from batchsim.system.training.trainer import Trainer, make_trainer, training_memory
from batchsim.system.training.update import (
    forward_seconds,
    micro_batches,
    train_time,
    train_time_law,
    train_time_of,
    update_seconds,
    update_time,
)
from batchsim.system.training.work import mean_attended, pass_units, training_flops

__all__ = [
    "Trainer",
    "TrainingEfficiency",
    "forward_seconds",
    "make_trainer",
    "mean_attended",
    "micro_batches",
    "pass_units",
    "sync_seconds",
    "train_time",
    "train_time_law",
    "train_time_of",
    "training_efficiency",
    "training_error",
    "training_flops",
    "training_memory",
    "update_seconds",
    "update_time",
]
