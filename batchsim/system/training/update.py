r"""Times of an update and of a rollout step's training, from the work of a micro-batch.

A data-parallel rank holds R/dp of R responses in m micro-batches, whole ones:

    m        = ceil(R s/(dp packing n))   of n tokens each, or ceil(R/(dp b)) of b sequences
    update   = (m + pp - 1) t_micro + gradients + optimizer + t_update
    forward  = (m + pp - 1) t_micro'                       log-probabilities or values: no backward, no optimizer
    step     = old + reference + value + M update + M critic update + sync

(pp - 1)/m is the bubble of a pipeline of pp stages. Gradients that are not scattered per micro-batch are reduced once,
2 (dp-1)/dp of their bytes over the link; the optimizer reads and writes its state once. Both epochs E and updates M of
a rollout step count: each update has R E/M responses.

Without rounding m to whole micro-batches all of this is affine in R: `train_time_law` gives the two numbers, with half
a micro-batch per pass for what rounding costs on average.

References
----------
.. [1] Narayanan et al. 2021, arXiv:2104.04473, section 2.2 (the bubble); Schulman et al. 2017, arXiv:1707.06347 (PPO).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError
from batchsim.system.training.trainer import Trainer, micro_batch_work, rank_share
from batchsim.system.training.work import LENGTH_MAX, PARTS, Units, micro_batch_parts, pass_units, training_flops
from batchsim.variables import set_attrs

Array = NDArray[np.float64]
RESPONSES_MAX = 1e12
SLACK = 1e-9
"""Of a micro-batch, so that a batch that fills it exactly is not rounded up by an ulp."""
UPDATE_PARTS = (*PARTS, "bubble_time", "gradient_time", "optimizer_time", "fixed_time")


def _checked(name: str, value: ArrayLike, low: float, high: float, *, open_low: bool = True) -> Array:
    v = np.asarray(value, dtype=np.float64)
    good = (v <= high) & ((v > low) if open_low else (v >= low))
    if not np.all(good):
        raise InputError(f"{name} {v[~good].flat[0]:g} is outside {'(' if open_low else '['}{low:g}, {high:g}]")
    return v


def micro_batches(t: Trainer, responses: ArrayLike, *, length: ArrayLike, rounded: bool = True) -> tuple[Array, Array]:
    """Micro-batches of a data-parallel rank, and tokens in each.

    Parameters
    ----------
    t : Trainer
    responses : array_like, any shape [responses]
        Of one update or pass, over all ranks.
    length : array_like, broadcastable [tokens]
        Mean length, prompt included.
    rounded : bool
        To whole micro-batches.

    Returns
    -------
    micro_batches, tokens : ndarray, broadcast shape [1], [tokens]
        Tokens include padding.

    Raises
    ------
    InputError
        If a value is out of bounds, a rank has less than a response or less than a micro-batch of sequences, or a
        sequence does not fit into a micro-batch.
    """
    r, s = np.broadcast_arrays(
        _checked("responses", responses, 0.0, RESPONSES_MAX), _checked("length", length, 0.0, LENGTH_MAX)
    )
    own = r / t.data_parallel
    if np.any(own < 1):
        raise InputError(
            f"{r.min():g} responses leave some of {t.data_parallel} data-parallel ranks without one",
            remedy=f"use at least {t.data_parallel} responses per update, or fewer GPUs",
        )
    if t.micro_batch_sequences is not None:
        if np.any(own < t.micro_batch_sequences):
            raise InputError(
                f"a micro-batch of {t.micro_batch_sequences} sequences exceeds the {own.min():g} that each of "
                f"{t.data_parallel} ranks has of {r.min():g} responses",
                remedy=f"lower micro_batch_sequences to {int(own.min())}, or raise the batch",
            )
        number = own / t.micro_batch_sequences
        full = t.micro_batch_sequences * s / t.packing
    else:
        room = float(t.micro_batch_tokens or 0)
        if np.any(s > room):
            raise InputError(
                f"a sequence of {s.max():g} tokens does not fit into a micro-batch of {room:g}",
                remedy=f"raise micro_batch_tokens to {int(np.ceil(s.max()))}",
            )
        number = own * s / (t.packing * room)
        full = np.broadcast_to(room, s.shape)
    if not rounded:
        return np.asarray(number), np.asarray(full)
    whole = np.maximum(np.ceil(number - SLACK), 1.0)
    return whole, np.asarray(full if t.padded else full * number / whole)


def _units(t: Trainer, forward_only: bool) -> Units:
    return pass_units(recompute=t.recompute, lora=t.lora_rank is not None, forward_only=forward_only, loss=t.loss)


def _pass_parts(
    t: Trainer, responses: ArrayLike, length: ArrayLike, length_cv: ArrayLike, forward_only: bool, rounded: bool
) -> tuple[Array, Array, Array]:
    """Seconds by part, shape + (10,), in the order of `UPDATE_PARTS`; micro-batches; tokens in each."""
    cv = _checked("length_cv", length_cv, 0.0, 10.0, open_low=False)
    number, tokens = micro_batches(t, responses, length=length, rounded=rounded)
    work = micro_batch_work(
        t,
        _units(t, forward_only),
        tokens=tokens,
        length=np.asarray(length, dtype=np.float64),
        length_cv=cv,
        forward_only=forward_only,
    )
    one = micro_batch_parts(work, t.efficiency)
    shape = np.broadcast_shapes(number.shape, one.shape[:-1])
    number, one = np.broadcast_to(number, shape), np.broadcast_to(one, (*shape, one.shape[-1]))
    bubble = (t.pipeline_parallel - 1) * one.sum(axis=-1)
    once = [0.0, 0.0, 0.0] if forward_only else [gradient_time(t), optimizer_time(t), _fixed_time(t)]
    rest = np.stack([bubble, *(np.full(shape, v) for v in once)], axis=-1)
    return np.concatenate([number[..., None] * one, rest], axis=-1), number, tokens


def gradient_time(t: Trainer) -> float:
    """Reduction of gradients, once per update, where they are not scattered per micro-batch; updated weights gathered.

    2 (n-1)/n of the bytes on a GPU over the link.
    """
    ranks = t.data_parallel * t.context_parallel
    if t.sharding == "full" or ranks == 1:
        return 0.0
    own = t.trained_parameters * rank_share(t)
    return 2 * (1 - 1 / ranks) * t.gradient_bytes * own / (t.link * t.efficiency.link_share)


def optimizer_time(t: Trainer) -> float:
    """Weights and moments read and written, gradients read, by each GPU's share of parameters."""
    share = rank_share(t) if t.sharding == "none" else 1 / t.gpus
    moved = 2 * (t.weight_bytes + t.optimizer_bytes) + t.gradient_bytes
    return moved * t.trained_parameters * share / float(t.gpu.memory_bandwidth or 1.0)


