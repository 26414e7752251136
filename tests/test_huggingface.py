"""config.json as an architecture: families, defaults, quantisation, refusals; an independent twin of the counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.specs.architecture import Architecture, Matrix
from batchsim.specs.counts import (
    active_parameters,
    flops_per_token,
    kv_bytes_per_token,
    state_bytes,
    total_parameters,
    weight_bytes,
    window_bytes_per_sequence,
)
from batchsim.specs.huggingface import FAMILIES, quantised, read_architecture
from batchsim.specs.models import entries, find_model

Config = dict[str, Any]

LLAMA: Config = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}
MOE: Config = LLAMA | {
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "mlp_only_layers": [1],
}


def named(a: Architecture, name: str) -> list[Matrix]:
    return [m for m in a.matrices if m.name == name]


# -- independent twins: tensors as a checkpoint lists them, one by one -----------------------------


def llama_tensors(c: Config) -> list[int]:
    """Elements of every tensor of a Llama checkpoint."""
    h, heads, kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    d = c.get("head_dim", h // heads)
    tensors = [c["vocab_size"] * h, h]
    if not c.get("tie_word_embeddings", False):
        tensors.append(c["vocab_size"] * h)
    for _ in range(c["num_hidden_layers"]):
        tensors += [h * heads * d, h * kv * d, h * kv * d, heads * d * h, h, h]
        tensors += [h * c["intermediate_size"]] * 3
        if c.get("attention_bias", False):
            tensors += [heads * d, kv * d, kv * d, h]
        if c.get("mlp_bias", False):
            tensors += [c["intermediate_size"]] * 2 + [h]
    return tensors


def moe_tensors(c: Config) -> list[int]:
    """Elements of every tensor of a Qwen3-MoE checkpoint."""
    h, heads, kv, d = (c[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"))
    tensors = [c["vocab_size"] * h] * 2 + [h]
    for layer in range(c["num_hidden_layers"]):
        tensors += [h * heads * d, h * kv * d, h * kv * d, heads * d * h, h, h, d, d]
        if layer in c["mlp_only_layers"]:
            tensors += [h * c["intermediate_size"]] * 3
        else:
            tensors += [h * c["num_experts"]]
            for _ in range(c["num_experts"]):
                tensors += [h * c["moe_intermediate_size"]] * 3
    return tensors


@st.composite
def llamas(draw: st.DrawFn) -> Config:
    kv, group, d = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.integers(1, 40))
    config = LLAMA | {
        "num_attention_heads": kv * group,
        "num_key_value_heads": kv,
        "hidden_size": kv * group * d,
        "num_hidden_layers": draw(st.integers(1, 6)),
        "intermediate_size": draw(st.integers(1, 300)),
        "vocab_size": draw(st.integers(1, 5000)),
    }
    for key in ("tie_word_embeddings", "attention_bias", "mlp_bias"):
        if draw(st.booleans()):
            config[key] = draw(st.booleans())
    if draw(st.booleans()):
        config["head_dim"] = draw(st.integers(1, 64))
    return config


@given(llamas())
def test_total_of_any_llama_is_the_sum_of_its_tensors(config: Config) -> None:
    a = read_architecture(config)
    assert total_parameters(a) == sum(llama_tensors(config))
    assert weight_bytes(a) == 2 * total_parameters(a)
    d = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    assert kv_bytes_per_token(a) == config["num_hidden_layers"] * 2 * config["num_key_value_heads"] * d * 2


@given(
    st.integers(1, 12),
    st.integers(1, 5),
    st.sets(st.integers(0, 4)),
    st.integers(1, 64),
)
def test_total_of_any_moe_is_the_sum_of_its_tensors(experts: int, layers: int, dense: set[int], width: int) -> None:
    config = MOE | {
        "num_experts": experts,
        "num_experts_per_tok": 1 + experts // 3 if experts > 1 else 1,
        "num_hidden_layers": layers,
        "mlp_only_layers": sorted(i for i in dense if i < layers),
        "moe_intermediate_size": width,
    }
    a = read_architecture(config)
    assert total_parameters(a) == sum(moe_tensors(config))
    idle = experts - config["num_experts_per_tok"]
    read = total_parameters(a) - (layers - len(config["mlp_only_layers"])) * idle * 3 * 64 * width - 1000 * 64
    assert active_parameters(a) == read


# -- shapes computed by hand -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Llama-3.1-70B", 80 * 2 * 8 * 128 * 2),
        ("Qwen3-30B-A3B", 48 * 2 * 4 * 128 * 2),
        ("Qwen3-0.6B", 28 * 2 * 8 * 128 * 2),  # head_dim is 128, not 1024/16
        ("DeepSeek-V3", 61 * (512 + 64) * 2),
        ("DeepSeek-V3.2", 61 * (512 + 64 + 128) * 2),
        ("gpt-oss-120b", 18 * 2 * 8 * 64 * 2),
        ("MiMo-V2-Flash", 9 * 4 * (192 + 128) * 2),
        ("gemma-4-26B-A4B", 5 * 2 * 2 * 512 * 2),
        ("Llama-4-Scout-17B-16E-Instruct", 12 * 2 * 8 * 128 * 2),
        ("Qwen3.5-35B-A3B", 10 * 2 * 2 * 256 * 2),
        ("Nemotron-3-Nano-30B-A3B", 6 * 2 * 2 * 128 * 2),
        ("Mistral-7B-v0.1", 0),
    ],
)
def test_growing_cache_per_token(name: str, expected: int) -> None:
    assert kv_bytes_per_token(find_model(name)) == expected
    assert kv_bytes_per_token(find_model(name), cache_bits=8) == expected / 2


def test_known_cache_sizes() -> None:
    assert kv_bytes_per_token(find_model("Llama-3.1-70B")) == 327_680
    assert kv_bytes_per_token(find_model("Qwen3-30B-A3B")) == 98_304
    assert kv_bytes_per_token(find_model("DeepSeek-V3")) == 70_272


def test_tensor_parallelism_splits_heads_and_no_latent() -> None:
    qwen, deepseek = find_model("Qwen3-30B-A3B"), find_model("DeepSeek-V3.2")
    assert [kv_bytes_per_token(qwen, tensor_parallel=n) for n in (1, 2, 4, 8, 16)] == [
        98304,
        49152,
        24576,
        24576,
        24576,
    ]
    assert kv_bytes_per_token(deepseek, tensor_parallel=8) == kv_bytes_per_token(deepseek)
    # Three GPUs for four heads: one of them holds two.
    assert kv_bytes_per_token(qwen, tensor_parallel=3) == 49152


def test_sliding_cache_is_bounded_and_apart() -> None:
    a = find_model("gpt-oss-120b")
    per_token = 18 * 2 * 8 * 64 * 2
    assert window_bytes_per_sequence(a) == 128 * per_token
    assert window_bytes_per_sequence(a, context=50) == 50 * per_token
    assert window_bytes_per_sequence(a, tensor_parallel=8) == 128 * per_token / 8
    assert window_bytes_per_sequence(find_model("DeepSeek-V3.2")) == 0  # selection reads 2048 tokens and keeps all


def test_hybrid_state_is_constant() -> None:
    qwen = find_model("Qwen3.5-35B-A3B")
    one = 4 * 32 * 128 * 128 + 2 * 3 * (2 * 16 * 128 + 32 * 128)
    assert state_bytes(qwen) == 30 * one
    nemotron = find_model("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    assert state_bytes(nemotron) == 23 * (4 * 64 * 64 * 128 + 2 * 3 * (64 * 64 + 2 * 8 * 128))
    assert state_bytes(find_model("Qwen3-8B")) == 0


def test_flops_grow_with_context_until_the_window() -> None:
    full, sliding = find_model("Qwen3-8B"), find_model("Mistral-7B-v0.1")
    assert flops_per_token(full, 0) == 2 * (active_parameters(full) - full.vectors)
    assert flops_per_token(full, 100) - flops_per_token(full, 0) == 100 * 36 * 2 * 32 * (128 + 128)
    assert flops_per_token(sliding, 5000) == flops_per_token(sliding, 4096) > flops_per_token(sliding, 4095)


def test_sparse_attention_scores_all_and_reads_some() -> None:
    a = find_model("DeepSeek-V3.2")
    (kind,) = a.attention
    assert (kind.window, kind.keeps_window, kind.index_elements) == (2048, False, 128)
    assert kind.index_flops == 2 * 64 * 128
    assert kind.context_flops == 2 * 128 * (576 + 512)
    assert flops_per_token(a, 10_000) - flops_per_token(a, 9_000) == 61 * 1000 * kind.index_flops


def test_shared_indexers_keep_no_scores() -> None:
    config = dict(find_config("zai-org/GLM-5")) | {"index_topk_freq": 4}
    kinds = read_architecture(config).attention
    assert sum(k.count for k in kinds) == 78
    own = [k.count for k in kinds if k.index_elements]
    assert own == [21]  # layers 0, 1, 5, 9, ..., 77
    assert len(kinds) == 2


def find_config(name: str) -> Config:
    return dict(entries()[name].config)


def test_tied_head_is_stored_once_and_read() -> None:
    tied, untied = (read_architecture(LLAMA | {"tie_word_embeddings": t}) for t in (True, False))
    assert total_parameters(untied) - total_parameters(tied) == 64_000
    assert weight_bytes(untied) - weight_bytes(tied) == 128_000
    assert active_parameters(untied) == active_parameters(tied)


def test_gated_attention_projects_twice_the_queries() -> None:
    (qkv,) = named(find_model("Qwen3.5-27B"), "qkv")
    assert qkv.outputs == 2 * 24 * 256 + 2 * 4 * 256


def test_values_that_are_keys_have_no_projection_but_a_cache() -> None:
    a = find_model("gemma-4-26B-A4B")
    full = next(k for k in a.attention if k.name == "full")
    assert sorted(m.outputs for m in named(a, "qkv")) == sorted([16 * 512 + 2 * 512, 16 * 256 + 2 * 8 * 256])
    assert full.cache_elements == 2 * 2 * 512


def test_dense_first_layers_and_shared_experts() -> None:
    a = find_model("DeepSeek-V3")
    assert a.experts is not None
    assert (a.experts.layers, a.experts.experts, a.experts.per_token) == (58, 256, 8)
    assert [m.count for m in named(a, "dense_gate_up")] == [3]
    assert [(m.count, m.outputs) for m in named(a, "shared_gate_up")] == [(58, 2 * 2048)]


def test_expert_biases_belong_to_experts() -> None:
    a = find_model("gpt-oss-20b")
    assert a.experts is not None
    assert a.experts.vectors == 2 * 2880 + 2880
    assert a.experts.expert_bytes == 3 * 2880 * 2880 * 4.25 / 8 + 2 * 3 * 2880


def test_nested_decoder_takes_what_it_lacks_from_outside() -> None:
    nested = {"model_type": "qwen3_vl", "tie_word_embeddings": True, "text_config": LLAMA | {"vocab_size": 77}}
    a = read_architecture(nested)
    assert (a.family, a.vocab, a.tied) == ("llama", 77, True)


def test_a_nested_decoder_without_a_type_goes_by_the_outer_one() -> None:
    inner = {k: v for k, v in find_config("google/gemma-3-4b-it").items() if k != "model_type"}
    a = read_architecture({"model_type": "gemma3", "text_config": inner})
    assert total_parameters(a) == total_parameters(find_model("gemma-3-4b-it"))


def test_class_defaults_stand_for_absent_keys() -> None:
    short = find_config("google/gemma-3-4b-it")
    for key in ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings"):
        del short[key]
    assert total_parameters(read_architecture(short)) == total_parameters(find_model("gemma-3-4b-it"))
    mistral = {k: v for k, v in find_config("mistralai/Mistral-7B-v0.1").items() if k != "sliding_window"}
    assert [k.window for k in read_architecture(mistral).attention] == [4096]
    assert [k.window for k in read_architecture(mistral | {"sliding_window": None}).attention] == [None]


def test_qwen2_slides_only_if_asked() -> None:
    base = LLAMA | {"model_type": "qwen2", "sliding_window": 128, "max_window_layers": 1}
    assert [k.name for k in read_architecture(base).attention] == ["full"]
    sliding = read_architecture(base | {"use_sliding_window": True}).attention
    assert {k.name: k.count for k in sliding} == {"full": 1, "sliding": 2}


# -- quantisation ----------------------------------------------------------------------------------


def test_fp8_blocks_and_what_stays_wide() -> None:
    a = find_model("DeepSeek-V3")
    assert a.precision == "fp8"
    wide = {m.name for m in a.matrices if m.bits == 16}
    assert wide == {"embedding", "head", "router"}
    assert {m.bits for m in a.matrices if m.name not in wide} == {8 + 32 / 128**2}
    linear = total_parameters(a) - 2 * 129280 * 7168 - 58 * 256 * 7168 - a.vectors
    expected = linear * (1 + 4 / 128**2) + 2 * (total_parameters(a) - linear)
    assert weight_bytes(a) == pytest.approx(expected, rel=1e-12)


def test_mxfp4_of_experts_only() -> None:
    a = find_model("gpt-oss-120b")
    assert a.experts is not None
    assert {m.bits for m in a.matrices} == {16.0}
    assert {(m.bits, m.arithmetic) for m in a.experts.matrices} == {(4.25, "fp4")}
    assert weight_bytes(a) == pytest.approx(65.25e9, rel=1e-3)


def test_a_name_means_whole_components() -> None:
    section = {"quant_method": "fp8", "modules_to_not_convert": ["gate", "model.layers.1", "self_attn.k_proj"]}
    a = read_architecture(MOE | {"num_hidden_layers": 12, "quantization_config": section})
    assert {m.bits for m in named(a, "dense_gate_up")} == {16.0}  # layer 1; 'gate' is not gate_proj
    qkv = {(m.count, m.outputs, m.bits) for m in named(a, "qkv")}
    # Layer 1 is wide as a whole; elsewhere only k, which fused reading splits off.
    assert qkv == {(1, 192, 16.0), (11, 160, 8.0), (11, 32, 16.0)}
    assert a.experts is not None
    assert {m.bits for m in a.experts.matrices} == {8.0}


def test_patterns_of_compressed_tensors() -> None:
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    section = {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "group_0": {"weights": weights, "input_activations": {"num_bits": 4}, "targets": ["Linear"]},
        },
        "ignore": ["lm_head", "re:.*self_attn.*", "model.layers.0.*"],
    }
    a = read_architecture(LLAMA | {"quantization_config": section})
    assert a.precision == "nvfp4"
    assert {m.bits for m in named(a, "qkv")} == {16.0}
    assert {(m.count, m.bits, m.arithmetic) for m in named(a, "down")} == {(1, 16.0, "bf16"), (2, 4.5, "fp4")}


def test_experts_of_some_layers_count_at_their_mean_width() -> None:
    section = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["model.layers.0.mlp.experts*"]}
    a = read_architecture(MOE | {"mlp_only_layers": [], "quantization_config": section})
    assert a.experts is not None
    assert [m.bits for m in a.experts.matrices] == [pytest.approx((16 + 8 + 8) / 3)] * 2


@pytest.mark.parametrize(
    ("section", "bits", "arithmetic"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 20 / 128, "bf16"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, 4 + 20 / 64, "bf16"),
        ({"quant_method": "fp8"}, 8, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5, "fp4"),
        ({"quant_method": "mxfp4"}, 4.25, "fp4"),
    ],
)
def test_widths(section: Config, bits: float, arithmetic: str) -> None:
    a = read_architecture(LLAMA | {"quantization_config": section})
    assert {(m.bits, m.arithmetic) for m in named(a, "gate_up")} == {(bits, arithmetic)}
    assert {m.bits for m in (*named(a, "head"), *named(a, "embedding"))} == {16.0}


@pytest.mark.parametrize("precision", ["bf16", "fp8", "nvfp4", "mxfp4"])
@pytest.mark.parametrize("name", list(entries()))
def test_requantised_models_shrink_and_keep_their_counts(name: str, precision: str) -> None:
    a = find_model(name)
    b = quantised(a, precision)
    assert total_parameters(b) == total_parameters(a)
    assert {m.bits for m in (*named(b, "head"), *named(b, "router"), *named(b, "embedding"))} == {16.0}
    per_weight = {"bf16": 2, "fp8": 1, "nvfp4": 4.5 / 8, "mxfp4": 4.25 / 8}[precision]
    assert per_weight * total_parameters(a) <= weight_bytes(b) <= 2 * total_parameters(a)
    assert quantised(b, precision) == b


def test_attention_of_gpt_oss_stays_wide_in_four_bits() -> None:
    a = find_model("gpt-oss-20b")
    assert quantised(a, "mxfp4") == a
    assert {m.bits for m in named(quantised(a, "nvfp4"), "qkv")} == {16.0}
    assert {m.bits for m in named(quantised(a, "fp8"), "qkv")} == {8.0}


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "mamba3"}, "no architecture 'mamba3' is known"),
        ({"model_type": "qwen"}, "did you mean 'qwen"),
        ({"model_type": 7}, "no 'model_type'"),
        ({"hidden_size": None}, "'hidden_size' is absent"),
        ({"hidden_size": 1e30}, "hidden_size = 1e+30 is not a whole number from 1 to 10,000,000"),
        ({"hidden_size": float("nan")}, "hidden_size = nan"),
        ({"hidden_size": -64}, "hidden_size = -64"),
        ({"hidden_size": 0}, "hidden_size = 0"),
        ({"hidden_size": True}, "hidden_size = True"),
        ({"hidden_size": "64"}, "hidden_size = '64'"),
        ({"hidden_size": 65}, "65 is no multiple of 8"),
        ({"num_key_value_heads": 3}, "8 is no multiple of 3"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers = 1000000"),
        ({"tie_word_embeddings": "yes"}, "neither true nor false"),
        ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "1 items for 3 layers"),
        ({"model_type": "qwen3", "layer_types": ["full_attention", "linear", "x"]}, "no layer type 'linear'"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "method 'bitsandbytes' is not known"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3, "group_size": 128}}, "bits 3"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}}, "W4A8_AWQ"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}}, "not two sizes"),
        ({"quantization_config": [8]}, "quantization_config is a list"),
    ],
)
def test_bad_configurations_say_what_and_what_to_do(change: Config, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read_architecture(LLAMA | change, name="here")
    assert said in str(caught.value)
    assert caught.value.remedy
    assert caught.value.where == "here"


def test_what_is_not_modelled_is_refused_by_name() -> None:
    gemma = find_config("google/gemma-4-26B-A4B")
    with pytest.raises(InputError, match="num_kv_shared_layers"):
        read_architecture(gemma | {"num_kv_shared_layers": 10})
    with pytest.raises(InputError, match="hidden_size_per_layer_input"):
        read_architecture({k: v for k, v in gemma.items() if k != "hidden_size_per_layer_input"})
    with pytest.raises(InputError, match="moe_layer_freq"):
        read_architecture(find_config("deepseek-ai/DeepSeek-V3") | {"moe_layer_freq": 2})


@pytest.mark.parametrize("text", ["", "[1]", "3", "null", '{"a": ', "\xff", "[" * 100_000])
def test_files_that_hold_no_configuration(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError) as caught:
        read_architecture(file)
    assert caught.value.remedy
    assert str(file) in str(caught.value)


def test_absent_files(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(InputError, match="cannot read"):
            read_architecture(path)


def test_a_folder_stands_for_its_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    # A byte-order mark and an infinity, as some tools write them, where no shape depends on it.
    (folder / "config.json").write_text("\ufeff" + json.dumps(LLAMA | {"limit": float("inf")}), encoding="utf-8")
    assert read_architecture(folder).name == "my-model"
    assert read_architecture(folder / "config.json") == read_architecture(folder / "config.json", name="my-model")


def attempt(config: Config) -> tuple[Architecture | None, InputError | None]:
    """What a configuration gives: an architecture or a refusal, and nothing else."""
    try:
        return read_architecture(config), None
    except InputError as error:
        return None, error


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)
FIRST = {c["model_type"]: c for c in (find_config(name) for name in entries())}


@given(st.data())
def test_hostile_configurations_are_read_or_refused(data: st.DataObject) -> None:
    config = data.draw(st.sampled_from(list(FIRST.values())))
    keys = st.sampled_from(
        [*config, "layer_types", "quantization_config", "text_config", "mlp_only_layers", "moe_layers"]
    )
    changed = config | data.draw(st.dictionaries(keys, JSON, min_size=1, max_size=3))
    a, refusal = attempt(changed)
    assert a is None or (total_parameters(a) > 0 and weight_bytes(a) > 0)
    assert refusal is None or refusal.remedy


@given(st.data())
def test_hostile_quantisation_is_read_or_refused(data: st.DataObject) -> None:
    section = data.draw(st.dictionaries(st.text(max_size=5), JSON, max_size=3))
    section["quant_method"] = data.draw(
        st.sampled_from(["fp8", "mxfp4", "modelopt", "gptq", "awq", "compressed-tensors"])
    )
    keys = [
        "bits",
        "group_size",
        "weight_block_size",
        "ignore",
        "modules_to_not_convert",
        "quant_algo",
        "config_groups",
    ]
    section |= data.draw(st.dictionaries(st.sampled_from(keys), JSON, max_size=4))
    _, refusal = attempt(LLAMA | {"quantization_config": section})
    assert refusal is None or refusal.remedy


@given(st.data())
def test_any_absent_key_has_a_default_or_is_named(data: st.DataObject) -> None:
    config = data.draw(st.sampled_from(list(FIRST.values())))
    key = data.draw(st.sampled_from(list(config)))
    _, refusal = attempt({k: v for k, v in config.items() if k != key})
    # Without head_dim it is hidden_size/heads, which need not be whole.
    assert refusal is None or key in str(refusal)


def test_every_family_has_a_model_or_a_known_twin() -> None:
    twins = {"qwen2_5_vl", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text", "gemma"}
    assert set(FAMILIES) - set(FIRST) == twins
