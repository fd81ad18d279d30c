"""Vision: images to features. Those of the first list are made of convolutions, those of the second of attention between patches."""

from __future__ import annotations

from typing import Any

from .architecture import Architecture, images

VIT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}

SWIN: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [1, 1],
    "num_heads": [2, 4],
    "window_size": 4,
}


def convolutional(name: str, model: str, config: dict[str, Any], size: int = 32, output: str = "last_hidden_state") -> Architecture:
    return Architecture(name, "vision, with convolutions", model, config, images(size), (output,))


def patches(name: str, model: str, config: dict[str, Any] | None = None) -> Architecture:
    return Architecture(name, "vision, of patches", model, {**VIT, **(config or {})}, images(), ("last_hidden_state",))


VISION = (
    convolutional("resnet", "ResNetModel", {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}),
    convolutional("convnext", "ConvNextModel", {"num_stages": 2, "hidden_sizes": [16, 32], "depths": [1, 1]}),
    convolutional("convnextv2", "ConvNextV2Model", {"num_stages": 2, "hidden_sizes": [16, 32], "depths": [1, 1]}),
    convolutional(
        "regnet", "RegNetModel", {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "groups_width": 8, "layer_type": "y"}
    ),
    convolutional("bit", "BitModel", {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1], "num_groups": 8}),
    convolutional(
        "efficientnet",
        "EfficientNetModel",
        {
            "image_size": 32,
            "width_coefficient": 0.25,
            "depth_coefficient": 0.2,
            "hidden_dim": 320,
            "in_channels": [32, 16],
            "out_channels": [16, 24],
            "strides": [1, 2],
            "kernel_sizes": [3, 5],
            "num_block_repeats": [1, 1],
            "expand_ratios": [1, 6],
        },
    ),
    convolutional(
        "poolformer",
        "PoolFormerModel",
        {
            "depths": [1, 1],
            "hidden_sizes": [16, 32],
            "num_encoder_blocks": 2,
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "padding": [2, 1],
        },
    ),
    convolutional(
        "segformer",
        "SegformerModel",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [4, 1],
            "hidden_sizes": [16, 32],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
        },
    ),
    convolutional(
        "pvt_v2",
        "PvtV2Model",
        {
            "image_size": 32,
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [4, 1],
            "hidden_sizes": [16, 32],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
        },
    ),
    convolutional(
        "swiftformer",
        "SwiftFormerModel",
        {"image_size": 32, "depths": [1, 1], "embed_dims": [16, 32], "mlp_ratio": 2, "downsamples": [True, False]},
    ),
    convolutional(
        "focalnet",
        "FocalNetModel",
        {"image_size": 32, "embed_dim": 16, "depths": [1, 1], "hidden_sizes": [16, 32], "focal_levels": [2, 2], "focal_windows": [3, 3]},
    ),
    convolutional(
        "hgnet_v2",
        "HGNetV2Backbone",
        {
            "embedding_size": 16,
            "depths": [1, 1],
            "hidden_sizes": [16, 32],
            "stem_channels": [3, 8, 16],
            "stage_in_channels": [16, 16],
            "stage_mid_channels": [8, 16],
            "stage_out_channels": [16, 32],
            "stage_num_blocks": [1, 1],
            "stage_downsample": [False, True],
            "stage_light_block": [False, True],
            "stage_kernel_size": [3, 5],
            "stage_numb_of_layers": [2, 2],
        },
        output="feature_maps",
    ),
    convolutional("dinov3_convnext", "DINOv3ConvNextModel", {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "image_size": 32}),
    convolutional("mobilenet_v2", "MobileNetV2Model", {"image_size": 32, "depth_multiplier": 0.25, "min_depth": 8}),
    convolutional(
        "levit",
        "LevitModel",
        {"image_size": 32, "hidden_sizes": [32, 32, 32], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1], "key_dim": [8, 8, 8]},
    ),
    convolutional(
        "glpn",
        "GLPNModel",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [4, 1],
            "hidden_sizes": [16, 32],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
        },
    ),
    convolutional("swin2sr", "Swin2SRModel", {"image_size": 16, "embed_dim": 16, "depths": [1], "num_heads": [2], "window_size": 4}, 16),
    convolutional(
        "rt_detr_resnet",
        "RTDetrResNetBackbone",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"},
        output="feature_maps",
    ),
    patches("vit", "ViTModel"),
    patches("deit", "DeiTModel"),
    patches("beit", "BeitModel", {"use_relative_position_bias": True}),
    patches("data2vec-vision", "Data2VecVisionModel"),
    patches("dinov2", "Dinov2Model"),
    patches("dinov3_vit", "DINOv3ViTModel"),
    patches("vit_msn", "ViTMSNModel"),
    patches("ijepa", "IJepaModel"),
    patches("siglip_vision_model", "SiglipVisionModel"),
    patches("clip_vision_model", "CLIPVisionModel"),
    patches("yolos", "YolosModel", {"image_size": [32, 32], "num_detection_tokens": 4}),
    Architecture("swin", "vision, of patches", "SwinModel", SWIN, images(), ("last_hidden_state",)),
    Architecture("swinv2", "vision, of patches", "Swinv2Model", SWIN, images(), ("last_hidden_state",)),
)