def _fixed_time(t: Trainer) -> float:
    return t.efficiency.update_time + (t.efficiency.rl_time if t.loss == "rl" else 0.0)


def update_seconds(
    t: Trainer, *, responses: ArrayLike, length: ArrayLike, length_cv: ArrayLike = 0.0, rounded: bool = True
) -> Array:
    """Time of one update.

    Parameters
    ----------
    t : Trainer
    responses : array_like, any shape [responses]
        Of the update, B.
    length : array_like, broadcastable [tokens]
        Mean length of a sequence, prompt included.
    length_cv : array_like, broadcastable [1]
        Coefficient of variation of lengths, which only attention sees.
    rounded : bool
        To whole micro-batches.

    Returns
    -------
    ndarray [s]

    Raises
    ------
    InputError
        As `micro_batches` does.
    """
    return np.asarray(_pass_parts(t, responses, length, length_cv, False, rounded)[0].sum(axis=-1))


def forward_seconds(
    t: Trainer, *, responses: ArrayLike, length: ArrayLike, length_cv: ArrayLike = 0.0, rounded: bool = True
) -> Array:
    """Time of a pass without gradients: old or reference log-probabilities, or values.

    Parameters
    ----------
    t : Trainer
    responses : array_like, any shape [responses]
    length, length_cv : array_like, broadcastable [tokens], [1]
    rounded : bool

    Returns
    -------
    ndarray [s]

    Raises
    ------
    InputError
        As `micro_batches` does.
    """
    return np.asarray(_pass_parts(t, responses, length, length_cv, True, rounded)[0].sum(axis=-1))


