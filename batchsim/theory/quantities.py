r"""Symbols of the derivations: one per quantity, with the unit that the vocabulary gives it.

A symbol's code name is that of `variables.VARIABLES` where the package has the quantity, so that an equation can be
evaluated with the arguments of the function that ships it, and its dimension checked against the same vocabulary.
Units that the vocabulary does not need:

    score       what training raises; J and what an update adds to it
    parameter   length in the space of parameters, so that a gradient is [score/parameter]
    gradient of one response: its variance counts as [score^2 responses/parameter^2], since averaging B of them
                leaves sigma^2/B

Learning rates are lengths for Adam, whose update has no unit, and [parameter^2/score] for SGD. A count that a proof
sums over (responses i = 1 ... n) is a pure number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy as sp

from batchsim.variables import VARIABLES


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A symbol, its code name and its unit.

    Parameters
    ----------
    name : str
        Code name, that of the vocabulary where it has one.
    symbol : sympy.Symbol or sympy.FunctionClass
    unit : str
        As pint reads it; '1' for a pure number.
    """

    name: str
    symbol: Any
    unit: str


QUANTITIES: dict[str, Quantity] = {}
"""Every quantity by its code name."""


def _quantity(name: str, latex: str, unit: str | None = None, **assumptions: bool) -> sp.Symbol:
    symbol = sp.Symbol(latex, **(assumptions or {"positive": True}))
    return _register(name, symbol, unit)


def _register(name: str, symbol: Any, unit: str | None) -> Any:
    QUANTITIES[name] = Quantity(name=name, symbol=symbol, unit=VARIABLES[name].unit if unit is None else unit)
    return symbol


# -- the criterion --------------------------------------------------------------------------------------
time = _quantity("time", "t")
T = _quantity("time_to_target", "T")
N_target = _quantity("responses_to_target", "N^*")
N_reference = _quantity("reference_responses", "N^*_0", "responses")
q = _quantity("throughput", "q")
q_reference = _quantity("reference_throughput", "q_0", "responses/s")
r_N = _quantity("sample_cost_ratio", "r_N")
r_q = _quantity("throughput_ratio", "r_q")
time_ratio = _quantity("time_ratio", r"\rho")
growth = _quantity("growth", "g", "1")
value = _quantity("value", "V", "USD")
saved = _quantity("saving", "V_s", "USD")
N_of_t = _register("responses_used", sp.Function("N"), "responses")
J_of_N = _register("score", sp.Function("J"), "score")

# -- gradients ------------------------------------------------------------------------------------------
n = _quantity("count", "n", "1", integer=True, positive=True)
B = _quantity("train_batch", "B")
B_0 = _quantity("reference_batch", "B_0", "responses")
B_small = _quantity("chunk", "b'", "responses")
B_noise = _quantity("noise_scale", r"B_\mathrm{noise}")
b = _quantity("relative_batch", "b", "1")
z = _quantity("inverse_batch", "z", "1")
G_i = _quantity("gradient", "G", "score/parameter")
sigma = _quantity("deviation", r"\sigma", "score/parameter*responses**0.5")
g = _quantity("sample_gradient", "g", "score/parameter", real=True)
G_square = _quantity("signal_square", r"\lvert G\rvert^2", "score**2/parameter**2")
trace = _quantity("noise_trace", r"\mathrm{tr}\Sigma", "score**2/parameter**2*responses")
s_chunk = _quantity("sq_norm_chunk", "s_{b'}", "score**2/parameter**2")
s_batch = _quantity("sq_norm_batch", "s_B", "score**2/parameter**2")
s_response = _quantity("sq_norm_response", "s_1", "score**2/parameter**2")
s_group = _quantity("sq_norm_group", "s_G", "score**2/parameter**2")
P = _quantity("prompts", "P")
G_size = _quantity("group_size", "G_s")
V_prompt = _quantity("prompt_variance", r"V_\mathrm{prompt}", "score**2/parameter**2*prompts")
V_response = _quantity("response_variance", r"V_\mathrm{resp}", "score**2/parameter**2*responses")
mean_norm = _quantity("mean_norm", "m", "score/parameter")
variation = _quantity("variation", r"\nu", "1")
norm_square = _quantity("norm_square", r"\langle \lvert g\rvert^2\rangle", "score**2/parameter**2")
beta = _quantity("beta1", r"\beta", "1")
beta_0 = _quantity("reference_beta", r"\beta_0", "1")
K_right = _quantity("right", "K", "1")
G_count = _quantity("group_count", "G_s", "1", integer=True, positive=True)
mu_right = _quantity("right_score", r"\mu_1", "score/parameter", real=True)
mu_wrong = _quantity("wrong_score", r"\mu_0", "score/parameter", real=True)

