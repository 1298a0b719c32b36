"""Models that plans are not for: encoders, and encoders with decoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ENCODER, BOTH, IMAGES, SOUND = (
    "an encoder of text", "an encoder with a decoder", "an encoder of images", "an encoder of sound"
)  # fmt: skip

ENCODERS = {
    **dict.fromkeys(
        ("albert", "bert", "big_bird", "camembert", "canine", "clip_text_model", "convbert",
         "data2vec-text", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "esm",
         "eurobert", "flaubert", "fnet", "funnel", "ibert", "layoutlm", "layoutlmv2", "layoutlmv3",
         "longformer", "luke", "megatron-bert", "mobilebert", "modernbert", "mpnet", "mra", "nezha",
         "nomic_bert", "nystromformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert",
         "roformer", "siglip_text_model", "splinter", "squeezebert", "xlm", "xlm-roberta",
         "xlm-roberta-xl", "xmod", "yoso"), ENCODER,
    ),
    **dict.fromkeys(
        ("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "encoder-decoder", "fsmt",
         "led", "longt5", "m2m_100", "marian", "mbart", "mt5", "mvp", "nllb-moe", "pegasus",
         "pegasus_x", "plbart", "prophetnet", "speech_to_text", "switch_transformers", "t5",
         "t5gemma", "umt5", "vision-encoder-decoder", "whisper"), BOTH,
    ),
    **dict.fromkeys(
        ("beit", "clip", "clip_vision_model", "deit", "dinov2", "dinov3_vit", "ijepa", "siglip",
         "siglip2", "siglip_vision_model", "swin", "swinv2", "vit", "vit_mae", "vivit"), IMAGES,
    ),
    **dict.fromkeys(
        ("data2vec-audio", "hubert", "unispeech", "wav2vec2", "wav2vec2-bert",
         "wav2vec2-conformer", "wavlm"), SOUND,
    ),
}  # fmt: skip
"""Models other than decoders by ``model_type``, in words."""

GENERATING = ("CausalLM", "ConditionalGeneration", "LMHead", "TextGeneration")
"""Parts of names of classes that write text."""


def encoder(config: Mapping[str, Any], *, known: bool) -> str:
    """Return what a model is that is no decoder; empty for a decoder.

    `known` says that the ``model_type`` is one of a decoder, whatever class is named.
    """
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in ENCODERS:
        return ENCODERS[kind]
    if config.get("is_encoder_decoder") is True:
        return BOTH
    classes = config.get("architectures")
    names = [one for one in classes if isinstance(one, str)] if isinstance(classes, list) else []
    writes = any(part in name for name in names for part in GENERATING)
    if known or writes or not any("For" in name for name in names):
        return ""
    return f"of {names[0]}, which does not write text"
