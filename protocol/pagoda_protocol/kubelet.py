"""Reasons for which a kubelet lets a container wait, and which do not pass by themselves."""

NOT_PULLED = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
)
"""Its image cannot be had."""

NOT_MADE = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "PreCreateHookError",
    "PreStartHookError",
    "PostStartHookError",
)
"""It cannot be made, or a hook of it fails."""
