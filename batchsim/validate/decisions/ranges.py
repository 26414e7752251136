r"""Where worlds and clusters of the decisions come from: every range, written down before any result that is shown.

A world is drawn from its own stream, so that world 7 is the same whatever else is run. Ranges are those of recipes and
reports, not those of the package's priors: noise scales reach 1e6 responses where the prior ends at 50,000, shapes .05
where it ends at .5, and the mechanisms below are in no forecast unless a plan states them.

    learning    B_noise, spread of signal over coordinates, growth of the noise along the run, rate over the best one,
                penalty of a step, curvature along the noise; ceiling on the rate, few updates, staleness in a part
    logs        evaluations with a binomial error, spread between runs, norms with sampling noise
    cluster     shared and per-response time of generation and training, the longest response's growth with the batch,
                capped concurrency, memory; spread over machines

Worlds of earlier streams (20261207 among them) were looked at while this was written, those of `STREAM` were not. What
followed from them: the clusters' ranges and the reference batch were raised for the habits' sake alone (under the first
ones the best habit, which reads no forecast, had a median regret of 7 % where 8 % is asked); errors of
`calibrate.overlay` were found too small; norms may ask for noise scales beyond the prior; and half of the asynchronous
logs hold the age of their responses (`LAG_LOGGED`), which a forecast then prices (`calibrate.lag`).

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296 (r_q of 1.3 to 1.4 at its largest batches).
.. [2] MLCommons Training, reference convergence points (spread of N* between seeds: 2-5 % in pretraining, 5-25 % else).
"""

from __future__ import annotations

WORLDS = 220
POLICIES = 24
"""Worlds of the second kind, in which a policy learns."""
STREAM = 20261201
GROUP_SIZE = 8
PROMPTS = (64, 128, 256)
"""Of the reference recipe."""
RULES = {"sqrt": 0.8, "fixed": 0.2}
"""Rule of the learning rate, and how often."""
BELOW = 2
"""Halvings of the reference that are candidates."""
MEMORY_DOUBLINGS = (4, 6)
"""Doublings of the reference up to the largest batch that fits memory."""
PILOT_DOUBLINGS = 2
"""The second pilot's batch over the reference, in doublings."""
PILOT_SHARE = 0.18
"""Of the reference run's mean time, for both pilots: half each, but steps are whole and machines differ."""
PILOT_UPDATES_MIN = 4
"""Of the second pilot; what they take beyond its half is taken from the first."""

# -- learning ------------------------------------------------------------------------------------------
COORDINATES = 1024
NOISE_SCALE = (300.0, 1e6)
"""Log-uniform, at the start of the run [responses]."""
SNR_SHAPE = (0.05, 4.0)
"""k, log-uniform: 1 + 1/k is the second moment of the signal-to-noise ratios over their squared mean."""
DRIFT = 0.25
"""Share of worlds in which all coordinates have the same ratio, k = infinity."""
FAMILIES = ("gamma", "lognormal", "sparse")
"""Of the ratios."""
VARIANCE_SPREAD = (0.0, 1.5)
"""Of log sigma_i^2 over coordinates."""
VARIANCE_FOLLOWS = (-0.3, 0.3)
"""Slope of log sigma_i^2 on the log of the ratio: the law takes the two as independent."""
GROWTH = (0.7, 6.0)
"""B_noise at the target over that at the start, log-uniform."""
STRONG_FIRST = 0.5
"""Share of worlds in which coordinates with more signal lose it sooner."""
UPDATES = (100.0, 1500.0)
"""Of the reference to the target, log-uniform."""
LR_FRACTION = (0.02, 0.6)
"""Rate of the reference over the best one halfway, uniform."""
PENALTIES = ("quadratic", "exponential", "rational")
"""Share of its linear progress that a step keeps: 1 - c/2, exp(-c), 1/(1 + c^2); each is best at c = 1."""
NOISE_CURVATURE = (0.0, 4.0)
"""Curvature along the noise over that along the signal, less one, uniform."""
CEILING, CEILING_RATE, CEILING_STATED = 1 / 3, (1.2, 6.0), 0.5
"""Share of worlds with a ceiling on eta/eta_0, log-uniform, and share of these whose plan states it."""
CEILING_ERROR = 0.15
"""Of the logarithm of the stated ceiling."""
FEW_UPDATES, MOMENTUM_LOSS, BETA1 = 1 / 2, (0.1, 0.6), 0.9
"""Share of worlds in which momentum costs updates, and how many per update that it remembers."""
STALE, STALE_COST, STALE_POWER, IN_FLIGHT = 1 / 3, (0.1, 0.4), (0.6, 1.1), (0.5, 2.0)
"""Share of worlds with asynchronous generation; 1 + a L^q; responses in flight over the reference batch."""
LAG_LOGGED = 0.5
"""Share of these whose logs hold the age of the responses: about half of the frameworks write it down."""
CURVES = ("sigmoid", "power", "exponential")
EXPONENT = {"sigmoid": (0.7, 1.6), "power": (0.5, 2.0), "exponential": (1.0, 1.0)}
START, RISE = (0.1, 0.4), (0.3, 0.5)
"""Score before training, and asymptote less start."""
TARGET_SHARE = (0.5, 0.85)
"""Of the rise."""

# -- logs ----------------------------------------------------------------------------------------------
SPREAD = (0.02, 0.12)
"""Of log N* over runs."""
EVALUATION_SAMPLES = (400, 4000)
EVALUATIONS = 50
"""Evaluations up to the target, at the reference."""
CHUNKS = 8
BURSTS = 0.2
"""Standard deviation of the logarithm of an update's noise."""
MACHINE_SPREAD, STEP_SPREAD = (0.0, 0.04), (0.02, 0.15)
"""Of log step time over runs, and over steps of a run."""

# -- cluster -------------------------------------------------------------------------------------------
STEP_SECONDS = (60.0, 1200.0)
"""At the reference, log-uniform."""
GENERATION_SHARE = (0.4, 0.85)
"""Of the reference step."""
SHARED_GENERATION = (0.5, 0.98)
"""Part of generation that does not grow with the batch."""
SHARED_TRAINING = (0.1, 0.6)
TAIL = (0.0, 0.08)
"""Of generation's time, that the longest response adds per factor e of the batch."""
CONCURRENCY_DOUBLINGS = (1.5, 6.5)
"""Capped concurrency over the reference batch, log-uniform."""
CONCURRENCY_STATED = 0.5
"""Share of clusters whose plan states it."""
GPUS = 8

# -- what counts ---------------------------------------------------------------------------------------
DIVERGED = 0.5
"""A run that diverges is given up after this share of the reference's time, and the reference is run."""
STILL_GROWS = 1.1
"""Growth of throughput per doubling from which the third habit goes on."""
HABIT_GOAL, MEAN_GOAL, P95_GOAL, COVERAGE_GOAL = 0.08, 0.5, 0.05, (0.75, 0.9)
"""Least median regret of the best habit; mean regret over the prior's; 95th percentile; share of 80 % intervals."""
