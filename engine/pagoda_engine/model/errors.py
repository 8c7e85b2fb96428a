"""What can go wrong with a model, by whose fault it is.

ModelError
├── CheckpointError        the files: missing, truncated, a tensor absent or of another shape
├── UnsupportedModelError  the files are sound and say something this decoder cannot compute
├── DeviceError            the machine: no such device, or no room on it now
├── CapacityError          the settings: memory too small for what was asked
└── CodecError             us or the machine: a codec does not write the bytes that it writes elsewhere
"""


class ModelError(Exception):
    """A model cannot be served; the message says why and what would be right."""


class CheckpointError(ModelError):
    """A checkpoint cannot be read as what it claims to be."""


class UnsupportedModelError(ModelError):
    """A checkpoint asks for something that is not implemented here."""


class DeviceError(ModelError):
    """The device that was asked for is not there, or has no room now."""


class CapacityError(ModelError):
    """The memory granted does not hold what the settings ask for."""


class CodecError(ModelError):
    """A codec failed its self-test: what it wrote would mean something else to its peers."""
