"""What a request used, as its answer says it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagoda_protocol.metrics import SOURCES


@dataclass(frozen=True)
class Usage:
    """Tokens in and out, and where the prompt's came from."""

    prompt_tokens: int
    completion_tokens: int
    sources: Mapping[str, int]
    """Prompt tokens by source; their sum is `prompt_tokens` once the first token exists."""

    def body(self) -> dict[str, Any]:
        """Return OpenAI's `usage` object, with our `sources` in its details."""
        sources = {source: self.sources.get(source, 0) for source in SOURCES}
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": sum(sources.values()) - sources["compute"],
                "sources": sources,
            },
        }
