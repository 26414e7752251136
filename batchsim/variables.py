"""Every quantity of batchsim once: code name, symbol, unit, long name.

The vocabulary follows Li et al. 2026 where the paper names a thing and the field's usage elsewhere.
Two batches must not be confused:

    rollout_batch = P G           kept responses per rollout step; step times and throughput use it
    train_batch B = rollout_batch E / M
                                  kept responses per optimizer update; noise scale and sample cost use it

with M updates and E passes over the data of one rollout step. They are equal in the paper
(M = E = 1); in verl B is a mini-batch of prompts times the group size. "Step" alone is ambiguous:
a decode step, a rollout step and an update are three things.

Units are SI inside the package (s, B, FLOP, B/s); responses, prompts and tokens are counts and are
kept as units because a ratio of responses is not a number of responses. xarray keeps attributes
through division, so `set_attrs` replaces them as the last act of every public function that
returns a Dataset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import xarray as xr

    AnyDataset = TypeVar("AnyDataset", bound=xr.Dataset)

SCHEMA = 1
"""Version of the JSON that every verb prints."""


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One quantity: its symbol, unit and long name."""

    symbol: str
    unit: str
    long_name: str


def _variable(symbol: str, unit: str, long_name: str) -> Variable:
    return Variable(symbol=symbol, unit=unit, long_name=long_name)


