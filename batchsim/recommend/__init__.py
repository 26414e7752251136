"""What to do: the batch to run and why, the next run worth measuring, what a departure means, seeds for a comparison.

* `next_run`: range, star, and the run whose measurement is worth most per GPU-hour;
* `decision`: the batch to run with the sentences that justify it;
* `knee`: why N* departs: explanations weighed, and the cheapest experiment that tells them apart;
* `power`: seeds per arm to see a given r_N.
"""

from __future__ import annotations

from batchsim.recommend.decision import Decision as Decision
from batchsim.recommend.decision import decide as decide
from batchsim.recommend.knee import Experiment as Experiment
from batchsim.recommend.knee import Explanation as Explanation
from batchsim.recommend.knee import Knee as Knee
from batchsim.recommend.knee import explain_knee as explain_knee
from batchsim.recommend.knee import knee_of_runs as knee_of_runs
from batchsim.recommend.next_run import CAP as CAP
from batchsim.recommend.next_run import WORTH_MEASURING as WORTH_MEASURING
from batchsim.recommend.next_run import NextRun as NextRun
from batchsim.recommend.next_run import Recommendation as Recommendation
from batchsim.recommend.next_run import expected_regret as expected_regret
from batchsim.recommend.next_run import recommend as recommend
from batchsim.recommend.power import power_of_seeds as power_of_seeds
from batchsim.recommend.power import seeds_needed as seeds_needed
