r"""The blocks that decoders are made of: attention, MLP, experts, recurrences.

Grouped-query attention keeps 2 kv_heads head_dim numbers per token and layer, and a query token spends
2 heads (key + value width) FLOPs per token of context. MLA keeps one latent of kv_lora_rank + rope numbers
for all heads; decoding runs it absorbed, each head attending with the latent itself as key (with rope) and
value, hence 2 heads ((kv_lora_rank + rope) + kv_lora_rank). An indexer scores all of the context with
index_n_heads small heads and passes index_topk tokens on.

A gated delta net holds, per value head, a key x value matrix S that decays, is corrected towards (k, v) and
is read by q: 7 key value FLOPs per token (decay 1, S^T k 2, outer product 2, S^T q 2). Mamba-2 holds a
head_dim x state matrix: 5 per entry (decay 1, input 2, read 2). Both convolve their inputs over `kernel`
tokens first, of which kernel - 1 are kept.

References
----------
.. [1] Ainslie et al. 2023, arXiv:2305.13245 (GQA).
.. [2] DeepSeek-AI 2024, arXiv:2405.04434, eqs. 9-19 (MLA and its absorption); DeepSeek-V3.2, eq. 1 (indexer).
.. [3] Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464, eq. 10 (gated delta rule).
.. [4] Dao, Gu 2024, arXiv:2405.21060 (Mamba-2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from batchsim.specs.architecture import Attention, State
from batchsim.specs.huggingface.builder import Builder, Layers
from batchsim.specs.huggingface.config import Config

QKNorm = Literal["none", "head", "full"]
"""Norms of queries and keys: none, one weight vector per head width, or one over all heads."""
GATED = ("gate_proj", "up_proj", "down_proj")
STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Shape of grouped-query attention.

    Parameters
    ----------
    query, kv : int
    key_width, value_width : int
        Per head.
    """

    query: int
    kv: int
    key_width: int
    value_width: int


def heads_of(c: Config, *, kv: int | None = None, head_dim: int | None = None, prefix: str = "") -> Heads:
    """Heads under the usual keys.

    Parameters
    ----------
    c : Config
    kv : int or None
        Default of `num_key_value_heads`; required if None, equal to the query heads if 0.
    head_dim : int or None
        Default of `head_dim`; hidden_size / num_attention_heads if None.
    prefix : str
        Of the keys, as 'swa_'.

    Raises
    ------
    InputError
        If the heads do not divide.
    """
    query = c.size(f"{prefix}num_attention_heads")
    shared = c.size(f"{prefix}num_key_value_heads", query if kv == 0 else kv)
    c.divides(shared, query, f"{prefix}num_key_value_heads = {{part}} and {prefix}num_attention_heads = {{whole}}")
    width = head_dim
    if not c.has(f"{prefix}head_dim") and head_dim is None:
        hidden = c.size("hidden_size")
        c.divides(query, hidden, "num_attention_heads = {part} and hidden_size = {whole}, without a head_dim")
        width = hidden // query
    width = c.size(f"{prefix}head_dim", width)
    return Heads(query=query, kv=shared, key_width=width, value_width=c.size(f"{prefix}v_head_dim", width))


def attention_cache(name: str, count: int, heads: Heads, window: int | None = None) -> Attention:
    """Layers that keep keys and values."""
    return Attention(
        name=name,
        count=count,
        heads=heads.query,
        kv_heads=heads.kv,
        cache_elements=heads.kv * (heads.key_width + heads.value_width),
        context_flops=2.0 * heads.query * (heads.key_width + heads.value_width),
        window=window,
    )


def grouped_query(
    b: Builder,
    layers: Layers,
    heads: Heads,
    *,
    name: str = "full",
    window: int | None = None,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: QKNorm = "none",
    gated: bool = False,
    values_are_keys: bool = False,
    prefix: str = "self_attn.",
    fused: bool = False,
) -> None:
    """Add attention layers; `gated` ones project a gate as wide as their queries beside these.

    `fused` where the checkpoint stores the three as one; `values_are_keys` where values have no projection.
    """
    query, key = heads.query * heads.key_width, heads.kv * heads.key_width
    outputs = {f"{prefix}q_proj": query * (2 if gated else 1), f"{prefix}k_proj": key}
    if not values_are_keys:
        outputs[f"{prefix}v_proj"] = heads.kv * heads.value_width
    if fused:
        outputs = {f"{prefix}qkv_proj": sum(outputs.values())}
    b.linear("qkv", layers, b.hidden, outputs, bias=qkv_bias)
    read = heads.query * heads.value_width
    b.linear("attention_out", layers, read, {f"{prefix}o_proj": b.hidden}, sharding="row", bias=out_bias)
    if qk_norm == "head":
        b.norms(layers, heads.key_width, heads.key_width)
    elif qk_norm == "full":
        b.norms(layers, query, key)
    b.attend(attention_cache(name, len(layers), heads, window))


