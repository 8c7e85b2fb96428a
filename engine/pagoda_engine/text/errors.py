"""What can go wrong with text, by whose fault it is.

TextError
├── TokenizerError   the model's files: no tokenizer, or one of a kind that is not supported
└── TemplateError    the request: messages that the model's chat template refuses, or no template at all (HTTP 400)
"""


class TextError(Exception):
    """Text cannot be turned into tokens or a prompt."""


class TokenizerError(TextError):
    """The model brings no tokenizer that can be used here."""


class TemplateError(TextError):
    """A conversation cannot be rendered; the message may be shown to the caller."""
