"""What can go wrong with a model, by whose fault it is.

ModelError
├── CheckpointError        the files: missing, truncated, a tensor absent or of another shape
├── UnsupportedModelError  the files are sound and say something this decoder cannot compute
└── CapacityError          the settings: memory too small for what was asked
"""


class ModelError(Exception):
    """A model cannot be served; the message says why and what would be right."""


class CheckpointError(ModelError):
    """A checkpoint cannot be read as what it claims to be."""


class UnsupportedModelError(ModelError):
    """A checkpoint asks for something that is not implemented here."""


class CapacityError(ModelError):
    """The memory granted does not hold what the settings ask for."""
