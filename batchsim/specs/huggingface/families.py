r"""Families with experts, latents or recurrences, and the table of all families.

Left out everywhere: vision and audio towers, and the layers that only predict further tokens (MTP), which
plain decoding does not read.

To add a family: write a function from `Config` to `Builder`, name it in `FAMILIES`, and test its total
against a published number.

References
----------
.. [1] Hugging Face, transformers, src/transformers/models/*/modeling_*.py (shapes, key names, defaults).
.. [2] vLLM, vllm/model_executor/models/*.py (which projections are read as one matrix).
"""

from __future__ import annotations

from collections.abc import Callable

from batchsim.specs.huggingface import dense
from batchsim.specs.huggingface.blocks import (
    QKNorm,
    delta_net,
    gated_mlp,
    grouped_query,
    heads_of,
    latent,
    mamba2,
    plain_mlp,
    routed,
)
from batchsim.specs.huggingface.builder import Builder, Layers, layers_of
from batchsim.specs.huggingface.config import LARGEST, Config
from batchsim.specs.huggingface.dense import (
    CHUNKED,
    FULL,
    LINEAR,
    NAMES,
    SLIDING,
    alternating,
    frame,
    qwen_kinds,
    windowed,
)


def _sparse_layers(c: Config, layers: int) -> tuple[Layers, Layers]:
    """MoE and dense layers under Qwen's keys."""
    step = c.size("decoder_sparse_step", 1)
    dense = c.indices("mlp_only_layers", layers) if c.has("mlp_only_layers") else ()
    moe = tuple(i for i in range(layers) if i not in dense and (i + 1) % step == 0)
    return moe, tuple(i for i in range(layers) if i not in set(moe))


def _qwen_experts(b: Builder, c: Config, *, shared: bool) -> None:
    moe, dense = _sparse_layers(c, b.layers)
    if dense:
        gated_mlp(b, dense, c.size("intermediate_size"), name="dense_")
    routed(
        b,
        c,
        moe,
        width=c.size("moe_intermediate_size"),
        experts=c.size("num_experts"),
        per_token=c.size("num_experts_per_tok"),
    )
    if shared:
        gated_mlp(b, moe, c.size("shared_expert_intermediate_size"), name="shared_", prefix="mlp.shared_expert.")
        gate = {"mlp.shared_expert_gate": 1}
        b.linear("shared_gate", moe, b.hidden, gate, sharding="replicated", kept=True)


def _qwen3_moe(c: Config) -> Builder:
    b, bias = frame(c, tied=False), c.flag("attention_bias", False)
    windowed(b, c, (FULL,) * b.layers, qkv_bias=bias, out_bias=bias, qk_norm="head")
    _qwen_experts(b, c, shared=False)
    return b


def _qwen2_moe(c: Config) -> Builder:
    b = frame(c, tied=False)
    windowed(b, c, qwen_kinds(c, b.layers), qkv_bias=c.flag("qkv_bias", True))
    _qwen_experts(b, c, shared=True)
    return b


def _qwen_hybrid(c: Config, *, split: bool) -> Builder:
    """Three gated delta nets to one gated full attention."""
    b, bias = frame(c, tied=False), c.flag("attention_bias", False)
    period = c.size("full_attention_interval", 4)
    pattern = [FULL if (i + 1) % period == 0 else LINEAR for i in range(b.layers)]
    kinds = c.kinds(b.layers, (FULL, LINEAR), pattern)
    gated = c.flag("attn_output_gate", True)
    full = layers_of(kinds, FULL)
    # Class defaults: head_dim 256.
    heads = heads_of(c, head_dim=256)
    grouped_query(b, full, heads, qkv_bias=bias, out_bias=bias, qk_norm="head", gated=gated)
    delta_net(b, c, layers_of(kinds, LINEAR), split=split)
    return b


def _qwen3_next(c: Config) -> Builder:
    b = _qwen_hybrid(c, split=False)
    _qwen_experts(b, c, shared=True)
    return b


def _qwen3_5(c: Config) -> Builder:
    b = _qwen_hybrid(c, split=True)
    gated_mlp(b, b.all_layers, c.size("intermediate_size"))
    return b


def _qwen3_5_moe(c: Config) -> Builder:
    b = _qwen_hybrid(c, split=True)
    _qwen_experts(b, c, shared=True)
    return b


