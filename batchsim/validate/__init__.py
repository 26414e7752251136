"""How wrong the package is: one module per claim, each against measurements that the claim did not see.

`samples`      the learning law against published steps-to-target tables and our own sweeps
`mlperf`       q and T/T0 of 18 GRPO runs at the largest batch, from the two others
`li2026`       the paper's GRPO sweep from its pilots, under several priors
`tiny`         T/T0 and the star of a small transformer's sweep from its two smallest batches
`steps`        phases and steps of published step-time tables, rows left out
`serving`, `kernels`, `trace`, `makespan`, `training`, `rl-steps`: the system wing, stage by stage
`worlds`       the law in simulated worlds

A validation is a dict of plain values: name, overall, slices, rows and skipped. A data set whose file is absent
is skipped with the reason, never silently.
"""

from __future__ import annotations
