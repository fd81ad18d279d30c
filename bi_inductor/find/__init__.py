"""`bi_inductor.find`: a batch and its samples alone, compared after every node; the first node where bits part is named."""

from .find import find as find
from .result import FindResult as FindResult
from .variants import Variant as Variant