def latent(b: Builder, c: Config, *, indexed: Layers = (), sparse: bool = False) -> None:
    """Add multi-head latent attention to all layers, with an indexer in some.

    Projections down to a latent are whole on every GPU under tensor parallelism; what leaves the latent is
    split by heads.
    """
    heads, rank = c.size("num_attention_heads"), c.size("kv_lora_rank")
    nope, rope, value = c.size("qk_nope_head_dim"), c.size("qk_rope_head_dim"), c.size("v_head_dim")
    bias = c.flag("attention_bias", False)
    layers, queries = b.all_layers, heads * (nope + rope)
    down = {"self_attn.kv_a_proj_with_mqa": rank + rope}
    q_rank = c.size("q_lora_rank") if c.has("q_lora_rank") else 0
    if q_rank:
        down = {"self_attn.q_a_proj": q_rank, **down}
        b.linear("query_up", layers, q_rank, {"self_attn.q_b_proj": queries})
        b.norms(layers, q_rank)
    else:
        b.linear("query", layers, b.hidden, {"self_attn.q_proj": queries})
    b.linear("latent_down", layers, b.hidden, down, sharding="replicated", bias=bias)
    b.linear("latent_up", layers, rank, {"self_attn.kv_b_proj": heads * (nope + value)})
    b.linear("attention_out", layers, heads * value, {"self_attn.o_proj": b.hidden}, sharding="row", bias=bias)
    b.norms(layers, rank)
    if indexed:
        _indexer(b, c, indexed, q_rank)
    for some in (indexed, tuple(i for i in layers if i not in set(indexed))):
        scores = c.size("index_head_dim") if some is indexed and indexed else 0
        b.attend(
            Attention(
                name="sparse latent" if sparse else "latent",
                count=len(some),
                heads=heads,
                kv_heads=1,
                cache_elements=rank + rope,
                context_flops=2.0 * heads * ((rank + rope) + rank),
                prefill_flops=2.0 * heads * ((nope + rope) + value),
                window=c.size("index_topk") if sparse else None,
                keeps_window=not sparse,
                latent=True,
                index_elements=scores,
                index_flops=2.0 * c.size("index_n_heads") * scores if scores else 0.0,
            )
        )


def _indexer(b: Builder, c: Config, layers: Layers, q_rank: int) -> None:
    """Queries from the compressed query, one key per token, one weight per head; whole on every GPU."""
    heads, width = c.size("index_n_heads"), c.size("index_head_dim")
    if not q_rank:
        raise c.fail("an indexer reads the compressed query, and q_lora_rank is absent", "add q_lora_rank")
    prefix = "self_attn.indexer."
    b.linear("index_query", layers, q_rank, {f"{prefix}wq_b": heads * width}, sharding="replicated")
    b.linear("index_key", layers, b.hidden, {f"{prefix}wk": width}, sharding="replicated")
    b.linear("index_weights", layers, b.hidden, {f"{prefix}weights_proj": heads}, sharding="replicated", kept=True)
    # A LayerNorm, with a bias unlike RMSNorm.
    b.norms(layers, 2 * width)


def gated_mlp(
    b: Builder,
    layers: Layers,
    width: int,
    *,
    name: str = "",
    prefix: str = "mlp.",
    fused: bool = False,
    bias: bool = False,
) -> None:
    """Add the three matrices of SwiGLU or GeGLU; `fused` where the checkpoint stores gate and up as one."""
    gate, up, down = (f"{prefix}{m}" for m in GATED)
    outputs = {f"{prefix}gate_up_proj": 2 * width} if fused else {gate: width, up: width}
    b.linear(f"{name}gate_up", layers, b.hidden, outputs, bias=bias)
    b.linear(f"{name}down", layers, width, {down: b.hidden}, sharding="row", bias=bias)


def plain_mlp(b: Builder, layers: Layers, width: int, *, name: str = "", prefix: str, bias: bool) -> None:
    """Add the two matrices of an MLP without a gate."""
    b.linear(f"{name}up", layers, b.hidden, {f"{prefix}up_proj": width}, bias=bias)
    b.linear(f"{name}down", layers, width, {f"{prefix}down_proj": b.hidden}, sharding="row", bias=bias)