def _mixtral(c: Config) -> Builder:
    b, window = frame(c, tied=False), c.size("sliding_window") if c.has("sliding_window") else None
    grouped_query(b, b.all_layers, heads_of(c, kv=8), name="full" if window is None else "sliding", window=window)
    routed(
        b,
        c,
        b.all_layers,
        width=c.size("intermediate_size"),
        experts=c.size("num_local_experts"),
        per_token=c.size("num_experts_per_tok"),
        prefix="block_sparse_moe.",
        modules=("w1", "w3", "w2"),
    )
    return b


def _minimax_m2(c: Config) -> Builder:
    b = frame(c, tied=False)
    norm: QKNorm = "full" if c.flag("use_qk_norm", True) else "none"
    grouped_query(b, b.all_layers, heads_of(c), qk_norm=norm)
    c.refuse("shared_intermediate_size", "a shared expert of minimax_m2")
    routed(
        b,
        c,
        b.all_layers,
        width=c.size("intermediate_size"),
        experts=c.size("num_local_experts"),
        per_token=c.size("num_experts_per_tok"),
        prefix="block_sparse_moe.",
        modules=("w1", "w3", "w2"),
        correction=c.flag("use_routing_bias", True),
    )
    return b


def _olmoe(c: Config) -> Builder:
    b, bias = frame(c, tied=False), c.flag("attention_bias", False)
    windowed(b, c, (FULL,) * b.layers, kv=0, qkv_bias=bias, out_bias=bias, qk_norm="full")
    routed(
        b,
        c,
        b.all_layers,
        width=c.size("intermediate_size"),
        experts=c.size("num_experts"),
        per_token=c.size("num_experts_per_tok"),
    )
    return b


def _gpt_oss(c: Config) -> Builder:
    b, bias = frame(c, tied=False), c.flag("attention_bias", True)
    # GptOssConfig: every other layer slides, the first one does.
    kinds = c.kinds(b.layers, (FULL, SLIDING), alternating(b.layers, 2))
    windowed(b, c, kinds, qkv_bias=bias, out_bias=bias)
    # One sink per query head.
    b.norms(b.all_layers, c.size("num_attention_heads"))
    routed(
        b,
        c,
        b.all_layers,
        width=c.size("intermediate_size"),
        experts=c.size("num_local_experts"),
        per_token=c.size("num_experts_per_tok"),
        router="router",
        router_bias=True,
        bias=True,
    )
    return b


def _llama4(c: Config) -> Builder:
    b, bias = frame(c, tied=False), c.flag("attention_bias", False)
    # Llama4TextConfig: every fourth layer has no rotary embedding and attends in full.
    period = c.size("no_rope_layer_interval", 4)
    chunked = [(i + 1) % period != 0 for i in range(b.layers)]
    if c.values.get("no_rope_layers"):
        chunked = [bool(i) for i in c.sizes("no_rope_layers", b.layers)]
    kinds = c.kinds(b.layers, (FULL, CHUNKED), [CHUNKED if is_chunked else FULL for is_chunked in chunked])
    heads = heads_of(c, kv=0, head_dim=128)
    for kind in (CHUNKED, FULL):
        window = c.size("attention_chunk_size", 8192) if kind == CHUNKED else None
        # Its query and key norms have no weights.
        layers = layers_of(kinds, kind)
        grouped_query(b, layers, heads, name=NAMES[kind], window=window, qkv_bias=bias, out_bias=bias)
    step = c.size("interleave_moe_layer_step", 1)
    moe = tuple(range(step - 1, b.layers, step))
    if c.has("moe_layers"):
        moe = c.indices("moe_layers", b.layers)
    dense = tuple(i for i in b.all_layers if i not in set(moe))
    if dense:
        gated_mlp(b, dense, c.size("intermediate_size_mlp"), name="dense_", prefix="feed_forward.")
    width = c.size("intermediate_size")
    experts, chosen = c.size("num_local_experts"), c.size("num_experts_per_tok")
    routed(b, c, moe, width=width, experts=experts, per_token=chosen, prefix="feed_forward.", router="router")
    gated_mlp(b, moe, width, name="shared_", prefix="feed_forward.shared_expert.")
    return b


