"""Tiny models of any class of transformers: its configuration, with sizes made small by the
names of its parameters.
"""

import inspect
import re
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

VOCABULARY = 64
END_OF_TEXT = 2
LENGTH = 8
IMAGE = 32
FRAMES = 2

SIZES: dict[str, Any] = {
    r"vocab_size|.*_vocab_size(_per_layer_input)?": VOCABULARY,
    r"type_vocab_size": 2,
    r"hidden_size|hidden_dim|d_model|n_embd|emb_dim|embed_dim|embedding_size|dim|projection_dim": (
        16
    ),
    r".*_(hidden_size|hidden_dim|embed_dim|embedding_size|embedding_dim|projection_dim|proj_dim)": (
        16
    ),
    r"hidden_sizes|.*_hidden_sizes|embed_dims|conv_dim|tdnn_dim": 16,
    r"xvector_output_dim|classifier_proj_size|conv_channels|fusion_hidden_size|reassemble_hidden_size": (
        16
    ),
    r"intermediate_size|.*_intermediate_size|.*ffn_dim|ffn_.*size|d_ff|d_inner|n_inner|feed_forward_size": (
        32
    ),
    r".*dim_feedforward|.*feedforward_dim|mlp_dim|ff_dim": 32,
    r"num_hidden_layers|num_layers|n_layers?|depth|layers|.*_layers": 2,
    r"depths": 1,
    r"num_attention_heads|num_heads|n_heads?|heads|.*attention_heads|.*_num_heads|num_key_value_heads|num_kv_heads": (
        2
    ),
    r"encoder_attention_heads|decoder_attention_heads|.*_num_key_value_heads": 2,
    r"head_dim|d_kv|attention_head_size|kv_channels|.*_head_dim": 8,
    r"q_lora_rank|kv_lora_rank": 8,
    r"max_position_embeddings|n_positions|n_ctx|max_.*positions?(_embeddings)?|context_length|max_seq_len": (
        64
    ),
    r"image_size|img_size|input_size": IMAGE,
    r"num_frames|frames_per_clip": FRAMES,
    r"patch_size": 8,
    r"num_conv_pos_embeddings": 4,
    r"num_conv_pos_embedding_groups|num_groups": 2,
    r"num_(local_)?experts|n_routed_experts|moe_num_experts|num_experts": 4,
    r"num_experts_per_tok|moe_topk|moe_k": 2,
    r"n_group|topk_group": 1,
    r"pad_token_id|pad_index": 0,
    r"bos_token_id|decoder_start_token_id|bos_index": 1,
    r"eos_token_id|sep_token_id|eos_index": END_OF_TEXT,
    # Nothing random in the forward pass.
    r".*drop.*|.*pdrop.*|.*_jitter_noise|mask_time_prob|mask_feature_prob": 0.0,
}
"""Names of parameters of configurations, as regular expressions -> their small value; the last
one that fits counts.
"""

NOT_SIZES = r"max_window_layers|drop_tokens|use_.*|is_.*"
"""Names that look like one of `SIZES`, and mean something else."""

MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
    "mamba_d_state": 8,
}
MIXED_LAYERS = {"layer_types": ["linear_attention", "full_attention"]}
SWIN = {"patch_size": 4, "window_size": 2, "depths": [1, 1], "num_heads": [2, 2]}
CONVNEXT = {"patch_size": 4, "hidden_sizes": [16] * 4, "depths": [1] * 4}
POSITIONS_OF_IMAGES = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
}
HALF_OF_THEM = {
    "rope_parameters": {**POSITIONS_OF_IMAGES["rope_parameters"], "mrope_section": [1, 1, 0]},
}
OVERRIDES: dict[str, dict[str, Any]] = {
    "ASTConfig": {"max_length": 32, "num_mel_bins": 16},
    "BambaConfig": MAMBA,
    "BrosConfig": {"hidden_size": 32},
    "CodeGenConfig": {"n_head": 4, "rotary_dim": 4},
    "ConvNextConfig": CONVNEXT,
    "ConvNextV2Config": CONVNEXT,
    "CpmAntConfig": {"prompt_length": 4},
    "DeepseekV2Config": {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 2},
    "DonutSwinConfig": SWIN,
    "Dots1Config": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "EsmConfig": {"vocab_size": VOCABULARY, "mask_token_id": 4},
    "FalconH1Config": {**MAMBA, "mamba_d_ssm": 32},
    "FocalNetConfig": {
        "patch_size": 4,
        "depths": [1, 1],
        "focal_levels": [1, 1],
        "focal_windows": [3, 3],
    },
    "GPTJConfig": {"rotary_dim": 4},
    "GPTNeoConfig": {"attention_types": [[["global", "local"], 1]]},
    "Glm4vTextConfig": POSITIONS_OF_IMAGES,
    "Glm4vMoeTextConfig": HALF_OF_THEM,
    "GlmImageTextConfig": POSITIONS_OF_IMAGES,
    "GlmOcrTextConfig": POSITIONS_OF_IMAGES,
    "GraniteMoeHybridConfig": MAMBA,
    "HunYuanDenseV1Config": {"head_dim": 8},
    "HunYuanMoEV1Config": {"head_dim": 8},
    "JambaConfig": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "LEDConfig": {"attention_window": 4},
    "LayoutLMv3Config": {"coordinate_size": 2, "shape_size": 4},
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "LiltConfig": {"hidden_size": 24},
    "Mamba2Config": {
        "num_heads": 4,
        "head_dim": 8,
        "state_size": 8,
        "n_groups": 1,
        "chunk_size": 8,
    },
    "MarkupLMConfig": {
        "max_depth": 4,
        "xpath_unit_hidden_size": 4,
        "max_xpath_tag_unit_embeddings": 220,
    },
    "MinistralConfig": {"head_dim": 8},
    "NemotronConfig": {"num_key_value_heads": 2, "head_dim": 8},
    "NemotronHConfig": {
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "n_groups": 1,
        "ssm_state_size": 8,
        "chunk_size": 8,
    },
    "PaddleOCRTextConfig": POSITIONS_OF_IMAGES,
    "PerceiverConfig": {"num_latents": 4, "d_latents": 16, "num_self_attends_per_block": 1},
    "Qwen2VLTextConfig": POSITIONS_OF_IMAGES,
    "Qwen2_5_VLTextConfig": POSITIONS_OF_IMAGES,
    "Qwen3NextConfig": MIXED_LAYERS,
    "Qwen3_5MoeTextConfig": MIXED_LAYERS,
    "Qwen3_5TextConfig": MIXED_LAYERS,
    "ReformerConfig": {
        "attn_layers": ["local", "local"],
        "axial_pos_embds": False,
        "local_attn_chunk_length": 4,
    },
    "Speech2TextConfig": {"input_feat_per_channel": 8},
    "SwinConfig": SWIN,
    "Swinv2Config": {**SWIN, "pretrained_window_sizes": [0, 0]},
    "VivitConfig": {"tubelet_size": [2, 8, 8]},
    "Wav2Vec2BertConfig": {"vocab_size": VOCABULARY, "feature_projection_input_dim": 16},
    "Wav2Vec2ConformerConfig": {"vocab_size": VOCABULARY},
    "WhisperConfig": {"max_source_positions": 16, "num_mel_bins": 8},
    "XmodConfig": {"default_language": "en_XX"},
}
"""Configuration classes -> what their models need besides."""


def small_value(name: str, default: Any) -> Any:
    """Return the small value of a parameter of a configuration, or its default."""
    if isinstance(default, bool) or re.fullmatch(NOT_SIZES, name):
        return default
    for pattern, value in reversed(SIZES.items()):
        if re.fullmatch(pattern, name):
            return (
                type(default)(value for _ in default)
                if isinstance(default, (list, tuple))
                else value
            )
    if (
        isinstance(default, int)
        and default > VOCABULARY
        and name.endswith(("token_id", "token_index"))
    ):
        return VOCABULARY - 1
    return default


def small_settings(kind: type[PretrainedConfig]) -> dict[str, Any]:
    """Return the parameters of a configuration class that make its model small, those of its
    parts too.
    """
    settings: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        is_given = parameter.default not in (None, inspect.Parameter.empty)
        if is_given and parameter.default != small_value(name, parameter.default):
            settings[name] = small_value(name, parameter.default)
    for name in kind.sub_configs:
        part = getattr(kind(), name, None)
        if isinstance(part, PretrainedConfig):
            settings[name] = {"model_type": part.model_type, **small_settings(type(part))}
    return {**settings, **OVERRIDES.get(kind.__name__, {})}


def make_model(kind: type[PreTrainedModel]) -> PreTrainedModel:
    """Make a small model of a class, the same at each call, with nothing random in its forward
    pass.
    """
    torch.manual_seed(0)
    config_class = kind.config_class
    model = kind(
        config_class(
            **{"pad_token_id": 0, "decoder_start_token_id": 1, **small_settings(config_class)}
        )
    )
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model.train()
