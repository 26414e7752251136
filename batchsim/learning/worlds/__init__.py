r"""Worlds where learning is real and the truth is known.

A law of sample cost that was fitted to runs can only be judged against runs whose noise scale, best rate and updates
to the target are known without error. Logs never are. A world states its own gradient noise, trains with a real
optimizer, and says exactly (or by a seeded simulation, with its standard error) what a batch costs:

* `quadratic`: the noisy quadratic model, expected losses by exact second-moment recursions;
* `softmax` and `policy_gradient`: a softmax policy over shared features, trained by GRPO and PPO, whose gradient
  moments are exact for any policy;
* `simulated`: runs of either in the layout of logs, as `measure`, `calibrate` and `predict` take them.

Worlds know nothing of `sample_cost`: what they show is not put into them.

References
----------
.. [1] Zhang et al. 2019, "Which Algorithmic Choices Matter at Which Batch Sizes?", arXiv:1907.04164.
"""

from __future__ import annotations

from batchsim.learning.worlds.policy_gradient import Halves as Halves
from batchsim.learning.worlds.policy_gradient import Trained as Trained
from batchsim.learning.worlds.policy_gradient import Trainer as Trainer
from batchsim.learning.worlds.policy_gradient import mean_responses as mean_responses
from batchsim.learning.worlds.policy_gradient import train as train
from batchsim.learning.worlds.quadratic import Moments as Moments
from batchsim.learning.worlds.quadratic import Optimizer as Optimizer
from batchsim.learning.worlds.quadratic import Quadratic as Quadratic
from batchsim.learning.worlds.quadratic import expected_loss as expected_loss
from batchsim.learning.worlds.quadratic import loss_floor as loss_floor
from batchsim.learning.worlds.quadratic import moments as moments
from batchsim.learning.worlds.quadratic import power_law as power_law
from batchsim.learning.worlds.quadratic import stable_rate as stable_rate
from batchsim.learning.worlds.quadratic import updates_to_target as updates_to_target
from batchsim.learning.worlds.run_layout import responses_to_target as responses_to_target
from batchsim.learning.worlds.scaling import regimes as regimes
from batchsim.learning.worlds.scaling import scaling_curve as scaling_curve
from batchsim.learning.worlds.scaling import tuned_rate as tuned_rate
from batchsim.learning.worlds.simulated import simulate_grpo as simulate_grpo
from batchsim.learning.worlds.simulated import simulate_ppo as simulate_ppo
from batchsim.learning.worlds.simulated import simulate_quadratic as simulate_quadratic
from batchsim.learning.worlds.softmax import SoftmaxWorld as SoftmaxWorld
from batchsim.learning.worlds.softmax import TrueNoise as TrueNoise
from batchsim.learning.worlds.softmax import softmax_world as softmax_world
from batchsim.learning.worlds.softmax import true_noise as true_noise
from batchsim.learning.worlds.softmax import true_value_noise as true_value_noise