def _deepseek_experts(b: Builder, c: Config, *, correction: bool) -> None:
    """Dense first layers, then routed experts beside shared ones of the same width."""
    if c.size("moe_layer_freq", 1) != 1:
        raise c.fail(f"moe_layer_freq = {c.values['moe_layer_freq']} is not modelled", "published models have 1")
    first = min(c.size("first_k_dense_replace", least=0), b.layers)
    dense, moe = b.all_layers[:first], b.all_layers[first:]
    if dense:
        gated_mlp(b, dense, c.size("intermediate_size"), name="dense_")
    width = c.size("moe_intermediate_size")
    routed(
        b,
        c,
        moe,
        width=width,
        experts=c.size("n_routed_experts"),
        per_token=c.size("num_experts_per_tok"),
        correction=correction,
    )
    shared = c.size("n_shared_experts", 0, least=0)
    if shared:
        gated_mlp(b, moe, shared * width, name="shared_", prefix="mlp.shared_experts.")


def _deepseek(c: Config) -> Builder:
    b = frame(c, tied=False)
    latent(b, c)
    default = "greedy" if c.family == "deepseek_v2" else "noaux_tc"
    _deepseek_experts(b, c, correction=c.values.get("topk_method", default) == "noaux_tc")
    return b


def _deepseek_sparse(c: Config) -> Builder:
    b = frame(c, tied=False)
    latent(b, c, indexed=_indexed(c, b), sparse=True)
    _deepseek_experts(b, c, correction=True)
    return b


def _indexed(c: Config, b: Builder) -> Layers:
    """Layers with an indexer of their own; the others reuse the choice of the layer before (GlmMoeDsaConfig)."""
    if c.has("indexer_types"):
        kinds = c.items("indexer_types", b.layers)
        return tuple(i for i, kind in enumerate(kinds) if kind == "full")
    if c.has("index_topk_pattern"):
        raise c.fail("index_topk_pattern is not modelled", "give indexer_types, one of full and shared per layer")
    period, offset = c.size("index_topk_freq", 1), c.size("index_skip_topk_offset", 2, least=0)
    return tuple(i for i in b.all_layers if max(i - offset + 1, 0) % period == 0)


def _glm4_moe(c: Config) -> Builder:
    b, bias = frame(c, tied=False), c.flag("attention_bias", False)
    norm: QKNorm = "head" if c.flag("use_qk_norm", False) else "none"
    # The output projection has no bias.
    grouped_query(b, b.all_layers, heads_of(c), qkv_bias=bias, qk_norm=norm)
    _deepseek_experts(b, c, correction=True)
    return b


def _mimo_v2(c: Config) -> Builder:
    b, bias = frame(c, tied=False), c.flag("attention_bias", False)
    slides, sparse = c.sizes("hybrid_layer_pattern", b.layers), c.sizes("moe_layer_freq", b.layers)
    for kind, prefix, sinks in ((0, "", "add_full_attention_sink_bias"), (1, "swa_", "add_swa_attention_sink_bias")):
        layers = tuple(i for i in b.all_layers if slides[i] == kind)
        if not layers:
            continue
        heads = heads_of(c, prefix=prefix)
        name, window = ("sliding", c.size("sliding_window")) if kind else ("full", None)
        grouped_query(b, layers, heads, name=name, window=window, qkv_bias=bias)
        b.norms(layers, heads.query if c.flag(sinks, False) else 0)
    dense, moe = tuple(i for i in b.all_layers if not sparse[i]), tuple(i for i in b.all_layers if sparse[i])
    if dense:
        gated_mlp(b, dense, c.size("intermediate_size"), name="dense_")
    c.refuse("n_shared_experts", "a shared expert of mimo_v2_flash")
    routed(
        b,
        c,
        moe,
        width=c.size("moe_intermediate_size"),
        experts=c.size("n_routed_experts"),
        per_token=c.size("num_experts_per_tok"),
        correction=True,
    )
    return b


PATTERN = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
LEGACY = {"linear_attention": "mamba", "full_attention": "attention"}


