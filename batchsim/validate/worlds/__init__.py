"""The learning law against worlds that learn, whose truth is known: what emerges, what is forecast, what breaks.

One module per claim. All ranges from which worlds are drawn stand in `ranges`, and nothing in a world knows the law:

* `findings`: the paper's findings on GRPO and PPO, in simulated runs;
* `forecast`: r_N of large batches from two short pilots, over random worlds;
* `breaking`: attempts to falsify the coordinate law;
* `staleness`: what lag and reuse cost, beside published rows.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296.
"""

from batchsim.validate.worlds.breaking import validate_breaking as validate_breaking
from batchsim.validate.worlds.findings import validate_findings as validate_findings
from batchsim.validate.worlds.forecast import validate_forecast as validate_forecast
from batchsim.validate.worlds.staleness import validate_staleness as validate_staleness