def routed(
    b: Builder,
    c: Config,
    layers: Layers,
    *,
    width: int,
    experts: int,
    per_token: int,
    prefix: str = "mlp.",
    router: str = "gate",
    modules: Sequence[str] = GATED,
    router_bias: bool = False,
    correction: bool = False,
    bias: bool = False,
    latent_width: int | None = None,
) -> None:
    """Add a router and its experts; two module names make experts without a gate.

    `correction` is a bias per expert that balances the choice of experts; it counts as a vector.
    """
    if not 1 <= per_token <= experts:
        raise c.fail(f"{per_token} experts per token of {experts}", "correct the number of experts")
    b.linear(
        "router", layers, b.hidden, {f"{prefix}{router}": experts}, sharding="replicated", bias=router_bias, kept=True
    )
    b.norms(layers, experts if correction else 0)
    b.routing = (experts, per_token)
    inputs = latent_width or b.hidden
    up, down = [f"{prefix}experts.0.{m}" for m in modules[:-1]], f"{prefix}experts.0.{modules[-1]}"
    b.expert(
        "gate_up" if len(up) == 2 else "up", layers, inputs, dict.fromkeys(up, width), sharding="column", bias=bias
    )
    b.expert("down", layers, width, {down: inputs}, sharding="row", bias=bias)


def delta_net(b: Builder, c: Config, layers: Layers, *, split: bool) -> None:
    """Add gated delta nets; `split` where the checkpoint stores q, k, v apart from the output gate z."""
    key_heads, value_heads = c.size("linear_num_key_heads"), c.size("linear_num_value_heads")
    c.divides(key_heads, value_heads, "linear_num_key_heads = {part} and linear_num_value_heads = {whole}")
    key_width, value_width = c.size("linear_key_head_dim"), c.size("linear_value_head_dim")
    kernel = c.size("linear_conv_kernel_dim")
    keys, values = key_heads * key_width, value_heads * value_width
    convolved = 2 * keys + values
    p = "linear_attn."
    wide = (
        {f"{p}in_proj_qkv": convolved, f"{p}in_proj_z": values} if split else {f"{p}in_proj_qkvz": convolved + values}
    )
    narrow = {f"{p}in_proj_b": value_heads, f"{p}in_proj_a": value_heads}
    b.linear("delta_in", layers, b.hidden, wide)
    b.linear("delta_gates", layers, b.hidden, narrow if split else {f"{p}in_proj_ba": 2 * value_heads}, kept=True)
    b.linear("delta_out", layers, values, {f"{p}out_proj": b.hidden}, sharding="row")
    # The convolution, the decay and its bias per head, and the norm before the output.
    b.norms(layers, kernel * convolved, 2 * value_heads, value_width)
    entries = value_heads * key_width * value_width
    b.states.append(
        State(
            name="gated delta net",
            count=len(layers),
            bytes=float(_state_bytes(c, "mamba_ssm_dtype") * entries + 2 * (kernel - 1) * convolved),
            flops=7.0 * entries + 2.0 * kernel * convolved,
        )
    )


def mamba2(b: Builder, c: Config, layers: Layers) -> None:
    """Add Mamba-2 mixers."""
    heads, width = c.size("mamba_num_heads"), c.size("mamba_head_dim")
    groups, state, kernel = c.size("n_groups"), c.size("ssm_state_size"), c.size("conv_kernel")
    c.divides(groups, heads, "n_groups = {part} and mamba_num_heads = {whole}")
    inner = heads * width
    convolved = inner + 2 * groups * state
    # Documented defaults of NemotronHConfig.
    bias, conv_bias = c.flag("use_bias", False), c.flag("use_conv_bias", True)
    b.linear("mamba_in", layers, b.hidden, {"mixer.in_proj": inner + convolved + heads}, bias=bias)
    b.linear("mamba_out", layers, inner, {"mixer.out_proj": b.hidden}, sharding="row", bias=bias)
    # Convolution; decay, skip and time step per head; gated norm.
    b.norms(layers, (kernel + conv_bias) * convolved, 3 * heads, inner)
    entries = inner * state
    b.states.append(
        State(
            name="mamba2",
            count=len(layers),
            bytes=float(_state_bytes(c, "mamba_ssm_cache_dtype") * entries + 2 * (kernel - 1) * convolved),
            flops=5.0 * entries + 2.0 * kernel * convolved,
        )
    )


def _state_bytes(c: Config, key: str) -> int:
    """Bytes of one entry of a recurrent state; engines keep it at the model's 16 bits unless the key says more."""
    value = c.values.get(key)
    if value is None:
        return 2
    if not isinstance(value, str) or value not in STATE_BYTES:
        raise c.fail(f"{key} = {value!r} is no known type", f"one of {', '.join(STATE_BYTES)}")
    return STATE_BYTES[value]
