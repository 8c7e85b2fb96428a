"""What is refused at the door, because waiting could never help."""

from pagoda_engine.core.request import NewRequest, RequestRejected
from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.model.interface import ModelFacts
from pagoda_protocol.addresses import ADDRESS_BYTES


def max_request_tokens(facts: ModelFacts, settings: EngineSettings) -> int:
    """Most tokens, prompt and output together, that one request can have on this engine."""
    return min(settings.max_model_tokens, facts.max_position, facts.num_pages * facts.block_tokens)


def check(request: NewRequest, facts: ModelFacts, settings: EngineSettings) -> None:
    """Let a request pass that this engine can serve.

    Raises:
        RequestRejected: naming the parameter that cannot be served.
    """
    if len(request.root) != ADDRESS_BYTES:
        raise ValueError(f"root: expected {ADDRESS_BYTES} bytes, got {len(request.root)}")
    if request.crossing is not None and request.crossing.block_index < 1:
        raise ValueError("crossing: expected at least one block before it")
    if not request.prompt:
        raise RequestRejected("invalid_value", "The prompt is empty: it must have at least one token.", "prompt")
    if request.max_tokens < 1:
        raise RequestRejected("invalid_value", "max_tokens must be at least 1.", "max_tokens")
    worst = next((token for token in request.prompt if not 0 <= token < facts.vocab_size), None)
    if worst is not None:
        message = f"The prompt has token id {worst}, but the vocabulary ends at {facts.vocab_size - 1}."
        raise RequestRejected("invalid_value", message, "prompt")
    _check_length(request, facts, settings)


def _check_length(request: NewRequest, facts: ModelFacts, settings: EngineSettings) -> None:
    context = min(settings.max_model_tokens, facts.max_position)
    num_prompt, num_all = len(request.prompt), len(request.prompt) + request.max_tokens
    if num_prompt >= context:
        message = f"The prompt has {num_prompt} tokens, but the context of {context} must also hold the output."
        raise RequestRejected("context_length_exceeded", message, "prompt")
    if num_all > context:
        message = (
            f"The prompt's {num_prompt} tokens and max_tokens={request.max_tokens} need a context of {num_all}, "
            f"but it is {context}: lower max_tokens to {context - num_prompt} or shorten the prompt."
        )
        raise RequestRejected("context_length_exceeded", message, "max_tokens")
    num_blocks = -(-num_all // facts.block_tokens)
    if num_blocks > facts.num_pages:
        message = (
            f"The request needs {num_blocks} blocks of {facts.block_tokens} tokens for its prompt and max_tokens, "
            f"but the device has {facts.num_pages}: lower max_tokens, shorten the prompt or raise kvCache.memory."
        )
        raise RequestRejected("context_length_exceeded", message, "max_tokens")