def _nemotron_kinds(c: Config) -> tuple[str, ...]:
    """One mixer per layer, from a pattern such as 'MEM*' or a list."""
    pattern = c.values.get("hybrid_override_pattern")
    given = c.values.get("layers_block_type") or c.values.get("layer_types")
    if isinstance(given, list):
        kinds = [LEGACY.get(str(k), str(k)) for k in given]
    elif isinstance(pattern, str):
        kinds = [PATTERN.get(k, k) for k in pattern]
    else:
        raise c.fail("'hybrid_override_pattern' is absent, and nemotron_h has no layers without it", "add it")
    unknown = sorted(set(kinds) - set(PATTERN.values()))
    if unknown:
        known = ", ".join(f"'{letter}' ({kind})" for letter, kind in PATTERN.items())
        raise c.fail(f"nemotron_h has no layer '{unknown[0]}'", f"known: {known}")
    if not 1 <= len(kinds) <= LARGEST["num_hidden_layers"]:
        raise c.fail(f"a pattern of {len(kinds)} layers is none of a model", "correct hybrid_override_pattern")
    if c.has("num_hidden_layers") and c.size("num_hidden_layers") != len(kinds):
        raise c.fail(
            f"num_hidden_layers = {c.size('num_hidden_layers')} but the pattern has {len(kinds)} layers", "correct one"
        )
    return tuple(kinds)


def _nemotron_h(c: Config) -> Builder:
    kinds = _nemotron_kinds(c)
    b, bias = frame(c, tied=False, norms=1, layers=len(kinds)), c.flag("mlp_bias", False)
    attending = layers_of(kinds, "attention")
    if attending:
        # Older configurations call it attention_head_dim.
        head_dim = c.size("attention_head_dim") if c.has("attention_head_dim") else None
        heads, qkv = heads_of(c, head_dim=head_dim), c.flag("attention_bias", False)
        grouped_query(b, attending, heads, qkv_bias=qkv, out_bias=qkv, prefix="mixer.")
    mamba = layers_of(kinds, "mamba")
    if mamba:
        mamba2(b, c, mamba)
    mlp = layers_of(kinds, "mlp")
    if mlp:
        plain_mlp(b, mlp, c.size("intermediate_size"), prefix="mixer.", bias=bias)
    moe = layers_of(kinds, "moe")
    if moe:
        _nemotron_experts(b, c, moe, bias)
    return b


def _nemotron_experts(b: Builder, c: Config, moe: Layers, bias: bool) -> None:
    """Experts without a gate, in Nemotron 3 Super behind a projection to a narrower latent."""
    narrow = c.size("moe_latent_size") if c.has("moe_latent_size") else None
    if narrow:
        b.linear("expert_latent_down", moe, b.hidden, {"mixer.fc1_latent_proj": narrow}, bias=bias)
        b.linear("expert_latent_up", moe, narrow, {"mixer.fc2_latent_proj": b.hidden}, sharding="row", bias=bias)
    routed(
        b,
        c,
        moe,
        width=c.size("moe_intermediate_size"),
        experts=c.size("n_routed_experts"),
        per_token=c.size("num_experts_per_tok"),
        prefix="mixer.",
        modules=("up_proj", "down_proj"),
        correction=True,
        latent_width=narrow,
    )
    shared = c.size("moe_shared_expert_intermediate_size")
    plain_mlp(b, moe, shared, name="shared_", prefix="mixer.shared_experts.", bias=bias)


FAMILIES: dict[str, Callable[[Config], Builder]] = {
    "llama": dense.llama,
    "smollm3": dense.smollm3,
    "mistral": dense.mistral,
    "qwen2": dense.qwen2,
    "qwen2_5_vl": dense.qwen2,
    "qwen2_5_vl_text": dense.qwen2,
    "qwen3": dense.qwen3,
    "qwen3_vl_text": dense.qwen3,
    "olmo2": dense.olmo2,
    "olmo3": dense.olmo3,
    "phi3": dense.phi3,
    "gemma": dense.gemma,
    "gemma2": dense.gemma2,
    "gemma3_text": dense.gemma3,
    "gemma4_text": dense.gemma4,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "qwen3_vl_moe_text": _qwen3_moe,
    "qwen3_next": _qwen3_next,
    "qwen3_5_text": _qwen3_5,
    "qwen3_5_moe_text": _qwen3_5_moe,
    "mixtral": _mixtral,
    "minimax_m2": _minimax_m2,
    "olmoe": _olmoe,
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "deepseek_v32": _deepseek_sparse,
    "glm_moe_dsa": _deepseek_sparse,
    "glm4_moe": _glm4_moe,
    "mimo_v2_flash": _mimo_v2,
    "nemotron_h": _nemotron_h,
}
"""Builder by `model_type`."""
