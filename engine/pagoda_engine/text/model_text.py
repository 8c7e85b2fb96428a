"""A model's tokenizer and chat template together, read once."""

from dataclasses import dataclass

from pagoda_engine.model.gguf import GgufFile
from pagoda_engine.model.location import ModelLocation
from pagoda_engine.text.template import ChatTemplate, load_template
from pagoda_engine.text.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class ModelText:
    """Everything that turns requests into ids and ids into text."""

    tokenizer: Tokenizer
    template: ChatTemplate


def load_text(location: ModelLocation) -> ModelText:
    """Read tokenizer and chat template of a model.

    Raises:
        CheckpointError: the GGUF file is missing or damaged.
        TokenizerError: no tokenizer, or one that is not supported.
    """
    metadata = GgufFile(location.path).metadata if location.is_gguf else None
    tokenizer = load_tokenizer(location, metadata)
    return ModelText(tokenizer, load_template(location, tokenizer, metadata))
