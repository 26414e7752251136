r"""Dense families, and the frame and attention patterns that the others share.

Shapes follow the public modelling code of each family. A default stands here only where the configuration
class documents one; model cards rely on it by leaving the key out. Families differ in little: which
projections have a bias, whether queries and keys are normed per head or over all heads, how many norms a
layer has (two; four in gemma), whether the head is the embedding, and which layers slide:

    qwen      none, or all from max_window_layers on     gemma 2, gpt-oss    every other one
    olmo 3    three of four                              gemma 3, 4          five of six

References
----------
.. [1] Hugging Face, transformers, src/transformers/models/*/modeling_*.py (shapes, key names, defaults).
.. [2] vLLM, vllm/model_executor/models/*.py (which projections are read as one matrix).
"""

from __future__ import annotations

from batchsim.specs.huggingface.blocks import QKNorm, gated_mlp, grouped_query, heads_of, routed
from batchsim.specs.huggingface.builder import Builder, layers_of
from batchsim.specs.huggingface.config import Config

FULL, SLIDING, CHUNKED, LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
NAMES = {FULL: "full", SLIDING: "sliding", CHUNKED: "chunked"}


def frame(
    c: Config,
    *,
    tied: bool,
    norms: int = 2,
    layers: int | None = None,
    context: int | None = None,
    vocab: int | None = None,
) -> Builder:
    """Embedding, head, last norm, and `norms` vectors of the hidden size in every layer."""
    b = Builder(
        hidden=c.size("hidden_size"),
        layers=layers or c.size("num_hidden_layers"),
        vocab=c.size("vocab_size", vocab),
        context_max=c.size("max_position_embeddings", context),
        tied=c.flag("tie_word_embeddings", tied),
    )
    embedding, head = {"model.embed_tokens": b.hidden}, {"lm_head": b.vocab}
    b.linear("embedding", None, b.vocab, embedding, sharding="row", reading="lookup", kept=True)
    b.linear("head", None, b.hidden, head, reading="sequence", kept=True)
    b.vectors += b.hidden
    b.norms(b.all_layers, norms * b.hidden)
    return b


def alternating(layers: int, period: int) -> list[str]:
    """Every `period`-th layer attends in full, the others within a window."""
    return [FULL if (i + 1) % period == 0 else SLIDING for i in range(layers)]


def llama(c: Config, *, tied: bool = False) -> Builder:
    """Llama 2 to 3.3, and what took its shapes."""
    # Key-value heads default to the query heads, head_dim to hidden/heads (LlamaConfig).
    b, bias = frame(c, tied=tied), c.flag("attention_bias", False)
    grouped_query(b, b.all_layers, heads_of(c, kv=0), qkv_bias=bias, out_bias=bias)
    gated_mlp(b, b.all_layers, c.size("intermediate_size"), bias=c.flag("mlp_bias", False))
    return b


def smollm3(c: Config) -> Builder:
    """SmolLM3."""
    # SmolLM3Config ties by default; layers without rotary embedding have the same shapes.
    if c.flag("use_sliding_window", False):
        raise c.fail("use_sliding_window of smollm3 is not modelled", "set it to false, as the published models do")
    return llama(c, tied=True)


def mistral(c: Config) -> Builder:
    """Mistral 7B and its descendants."""
    b = frame(c, tied=False)
    # MistralConfig slides over 4096 tokens where the key is absent; null switches it off.
    window = c.size("sliding_window", 4096) if c.has("sliding_window") or "sliding_window" not in c.values else None
    heads = heads_of(c, kv=8)
    grouped_query(b, b.all_layers, heads, name="full" if window is None else "sliding", window=window)
    gated_mlp(b, b.all_layers, c.size("intermediate_size"))
    return b


def qwen_kinds(c: Config, layers: int) -> tuple[str, ...]:
    """Full attention unless `use_sliding_window`, then sliding from layer max_window_layers on."""
    default = [FULL] * layers
    if c.flag("use_sliding_window", False):
        first = c.size("max_window_layers", least=0)
        default = [SLIDING if i >= first else FULL for i in range(layers)]
    return c.kinds(layers, (FULL, SLIDING), default)


def qwen2(c: Config) -> Builder:
    """Qwen2 and 2.5: biased queries, keys and values."""
    b = frame(c, tied=False)
    windowed(b, c, qwen_kinds(c, b.layers), qkv_bias=True)
    gated_mlp(b, b.all_layers, c.size("intermediate_size"))
    return b


def qwen3(c: Config) -> Builder:
    """Qwen3: normed queries and keys, a head width of its own."""
    b, bias = frame(c, tied=False), c.flag("attention_bias", False)
    # Qwen3Config: head_dim 128, not hidden/heads.
    windowed(b, c, qwen_kinds(c, b.layers), qkv_bias=bias, out_bias=bias, qk_norm="head", head_dim=128)
    gated_mlp(b, b.all_layers, c.size("intermediate_size"))
    return b


def windowed(
    b: Builder,
    c: Config,
    kinds: tuple[str, ...],
    *,
    kv: int | None = None,
    head_dim: int | None = None,
    window: int | None = None,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: QKNorm = "none",
) -> None:
    """Equal heads in all layers, some of which slide over `sliding_window` tokens (default `window`)."""
    heads = heads_of(c, kv=kv, head_dim=head_dim)
    for kind in sorted(set(kinds)):
        grouped_query(
            b,
            layers_of(kinds, kind),
            heads,
            name=NAMES[kind],
            window=c.size("sliding_window", window) if kind == SLIDING else None,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            qk_norm=qk_norm,
        )