def update_time(t: Trainer, *, train_batch: ArrayLike, length: float, length_cv: float = 0.0) -> xr.Dataset:
    """One update over batches: its time by part, micro-batches, MFU.

    Parameters
    ----------
    t : Trainer
    train_batch : array_like, (train_batch,) [responses]
    length, length_cv : float [tokens], [1]

    Returns
    -------
    xarray.Dataset
        Over `train_batch`: `update_time` [s]; its parts [s] in the order of `UPDATE_PARTS`; `micro_batches` [1] of a
        rank; `padding_share` [1] of computed tokens; `mfu` [1], model FLOPs of real tokens over time and peak.

    Raises
    ------
    InputError
        As `micro_batches` does.
    """
    b = np.atleast_1d(np.asarray(train_batch, dtype=np.float64))
    parts, number, tokens = _pass_parts(t, b, length, length_cv, False, True)
    total = parts.sum(axis=-1)
    # Logits that a chunked loss computes again are recomputation, which MFU leaves out.
    loss = "value" if t.loss == "value" else "plain"
    per_token = training_flops(t.architecture, length=length, length_cv=length_cv, lora_rank=t.lora_rank, loss=loss)
    ds = xr.Dataset(
        {
            "update_time": ("train_batch", total),
            **{name: ("train_batch", parts[:, i]) for i, name in enumerate(UPDATE_PARTS)},
            "micro_batches": ("train_batch", number),
            "padding_share": ("train_batch", 1 - b * length / (t.data_parallel * number * tokens)),
            "mfu": ("train_batch", per_token * b * length / (total * t.gpus * t.peak)),
        },
        coords={"train_batch": b},
    )
    ds.attrs = {"efficiency": t.efficiency.source}
    return set_attrs(ds)


def train_time(
    t: Trainer,
    *,
    rollout_batch: ArrayLike,
    length: float,
    length_cv: float = 0.0,
    updates_per_rollout: int = 1,
    epochs: int = 1,
    old_logprobs: bool = True,
    reference: bool = False,
    critic: Trainer | None = None,
    sync_time: float = 0.0,
) -> xr.Dataset:
    """Training of a rollout step over batches, by stage.

    Parameters
    ----------
    t : Trainer
        Of the policy.
    rollout_batch : array_like, (rollout_batch,) [responses]
        Kept responses of the step.
    length, length_cv : float [tokens], [1]
        Of sequences, prompt included.
    updates_per_rollout, epochs : int
        M and E.
    old_logprobs, reference : bool
        Passes for old log-probabilities, and for those of a reference policy of the same size.
    critic : Trainer or None
        Of a critic with loss 'value': a pass for values and an update beside each of the policy's.
    sync_time : float [s]
        Of new weights to the engine, see `sync_seconds`.

    Returns
    -------
    xarray.Dataset
        Over `rollout_batch`: `train_time`, `old_logprob_time`, `reference_logprob_time`, `value_time`,
        `policy_update_time`, `critic_update_time`, `sync_time` [s].

    Raises
    ------
    InputError
        For M or E below 1, or as `micro_batches` does.
    """
    r = np.atleast_1d(np.asarray(rollout_batch, dtype=np.float64))
    stages = _stages(
        t, r, length, length_cv, updates_per_rollout, epochs, old_logprobs, reference, critic, rounded=True
    )
    stages["sync_time"] = np.full(r.shape, float(_checked("sync_time", sync_time, 0.0, 1e7, open_low=False)))
    ds = xr.Dataset(
        {"train_time": ("rollout_batch", sum(stages.values())), **{k: ("rollout_batch", v) for k, v in stages.items()}},
        coords={"rollout_batch": r},
    )
    ds.attrs = {"efficiency": t.efficiency.source}
    return set_attrs(ds)