VARIABLES: dict[str, Variable] = {
    # -- the recipe -------------------------------------------------------------------------------
    "prompts": _variable("P", "prompts", "prompt groups kept per rollout step"),
    "group_size": _variable("G", "responses/prompt", "responses per prompt"),
    "rollout_batch": _variable("P G", "responses", "kept responses per rollout step"),
    "train_batch": _variable("B", "responses", "kept responses per optimizer update"),
    "gen_batch": _variable("B_gen", "responses", "responses launched or in flight per rollout step"),
    "gen_ratio": _variable("B_gen/(P G)", "1", "responses launched per kept response of a rollout step"),
    "updates_per_rollout": _variable("M", "1", "optimizer updates per rollout step"),
    "epochs": _variable("E", "1", "passes over the data of one rollout step"),
    "learning_rate": _variable("eta", "1", "learning rate"),
    "learning_rate_ratio": _variable("s", "1", "learning rate relative to the reference recipe"),
    "lr_rule": _variable("", "1", "learning-rate rule"),
    # -- the criterion ----------------------------------------------------------------------------
    "updates_to_target": _variable("S*", "updates", "optimizer updates to the validation target"),
    "responses_to_target": _variable("N*", "responses", "kept responses to the validation target"),
    "responses_to_target_se": _variable("se(N*)", "responses", "standard error of N* over runs"),
    "throughput": _variable("q", "responses/s", "kept responses per second, without evaluation and checkpoints"),
    "throughput_with_evaluation": _variable("q_wall", "responses/s", "kept responses per second of wall clock"),
    "time_to_target": _variable("T", "s", "time to the validation target, without evaluation and checkpoints"),
    "time_with_evaluation": _variable("T_wall", "s", "wall-clock time to the validation target"),
    "sample_cost_ratio": _variable("r_N", "1", "responses to target relative to the reference"),
    "sample_cost_ratio_floor": _variable("", "1", "r_N if the noise scale had no upper limit"),
    "binding_limit": _variable("", "1", "what the rollout step mostly waits for"),
    "throughput_ratio": _variable("r_q", "1", "throughput relative to the reference"),
    "throughput_ratio_se": _variable("se(r_q)", "1", "standard error of the throughput ratio"),
    "sample_cost_ratio_se": _variable("se(r_N)", "1", "standard error of the sample cost ratio"),
    "time_ratio": _variable("T/T_0", "1", "time to target relative to the reference"),
    "p_wins": _variable("P(r_q > r_N)", "1", "probability that the batch is faster than the reference"),
    "verdict": _variable("", "1", "wins, loses or undecided against the reference"),
    "gpu_hours": _variable("", "GPU*h", "GPU-hours to the validation target"),
    "cost": _variable("", "USD", "price of the GPU-hours to the validation target"),
    "price": _variable("", "USD/(GPU*h)", "price of one GPU for one hour"),
    "gpus": _variable("", "GPU", "number of GPUs"),
    # -- the learning side ------------------------------------------------------------------------
    "noise_scale": _variable("B_noise", "responses", "gradient noise scale tr(Sigma)/|G|^2"),
    "signal_square": _variable("|G|^2", "1", "squared norm of the expected gradient"),
    "noise_trace": _variable("tr(Sigma)", "responses", "trace of the covariance of one response's gradient"),
    "prompt_variance": _variable("V_prompt", "prompts", "trace of the covariance between prompts"),
    "response_variance": _variable("V_resp", "responses", "trace of the covariance of responses to one prompt"),
    "first_order_factor": _variable("1+1/k", "1", "how much earlier than by the norms the slope departs"),
    "snr_shape": _variable("k", "1", "spread of signal-to-noise over coordinates (infinite: none)"),
    "lr_fraction": _variable("c_0", "1", "reference learning rate over the locally optimal one"),
    "curvature_ratio": _variable("h_ratio", "1", "step cost along the signal over step cost along the noise"),
    "penalty_shape": _variable(
        "p", "1", "how fast a step undoes its progress: -1 quadratic, 0 exponential, above softer"
    ),
    "usable_slope": _variable("A", "1", "slope the optimizer can use, relative to its large-batch limit"),
    "critical_train_batch": _variable(
        "", "responses", "largest batch whose N* is within 10 % of its small-batch limit"
    ),
    "progress": _variable("u", "responses", "progress in responses that the reference recipe would have used"),
    "constant_batch": _variable("", "responses", "batch of the least time if it must not change along the run"),
    "schedule_gain": _variable("", "1", "time of the best constant batch over that of the best schedule"),
    "curvature_noise_scale": _variable("", "responses", "noise scale weighted by curvature, tr(H Sigma)/(G' H G)"),
    "loss_floor": _variable("", "1", "expected loss after infinitely many updates"),
    "training_outcome": _variable("", "1", "whether the target loss is reached, or why not"),
    "regime": _variable("", "1", "how updates fall with the batch"),
    # -- the system side --------------------------------------------------------------------------
    "step_time": _variable("t_step", "s", "time of a rollout step, without evaluation and checkpoints"),
    "step_time_law": _variable("", "s", "time of a rollout step under the affine law, without a plateau"),
    "gen_time": _variable("t_gen", "s", "time to collect the responses of a rollout step"),
    "drain_share": _variable("", "1", "share of the generation in which its batch only shrinks"),
    "gen_limit": _variable("", "1", "what generation mostly waits for"),
    "gen_idle_share": _variable("", "1", "share of a step in which the GPUs that generate wait"),
    "train_idle_share": _variable("", "1", "share of a step in which the GPUs that train wait"),
    "split": _variable("", "GPU", "GPUs that generate"),
    "training_gpus": _variable("", "GPU", "GPUs that train"),
    "train_time": _variable("t_train", "s", "time of the updates of a rollout step"),
    "update_time": _variable("t_update", "s", "time of one optimizer update"),
    "element_time": _variable("", "s", "passes over memory outside of products, within an update"),
    "offload_time": _variable("", "s", "activations to the host's memory and back within an update"),
    "gather_wait": _variable("", "s", "gathering sharded weights, beyond what compute hides, within an update"),
    "exchange_time": _variable("", "s", "all-reduces and all-to-alls of layers within an update"),
    "bubble_time": _variable("", "s", "pipeline stages that wait within an update"),
    "gradient_time": _variable("", "s", "reducing gradients once per update"),
    "optimizer_time": _variable("", "s", "reading and writing the optimizer's state"),
    "fixed_time": _variable("", "s", "time per update that no work explains"),
    "micro_batches": _variable("m", "1", "micro-batches of a data-parallel rank"),
    "padding_share": _variable("", "1", "share of computed tokens that are padding"),
    "mfu": _variable("MFU", "1", "model FLOPs over time and peak"),
    "old_logprob_time": _variable("", "s", "log-probabilities of the policy that generated"),
    "reference_logprob_time": _variable("", "s", "log-probabilities of the reference policy"),
    "value_time": _variable("", "s", "values of the critic"),
    "policy_update_time": _variable("", "s", "updates of the policy within a rollout step"),
    "critic_update_time": _variable("", "s", "updates of the critic within a rollout step"),
    "sync_time": _variable("", "s", "new weights to the engine"),
    "gen_time_intercept": _variable("d_0", "s", "generation time shared by the responses of a rollout step"),
    "gen_time_slope": _variable("d_1", "s/response", "generation time per generated response"),
    "gen_throughput_max": _variable("q_gen_max", "responses/s", "plateau of generation, in generated responses"),
    "train_time_intercept": _variable("", "s", "training time shared by the responses of a rollout step"),
    "train_time_per_response": _variable("gamma", "s/response", "training time per kept response"),
    "overhead_time": _variable("", "s", "time of a rollout step that neither stage hides"),
    "update_time_intercept": _variable("tau_0", "s", "rollout-step time shared by its responses"),
    "update_time_slope": _variable("tau_1", "s/response", "rollout-step time per kept response"),
    "throughput_max": _variable("q_max", "responses/s", "plateau of the throughput of kept responses"),
    "critical_gen_batch": _variable("", "responses", "generated responses at 90 % of the plateau throughput"),
    "concurrency": _variable("n", "sequences", "sequences that decode at the same time"),
    "context_length": _variable("c", "tokens", "mean context of a sequence in flight"),
    "decode_step_time": _variable("t_n", "s", "time of a decode step"),
    "decode_throughput": _variable("n/t_n", "tokens/s", "tokens decoded per second by one replica"),
    "weight_time": _variable("", "s", "reading weights within a decode step"),
    "expert_time": _variable("", "s", "reading touched experts within a decode step"),
    "cache_time": _variable("", "s", "reading the KV cache or state within a decode step"),
    "compute_time": _variable("", "s", "multiplying: of a decode step, what reading does not hide"),
    "communication_time": _variable("", "s", "all-reduces and all-to-alls within a decode step"),
    "launch_time": _variable("", "s", "latencies of kernels and layers, and engine time of a decode step"),
    "ridge_batch": _variable("", "sequences", "batch at which reading weights takes as long as multiplying"),
    "ridge_intensity": _variable("F/BW", "FLOP/B", "peak over bandwidth of the GPU"),
    "part": _variable("", "1", "part of the model"),
    "concurrency_max": _variable("C", "responses", "responses that can decode at the same time"),
    "kept_share": _variable("", "1", "kept responses over the responses that were counted or generated"),
    # -- a simulated rollout ----------------------------------------------------------------------
    "response": _variable("", "1", "response, in the order of launch"),
    "time": _variable("t", "s", "time since the rollout began"),
    "running": _variable("n", "responses", "sequences that run, over all replicas"),
    "start_time": _variable("", "s", "when a response was first scheduled"),
    "finish_time": _variable("", "s", "when a response was complete"),
    "response_tokens": _variable("", "tokens", "tokens of a response when complete"),
    "generated_tokens": _variable("", "tokens", "tokens of a response that were generated"),
    "preemptions": _variable("", "1", "times that a response was preempted"),
    "preemptions_total": _variable("", "1", "preemptions of all responses"),
    "evictions": _variable("", "1", "caches of waiting responses that were dropped"),
    "replica": _variable("", "1", "replica of a response"),
    "outcome": _variable("", "1", "what became of a response"),
    "tail_share": _variable("", "1", "share of the time after concurrency falls below half of its maximum for good"),
    "token_throughput": _variable("", "tokens/s", "generated tokens per second of generation"),
    "kept_throughput": _variable("", "responses/s", "kept responses per second of generation, or of its steps"),
    "gen_throughput": _variable("B_gen/t_gen", "responses/s", "generated responses per second of generation"),
    "gen_time_se": _variable("se(t_gen)", "s", "standard error of the generation time over draws of lengths"),
    "responses_kept": _variable("", "responses", "responses of kept groups"),
    "responses_launched": _variable("", "responses", "responses launched"),
    "responses_wasted": _variable("", "responses", "responses dropped, surplus or cut"),
    "wasted_tokens": _variable("", "tokens", "generated tokens of wasted responses"),
    "prefilled_tokens": _variable("", "tokens", "tokens computed as prompts, recomputed ones among them"),
    "recomputed_tokens": _variable("", "tokens", "tokens computed again after their cache was lost"),
    "decode_steps": _variable("", "1", "steps of all replicas"),
    "used_by": _variable("", "1", "update that a response trained, from 0; -1 for none"),
    "staleness": _variable("", "1", "age of a response at its use, in versions of the weights"),
    "versions_spanned": _variable("", "1", "versions of the weights between a response's first and last token"),
    "update": _variable("", "1", "update number"),
    "ready_time": _variable("", "s", "when the groups of an update were complete"),
    "taken_time": _variable("", "s", "when an update began"),
    "resumed_time": _variable("", "s", "when the weights of an update reached the replicas"),
    "response_length_launched": _variable("", "tokens", "mean length of all responses that were launched"),
    # -- a log ------------------------------------------------------------------------------------
    "rollout_step": _variable("", "1", "rollout step as the log numbers it"),
    "responses": _variable("N", "responses", "kept responses used so far, at the end of the rollout step"),
    "responses_generated": _variable("", "responses", "responses generated so far"),
    "updates": _variable("S", "updates", "optimizer updates so far, at the end of the rollout step"),
    "elapsed": _variable("t", "s", "time since the run started, without evaluation and checkpoints"),
    "step_seconds": _variable("", "s", "time of the rollout step, without evaluation and checkpoints"),
    "generation_seconds": _variable("", "s", "generation within the rollout step, as the log states it"),
    "training_seconds": _variable("", "s", "optimizer updates within the rollout step"),
    "logprob_seconds": _variable("", "s", "old and reference log-probabilities and values within the rollout step"),
    "reward_seconds": _variable("", "s", "rewards and advantages within the rollout step"),
    "sync_seconds": _variable("", "s", "weight synchronisation within the rollout step"),
    "environment_seconds": _variable("", "s", "environment and tool calls, within the generation"),
    "other_seconds": _variable("", "s", "rest of the rollout step that no known phase accounts for"),
    "evaluation_seconds": _variable("", "s", "evaluation, where the log states it"),
    "checkpoint_seconds": _variable("", "s", "checkpoint writing within the rollout step"),
    "grad_norm": _variable("|g_B|", "1", "gradient norm of the actor before clipping"),
    "critic_grad_norm": _variable("", "1", "gradient norm of the critic before clipping"),
    "sq_norm_chunk": _variable("", "1", "mean squared gradient norm of equal chunks of the batch"),
    "sq_norm_batch": _variable("", "1", "squared gradient norm of the batch"),
    "critic_sq_norm_chunk": _variable("", "1", "mean squared critic gradient norm of equal chunks of the batch"),
    "critic_sq_norm_batch": _variable("", "1", "squared critic gradient norm of the batch"),
    "train_reward": _variable("", "1", "mean training reward of the rollout step (not a validation score)"),
    "response_length": _variable("", "tokens", "mean response length of the rollout step"),
    "response_length_max": _variable("", "tokens", "longest response of the rollout step"),
    "truncated_share": _variable("", "1", "share of responses that reached the length limit"),
    "staleness_mean": _variable("", "1", "mean age of the responses, in versions of the weights"),
    "staleness_max": _variable("", "1", "largest age of a response, in versions of the weights"),
    "steady": _variable("", "1", "rollout step is neither a cold start nor a spike"),
    "metric": _variable("", "1", "name of the score as the log writes it"),
    "evaluation": _variable("", "1", "evaluation number"),
    "evaluation_responses": _variable("", "responses", "kept responses used when the evaluation began"),
    "evaluation_elapsed": _variable("", "s", "elapsed time, without evaluations and checkpoints, when it began"),
    "evaluation_wall": _variable("", "s", "wall-clock time since the run started when the evaluation began"),
    "score": _variable("J", "1", "validation score"),
    "draw": _variable("", "1", "posterior draw"),
    "bound": _variable("", "1", "lower limit, estimate or upper limit"),
    "censoring": _variable("", "1", "how N* is bounded: left, interval or right"),
    "alignment_gap": _variable("", "1", "largest score gap to the reference at equal responses"),
    "alignment_at": _variable("", "responses", "responses at the largest score gap"),
    "alignment": _variable("", "1", "whether the curve stays in the band: inside, outside or undecided"),
    "target": _variable("J*", "1", "validation score to reach"),
    "first_evaluation_responses": _variable("", "responses", "kept responses used at the first evaluation"),
    "first_evaluation_time": _variable("", "s", "time to the first scheduled evaluation (not to the target)"),
    "first_evaluation_time_ratio": _variable("", "1", "time to the first evaluation relative to the reference"),
    "arm": _variable("", "1", "runs that share batch, group size and learning rate"),
    "run": _variable("", "1", "run"),
    "runs": _variable("", "1", "number of runs"),
}


def set_attrs(ds: AnyDataset) -> AnyDataset:
    """Replace the attributes of every variable and coordinate by those of `VARIABLES`, in place.

    Parameters
    ----------
    ds : xarray.Dataset
        Every variable and coordinate must be named in `VARIABLES`.

    Returns
    -------
    xarray.Dataset
        The same object.

    Raises
    ------
    KeyError
        For a name that the vocabulary does not hold.
    """
    for name in ds.variables:
        known = VARIABLES[str(name)]
        ds[name].attrs = {"symbol": known.symbol, "units": known.unit, "long_name": known.long_name}
    return ds
