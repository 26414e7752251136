r"""What a rollout needs to know of one replica: the time of a decode step as a law of its running batch.

With n sequences running, of contexts c_1 ... c_n (tokens whose keys are read at this step),

    t(n, c) = t_n + kappa sum_i c_i + omega sum_i min(c_i, w)                      decode step
    t(n, c) + pi s + chi sum_j (tokens attended by prompt token j)                 with s prompt tokens prefilled in it

t_n is a table over n: weights, touched experts, compute, communication and overheads, none of which depends on
the context; kappa is the time per token of context read in full, omega that of layers with a window of w tokens
(or that select w tokens). A step that only prefills costs t_1 in the place of t_n. Because t is linear in every
context until it reaches w, the time of m steps of an unchanged batch has a closed form:

    sum_(j=0)^(m-1) t = m t_n + kappa (m sum_i c_i + n m (m-1)/2)                  (window: likewise until saturated)

`roofline.decode_law` makes one from a model, a GPU and an engine; a measured one may be given instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class DecodeLaw:
    """Decode-step and prefill times of one replica.

    Parameters
    ----------
    step_time : ndarray, (concurrency + 1,) [s]
        t_n for n = 0 ... the largest batch the replica runs; t_0 = 0, non-decreasing.
    context_time : float [s/token]
        kappa, per token of context read in full.
    window_time : float [s/token]
        omega, per token of context within the window.
    window : int [tokens]
        w; 0 if no layer has a window.
    prefill_time : float [s/token]
        pi, per prompt token.
    prefill_context_time : float [s/token^2]
        chi, per pair of a prompt token and a token it attends to.
    name : str
        Model, GPU, parallelism and engine in words.
    """

    step_time: NDArray[np.float64]
    context_time: float
    window_time: float = 0.0
    window: int = 0
    prefill_time: float = 0.0
    prefill_context_time: float = 0.0
    name: str = ""
