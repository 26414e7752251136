"""How wrong the package is: one module per claim, each against measurements that the claim did not see.

`samples`      the learning law against published steps-to-target tables and our own sweeps

A validation is a dict of plain values: name, overall, slices, rows and skipped. A data set whose file is absent
is skipped with the reason, never silently.
"""

from __future__ import annotations