def _stages(
    t: Trainer,
    r: Array,
    length: float,
    length_cv: float,
    updates: int,
    epochs: int,
    old: bool,
    reference: bool,
    critic: Trainer | None,
    *,
    rounded: bool,
) -> dict[str, Array]:
    for name, value in (("updates_per_rollout", updates), ("epochs", epochs)):
        if value < 1:
            raise InputError(f"{name} {value} is below 1")
    if critic is not None and critic.loss != "value":
        raise InputError(f"a critic has the loss 'value', not '{critic.loss}'")
    zero = np.zeros(r.shape)
    forward = zero
    if old or reference:
        forward = forward_seconds(t, responses=r, length=length, length_cv=length_cv, rounded=rounded)
    batch = r * epochs / updates
    values = critic_update = zero
    if critic is not None:
        values = forward_seconds(critic, responses=r, length=length, length_cv=length_cv, rounded=rounded)
        critic_update = updates * update_seconds(
            critic, responses=batch, length=length, length_cv=length_cv, rounded=rounded
        )
    policy = updates * update_seconds(t, responses=batch, length=length, length_cv=length_cv, rounded=rounded)
    return {
        "old_logprob_time": forward if old else zero,
        "reference_logprob_time": forward if reference else zero,
        "value_time": values,
        "policy_update_time": policy,
        "critic_update_time": critic_update,
    }


def train_time_law(
    t: Trainer,
    *,
    length: float,
    length_cv: float = 0.0,
    updates_per_rollout: int = 1,
    epochs: int = 1,
    old_logprobs: bool = True,
    reference: bool = False,
    critic: Trainer | None = None,
    sync_time: float = 0.0,
) -> tuple[float, float]:
    """Intercept and slope of a rollout step's training time in its kept responses.

    Parameters
    ----------
    t, length, length_cv, updates_per_rollout, epochs, old_logprobs, reference, critic, sync_time
        As for `train_time`.

    Returns
    -------
    train_time_intercept : float [s]
        Fixed costs of M updates, bubbles, and half a micro-batch per pass where batches are filled up to whole ones.
    train_time_per_response : float [s/response]

    Raises
    ------
    InputError
        As `train_time` does.
    """
    ranks = max(t.data_parallel, critic.data_parallel if critic else 1)
    sequences = max(t.micro_batch_sequences or 1, (critic.micro_batch_sequences or 1) if critic else 1)
    r = ranks * sequences * updates_per_rollout * np.array([1.0, 2.0])
    exact = _stages(
        t, r, length, length_cv, updates_per_rollout, epochs, old_logprobs, reference, critic, rounded=False
    )
    low, high = np.sum(list(exact.values()), axis=0)
    slope = (high - low) / (r[1] - r[0])
    lost = 0.0
    for who, forwards in ((t, int(old_logprobs) + int(reference)), (critic, 1)):
        if who is not None and who.padded:
            lost += 0.5 * (forwards * _micro_seconds(who, length, length_cv, True))
            lost += 0.5 * updates_per_rollout * _micro_seconds(who, length, length_cv, False)
    return float(low - slope * r[0] + lost + sync_time), float(slope)


def _micro_seconds(t: Trainer, length: float, length_cv: float, forward_only: bool) -> float:
    """Seconds of a full micro-batch."""
    one = t.data_parallel * (t.micro_batch_sequences or 1)
    parts, number, _ = _pass_parts(t, float(one), length, length_cv, forward_only, False)
    return float(parts[..., : len(PARTS)].sum() / number)


def train_time_of(
    t: Trainer, *, length: float, critic: Trainer | None = None, **how: object
) -> Callable[[Array, int], Array]:
    """Training time as a function of the rollout batch and the GPUs that train.

    Parameters
    ----------
    t : Trainer
    length : float [tokens]
    critic : Trainer or None
    **how
        Other arguments of `train_time`.

    Returns
    -------
    callable
        Takes an array of rollout batches [responses] and a number of GPUs, returns seconds.
    """

    def seconds(rollout_batch: Array, gpus: int) -> Array:
        own = t.with_gpus(gpus)
        value = None if critic is None else critic.with_gpus(gpus)
        ds = train_time(own, rollout_batch=rollout_batch, length=length, critic=value, **how)  # type: ignore[arg-type]
        return np.asarray(ds["train_time"].values)

    return seconds