def olmo2(c: Config) -> Builder:
    """OLMo 2: norms over all heads."""
    b, bias = frame(c, tied=False), c.flag("attention_bias", False)
    windowed(b, c, (FULL,) * b.layers, kv=0, qkv_bias=bias, out_bias=bias, qk_norm="full")
    gated_mlp(b, b.all_layers, c.size("intermediate_size"))
    return b


def olmo3(c: Config) -> Builder:
    """OLMo 3: OLMo 2 with sliding layers."""
    b, bias = frame(c, tied=False), c.flag("attention_bias", False)
    # Olmo3Config: three of four layers slide over 4096 tokens.
    kinds = c.kinds(b.layers, (FULL, SLIDING), alternating(b.layers, 4))
    windowed(b, c, kinds, kv=0, window=4096, qkv_bias=bias, out_bias=bias, qk_norm="full")
    gated_mlp(b, b.all_layers, c.size("intermediate_size"))
    return b


def phi3(c: Config) -> Builder:
    """Phi-3 and phi-4: fused projections."""
    b, window = frame(c, tied=False), c.size("sliding_window") if c.has("sliding_window") else None
    heads = heads_of(c, kv=0)
    name = "full" if window is None else "sliding"
    grouped_query(b, b.all_layers, heads, name=name, window=window, fused=True)
    gated_mlp(b, b.all_layers, c.size("intermediate_size"), fused=True)
    return b


def gemma(c: Config) -> Builder:
    """Gemma."""
    # GemmaConfig ties, and its head_dim is 256.
    b, bias = frame(c, tied=True), c.flag("attention_bias", False)
    windowed(b, c, (FULL,) * b.layers, head_dim=256, qkv_bias=bias, out_bias=bias)
    gated_mlp(b, b.all_layers, c.size("intermediate_size"))
    return b


def gemma2(c: Config) -> Builder:
    """Gemma 2."""
    # Gemma2Config: every other layer slides over 4096 tokens, the first one does; four norms per layer.
    b, bias = frame(c, tied=True, norms=4, context=8192), c.flag("attention_bias", False)
    kinds = c.kinds(b.layers, (FULL, SLIDING), alternating(b.layers, 2))
    windowed(b, c, kinds, kv=4, head_dim=256, window=4096, qkv_bias=bias, out_bias=bias)
    gated_mlp(b, b.all_layers, c.size("intermediate_size"))
    return b


def gemma3(c: Config) -> Builder:
    """Gemma 3, text only."""
    # Gemma3TextConfig: the nested configuration of the 4b model omits heads and vocabulary, which are its defaults.
    b, bias = frame(c, tied=True, norms=4, context=131_072, vocab=262_208), c.flag("attention_bias", False)
    defaults = {"num_attention_heads": 8, **c.values}
    period = c.size("sliding_window_pattern", 6)
    kinds = c.kinds(b.layers, (FULL, SLIDING), alternating(b.layers, period))
    filled = Config(defaults, c.family, c.where)
    windowed(b, filled, kinds, kv=4, head_dim=256, window=4096, qkv_bias=bias, out_bias=bias, qk_norm="head")
    gated_mlp(b, b.all_layers, c.size("intermediate_size"))
    return b


def gemma4(c: Config) -> Builder:
    """Gemma 4, text only: full layers with wider heads, an MLP beside the experts."""
    moe = c.flag("enable_moe_block", False)
    # Shared caches are read by layers that store none, and per-layer embeddings need matrices of their own.
    c.refuse("num_kv_shared_layers", "layers that read the cache of another layer")
    if c.size("hidden_size_per_layer_input", 256, least=0):
        raise c.fail("hidden_size_per_layer_input (256 by default) is not modelled", "the larger gemma-4 have it at 0")
    # Four norms; three more beside the experts, whose router scales its input; one scalar per layer.
    b = frame(c, tied=True, norms=8 if moe else 4, context=131_072, vocab=262_144)
    b.norms(b.all_layers, 1)
    _gemma4_attention(b, c)
    gated_mlp(b, b.all_layers, c.size("intermediate_size"))
    if moe:
        routed(
            b,
            c,
            b.all_layers,
            width=c.size("moe_intermediate_size"),
            experts=c.size("num_experts"),
            per_token=c.size("top_k_experts"),
            prefix="",
            router="router.proj",
            # A scale per expert.
            correction=True,
        )
    return b


def _gemma4_attention(b: Builder, c: Config) -> None:
    """Sliding layers, and full ones of other heads whose values may be their keys, before norm and rotation."""
    kinds = list(c.kinds(b.layers, (FULL, SLIDING), alternating(b.layers, 6)))
    # Gemma4TextConfig makes the last layer a full one.
    kinds[-1] = FULL
    same, bias = c.flag("attention_k_eq_v", False), c.flag("attention_bias", False)
    wide = {**c.values, "head_dim": c.size("global_head_dim", 512)}
    if same and c.has("num_global_key_value_heads"):
        wide["num_key_value_heads"] = c.size("num_global_key_value_heads")
    local, whole = heads_of(c, kv=4, head_dim=256), heads_of(Config(wide, c.family, c.where), kv=4)
    for kind, heads in ((SLIDING, local), (FULL, whole)):
        grouped_query(
            b,
            layers_of(kinds, kind),
            heads,
            name=NAMES[kind],
            window=c.size("sliding_window", 512) if kind == SLIDING else None,
            qkv_bias=bias,
            out_bias=bias,
            qk_norm="head",
            values_are_keys=same and kind == FULL,
        )
