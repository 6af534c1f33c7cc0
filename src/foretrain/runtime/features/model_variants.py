"""What a stack's own model definitions compute otherwise than the papers."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.runtime.features.option import OptionalFeature, switch


@dataclass(frozen=True, slots=True)
class ModelVariants(OptionalFeature):
    """How the models that come with a stack differ from those of their family."""

    # transformers of a case that gives none are trained with their family's
    has_dropout: bool = switch(True)
    # masked-LM heads see the predicted positions alone
    gathers_masked: bool = switch(False)
