"""Which of a pool's public texts a request begins with, and how many of its tokens come from that text alone.

    public text ─► as the template puts it, whatever follows ─► its own tokens ─► as far as the prompt has the same

Rules: a token counts only if the public text by itself gives it, so that nothing about it can depend on what a tenant
wrote; a template that reads the clock has nothing public; where in doubt, less is public.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pagoda_engine.serving.coverage import Language, Opening, RenderError, common_length
from pagoda_protocol.digests import public_text_of_chat, public_text_of_prompt
from pagoda_protocol.live import MAX_SHARED_PREFIXES

# Two messages that share no character: what both renderings begin with depends on neither.
_FOLLOWERS = ("0", "a")


class PublicTexts:
    """Finds openings. Safe to use from several threads."""

    def __init__(self, language: Language, texts: Callable[[], Sequence[str]]) -> None:
        """`texts` returns the newest registered ones."""
        self._language = language
        self._texts = texts
        self._chat_tokens = lru_cache(MAX_SHARED_PREFIXES)(self._tokens_in_chat)
        self._prompt_tokens = lru_cache(MAX_SHARED_PREFIXES)(self._tokens_in_prompt)

    def of_chat(self, body: Mapping[str, Any], prompt: Sequence[int]) -> Opening:
        """Return how a chat begins that was rendered to the tokens `prompt`; `body` as it came."""
        text = public_text_of_chat(body, self._texts())
        if text is None or self._language.reads_clock:
            return Opening(text)
        return _opening(text, self._chat_tokens(text), prompt)

    def of_prompt(self, given: str | Sequence[int], prompt: Sequence[int]) -> Opening:
        """Return how a completion's prompt begins; one that was given as tokens has no text."""
        text = public_text_of_prompt(given, self._texts()) if isinstance(given, str) else None
        return Opening() if text is None else _opening(text, self._prompt_tokens(text), prompt)

    def _tokens_in_chat(self, text: str) -> Sequence[int]:
        system = {"role": "system", "content": text}
        try:
            renderings = [
                self._language.render([system, {"role": "user", "content": follower}], False, None, {})
                for follower in _FOLLOWERS
            ]
        except RenderError:
            return []
        common = renderings[0][: common_length(*renderings)]
        start = common.find(text)
        return [] if start < 0 else list(self._language.encode(common[: start + len(text)], is_rendered=True)[0])

    def _tokens_in_prompt(self, text: str) -> Sequence[int]:
        return list(self._language.encode(text, is_rendered=False)[0])


def _opening(text: str, tokens: Sequence[int], prompt: Sequence[int]) -> Opening:
    return Opening(text, common_length(tokens, list(prompt[: len(tokens)])))
