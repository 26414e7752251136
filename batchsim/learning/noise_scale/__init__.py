r"""The gradient noise scale B_noise = tr(Sigma)/|G|^2 from gradient norms, with honest limits.

Averaging B independent responses gives

    E|g_B|^2 = |G|^2 + tr(Sigma)/B = |G|^2 (1 + B_noise/B).

Estimators from norms, linear in them squared, so that |G|^2 and tr(Sigma) are unbiased:

* logged norms of runs at several batches: a line of |g_B|^2 on 1/B (`from_logged_norms`);
* chunks of b responses and the whole batch within each update (`from_chunk_norms`):
  |G|^2 = (B|g_B|^2 - b|g_b|^2)/(B - b),  tr(Sigma) = (|g_b|^2 - |g_B|^2)/(1/b - 1/B),
  each averaged over updates *before* dividing; `Recorder` does the same inside a training loop;
* responses, their prompt groups and the batch (`from_nested_norms`): what prompts and what responses
  contribute, and so how the noise scale moves with the group size.

The ratio is not: its denominator may vanish. Its limits are Fieller's, taken on z = |G|^2/tr(Sigma)
= 1/B_noise, and where z = 0 lies inside them B_noise has no upper limit. That is the answer "not
identified", and it names the batch that would identify it: the largest batch must come within a few
times of B_noise, since below it the signal hides under the noise.

Runs at different batches are at different points of training after the same number of updates, and
the gradient changes along the way. So norms of several batches are read twice, over the whole runs and
over the stretch of responses that all runs share; where the two disagree both are reported.

What optimizers with a step per coordinate can use of a batch, A(B), needs more than norms: moments of
each coordinate (`from_coordinate_moments`), Adam's own state (`from_adam_state`), or inner products
of updates with independent gradients (`from_inner_products`). What logs call a gradient norm is
turned into one, or refused, by `read_norms`.

References
----------
.. [1] McCandlish et al. 2018, arXiv:1812.06162, appendix A.1 (the unbiased pair).
.. [2] Fieller 1954, "Some problems in interval estimation", JRSS B 16:175 (limits of a ratio).
"""

from __future__ import annotations

from batchsim.learning.noise_scale.coordinates import CoordinateNoise as CoordinateNoise
from batchsim.learning.noise_scale.coordinates import SlopeRatios as SlopeRatios
from batchsim.learning.noise_scale.coordinates import from_adam_state as from_adam_state
from batchsim.learning.noise_scale.coordinates import from_coordinate_moments as from_coordinate_moments
from batchsim.learning.noise_scale.coordinates import from_inner_products as from_inner_products
from batchsim.learning.noise_scale.estimate import BLOCK as BLOCK
from batchsim.learning.noise_scale.estimate import LEVEL as LEVEL
from batchsim.learning.noise_scale.estimate import RESAMPLES as RESAMPLES
from batchsim.learning.noise_scale.estimate import ROUNDING as ROUNDING
from batchsim.learning.noise_scale.estimate import NoiseScale as NoiseScale
from batchsim.learning.noise_scale.estimate import combine as combine
from batchsim.learning.noise_scale.estimate import fieller as fieller
from batchsim.learning.noise_scale.estimate import rescale as rescale
from batchsim.learning.noise_scale.nested import NestedNoise as NestedNoise
from batchsim.learning.noise_scale.nested import from_nested_norms as from_nested_norms
from batchsim.learning.noise_scale.nested import group_signal as group_signal
from batchsim.learning.noise_scale.norms import from_chunk_norms as from_chunk_norms
from batchsim.learning.noise_scale.norms import from_logged_norms as from_logged_norms
from batchsim.learning.noise_scale.recorder import Recorder as Recorder
from batchsim.learning.noise_scale.shape import SnrShape as SnrShape
from batchsim.learning.noise_scale.shape import fit_snr_shape as fit_snr_shape
from batchsim.learning.noise_scale.units import LoggedNorms as LoggedNorms
from batchsim.learning.noise_scale.units import from_described_norms as from_described_norms
from batchsim.learning.noise_scale.units import generated_to_kept as generated_to_kept
from batchsim.learning.noise_scale.units import groups_to_responses as groups_to_responses
from batchsim.learning.noise_scale.units import kept_to_generated as kept_to_generated
from batchsim.learning.noise_scale.units import mean_norm_bias as mean_norm_bias
from batchsim.learning.noise_scale.units import mini_batch as mini_batch
from batchsim.learning.noise_scale.units import read_norms as read_norms
from batchsim.learning.noise_scale.units import responses_to_groups as responses_to_groups
from batchsim.learning.noise_scale.units import rollout_batch as rollout_batch
