"""The architectures of transformers that the backend is checked with, by family."""

from .architecture import Architecture as Architecture
from .audio import AUDIO
from .decoders import DECODERS
from .encoder_decoders import ENCODER_DECODERS
from .encoders import ENCODERS
from .mixtures import MIXTURES
from .multimodal import MULTIMODAL
from .recurrent import RECURRENT
from .vision import VISION

ARCHITECTURES: tuple[Architecture, ...] = (
    *DECODERS,
    *ENCODERS,
    *ENCODER_DECODERS,
    *MIXTURES,
    *RECURRENT,
    *VISION,
    *AUDIO,
    *MULTIMODAL,
)
