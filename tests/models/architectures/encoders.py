"""Encoders: tokens to hidden states."""

from __future__ import annotations

from typing import Any

from .architecture import Architecture, text
from .decoders import SIZES


def encoder(name: str, model: str, config: dict[str, Any] | None = None, padding: tuple[str, ...] = ("left", "right")) -> Architecture:
    return Architecture(name, "encoder", model, {**SIZES, **(config or {})}, text, ("last_hidden_state",), padding, dynamic=True)


# Their positions are not an argument, so a sample that starts later is another one.
RIGHT = ("right",)

ENCODERS = (
    encoder("bert", "BertModel"),
    encoder("roberta", "RobertaModel"),
    encoder("distilbert", "DistilBertModel", {"dim": 32, "hidden_dim": 64, "n_layers": 1, "n_heads": 4}, RIGHT),
    encoder("electra", "ElectraModel", {"embedding_size": 32}),
    encoder("albert", "AlbertModel", {"embedding_size": 32}),
    encoder("deberta-v2", "DebertaV2Model", {"pos_att_type": ["c2p", "p2c"], "relative_attention": True}, RIGHT),
    encoder("mpnet", "MPNetModel", padding=RIGHT),
    encoder("camembert", "CamembertModel"),
    encoder("xlm-roberta", "XLMRobertaModel"),
    encoder("modernbert", "ModernBertModel", {"num_hidden_layers": 2, "local_attention": 4, "cls_token_id": 1, "sep_token_id": 2}),
    encoder("nomic_bert", "NomicBertModel"),
    encoder("convbert", "ConvBertModel", {"embedding_size": 32}, ()),
    encoder("squeezebert", "SqueezeBertModel", {"embedding_size": 32}),
    encoder("roformer", "RoFormerModel", {"embedding_size": 32}, RIGHT),
    encoder("mobilebert", "MobileBertModel", {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32}),
    encoder("ernie", "ErnieModel"),
    encoder("megatron-bert", "MegatronBertModel"),
    encoder("rembert", "RemBertModel", {"input_embedding_size": 32}),
    encoder("layoutlm", "LayoutLMModel"),
    encoder("esm", "EsmModel", {"position_embedding_type": "rotary", "mask_token_id": 4}, RIGHT),
)