# -- progress -------------------------------------------------------------------------------------------
eta = _quantity("learning_rate", r"\eta", "parameter")
eta_sgd = _quantity("learning_rate_sgd", r"\eta_\mathrm{SGD}", "parameter**2/score")
h = _quantity("curvature", "h", "score/parameter**2")
h_0 = _quantity("reference_curvature", "h_0", "score/parameter**2")
GHG = _quantity("signal_curvature", "G^{T}HG", "score**3/parameter**4")
HSigma = _quantity("noise_curvature", r"\mathrm{tr}H\Sigma", "score**3/parameter**4*responses")
h_ratio = _quantity("curvature_ratio", r"h_\mathrm{ratio}")
A = _quantity("usable_slope", "A", "score/parameter")
A_0 = _quantity("reference_slope", "A_0", "score/parameter")
progress = _quantity("progress", r"\Delta", "score")
S_min = _quantity("updates_min", r"S_\mathrm{min}", "1")
E_min = _quantity("responses_min", r"E_\mathrm{min}", "responses")
k = _quantity("snr_shape", "k")
y = _quantity("snr", "y", "1")
s_node = _quantity("node", r"\zeta", "1")
u = _quantity("transform", "u", "1")
eps = _quantity("epsilon", r"\epsilon", "1")
x = _quantity("batch_ratio", "x", "1")
s = _quantity("learning_rate_ratio", "s")
c_0 = _quantity("lr_fraction", "c_0")
c = _quantity("relative_rate", "c", "1")
p = _quantity("penalty_shape", "p", "1", real=True, nonzero=True)
kept = _register("kept_progress", sp.Function("g", positive=True), "1")
kappa = _quantity("loss_per_rate", r"\kappa", "1")
rk = _quantity("slope_ratio", "r_k", "1")
hr = _quantity("cost_ratio", "h_r", "1")
shift = _quantity("shift", r"\delta", "parameter")
spread = _quantity("spread", "v", "parameter")
kl_max = _quantity("kl_max", r"\mathrm{KL}_\mathrm{max}", "1")
kl_reference = _quantity("kl_reference", r"\mathrm{KL}_0", "1")
decay = _quantity("decay", r"\lambda", "1/responses")

# -- time over the batch --------------------------------------------------------------------------------
R = _quantity("rollout_batch", "R")
tau_0 = _quantity("update_time_intercept", r"\tau_0")
tau_1 = _quantity("update_time_slope", r"\tau_1")
a = _quantity("amortisation_batch", "a", "responses")
q_max = _quantity("throughput_max", r"q_\mathrm{max}")
factor = _quantity("factor", r"\phi", "1")
root_ratio = _quantity("root_ratio", r"\omega", "1")
tolerance = _quantity("tolerance", r"\varepsilon", "1")
d_0 = _quantity("gen_time_intercept", "d_0")
d_1 = _quantity("gen_time_slope", "d_1")
B_gen = _quantity("gen_batch", r"B_\mathrm{gen}")
C = _quantity("concurrency_max", "C")
q_gen = _quantity("gen_throughput_max", r"q_\mathrm{gen}")
share = _quantity("plateau_share", r"\theta", "1")

# -- the machine ----------------------------------------------------------------------------------------
rows = _quantity("rows", "n", "1")
width = _quantity("weights", "m_w", "1")
w_bytes = _quantity("bytes_per_weight", "w", "B")
BW = _quantity("memory_bandwidth", r"\mathrm{BW}", "B/s")
F = _quantity("peak_flops", "F", "FLOP/s")
FLOP = _quantity("flop", r"\mathrm{\,FLOP}", "FLOP")
E_experts = _quantity("experts", "E", "1")
k_experts = _quantity("per_token", r"k_E", "1")
U_of_n = _register("touched", sp.Function("U"), "1")
tokens = _quantity("tokens", "n", "1", integer=True, nonnegative=True)
memory = _quantity("memory", "M_g", "B")
memory_share = _quantity("memory_share", r"\mu", "1")
tp = _quantity("tensor_parallel", r"\mathrm{TP}", "1")
replicas = _quantity("replicas", "D", "1")
weight_bytes = _quantity("weight_bytes", "W", "B")
kv_bytes = _quantity("kv_bytes_per_token", r"\kappa_\mathrm{KV}", "B/token/response")
context = _quantity("context_length", "L")
prompt_tokens = _quantity("prompt_tokens", r"L_p", "tokens")
response_tokens = _quantity("response_tokens", r"L_r", "tokens")
written = _quantity("written_tokens", r"\ell", "tokens")
mean_response = _quantity("mean_response", r"\langle L_r\rangle", "tokens")
square_response = _quantity("square_response", r"\langle L_r^2\rangle", "tokens**2")
t_n = _quantity("decode_step_time", "t_n")
t_context = _quantity("context_time", r"\kappa_t", "s/token")
one_token = _quantity("one_token", "1_t", "tokens")
context_sum = _quantity("context_sum", r"\Sigma_c", "tokens")
steps = _quantity("decode_steps", "m", "1", integer=True, positive=True)
j = _quantity("index", "j", "1", integer=True, nonnegative=True)
in_flight = _quantity("in_flight", r"\ell_f", "responses")
horizon = _quantity("horizon", r"\Theta", "s")
sojourn = _quantity("sojourn", r"W_t", "s")
rate = _quantity("arrival_rate", r"\lambda_r", "responses/s")
t_update = _quantity("update_time", r"t_u")
M = _quantity("updates_per_rollout", "M", "1", integer=True, positive=True)

# -- mechanisms -----------------------------------------------------------------------------------------
distance = _register("distance", sp.Function("d"), "score")
start = _quantity("start", r"d_s", "score")
target = _quantity("target_distance", r"d_*", "score")
floor = _quantity("floor", r"F_n", "score")
floor_0 = _quantity("reference_floor", r"F_{n0}", "score")
speed = _quantity("speed", r"\gamma_d", "1/s")
updates = _quantity("updates", "S", "1")
updates_0 = _quantity("reference_updates", "S_0", "1")
loss = _quantity("loss", "a_m", "1")
penalty_share = _quantity("share", r"\chi", "1")
penalty_share_0 = _quantity("reference_share", r"\chi_0", "1")
