"""Audio: samples or spectrograms to features."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .architecture import SAMPLES, Architecture, Inputs, generator
from .decoders import SIZES
from .encoder_decoders import BART

WAV2VEC2: dict[str, Any] = {
    **SIZES,
    "conv_dim": [16, 16],
    "conv_stride": [5, 4],
    "conv_kernel": [10, 4],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}


def waves(model: nn.Module) -> Inputs:
    """Noise as sound [samples, time]."""
    return {"input_values": torch.randn(SAMPLES, 400, generator=generator())}


def spectrograms(model: nn.Module) -> Inputs:
    """Noise as a spectrogram [samples, time, mel bands]."""
    return {"input_values": torch.randn(SAMPLES, 32, 16, generator=generator())}


def mel_and_tokens(model: nn.Module) -> Inputs:
    """A spectrogram [samples, mel bands, time] for the encoder and tokens for the decoder."""
    ids = torch.randint(3, 99, (SAMPLES, 4), generator=generator())
    return {"input_features": torch.randn(SAMPLES, 16, 32, generator=generator()), "decoder_input_ids": ids}


def stereo(model: nn.Module) -> Inputs:
    """Noise as sound of one channel [samples, 1, time]."""
    return {"input_values": torch.randn(SAMPLES, 1, 320, generator=generator())}


def audio(name: str, model: str, config: dict[str, Any], inputs: Any = waves, output: str = "last_hidden_state") -> Architecture:
    return Architecture(name, "audio", model, config, inputs, (output,))


AUDIO = (
    audio("wav2vec2", "Wav2Vec2Model", WAV2VEC2),
    audio("hubert", "HubertModel", WAV2VEC2),
    audio("wavlm", "WavLMModel", {**WAV2VEC2, "num_buckets": 16, "max_bucket_distance": 32}),
    audio("unispeech", "UniSpeechModel", WAV2VEC2),
    audio("unispeech-sat", "UniSpeechSatModel", WAV2VEC2),
    audio("data2vec-audio", "Data2VecAudioModel", {**WAV2VEC2, "conv_pos_kernel_size": 3, "num_conv_pos_embeddings": 2}),
    audio("sew", "SEWModel", {**WAV2VEC2, "squeeze_factor": 2}),
    audio("audio-spectrogram-transformer", "ASTModel", {**SIZES, "max_length": 32, "num_mel_bins": 16, "patch_size": 8}, spectrograms),
    audio(
        "whisper",
        "WhisperForConditionalGeneration",
        {**BART, "num_mel_bins": 16, "max_source_positions": 16, "max_target_positions": 16},
        mel_and_tokens,
        "logits",
    ),
    audio(
        "dac",
        "DacModel",
        {
            "encoder_hidden_size": 8,
            "downsampling_ratios": [2, 4],
            "decoder_hidden_size": 32,
            "upsampling_ratios": [4, 2],
            "n_codebooks": 2,
            "codebook_size": 16,
            "codebook_dim": 4,
            "hidden_size": 32,
        },
        stereo,
        "audio_values",
    ),
)
