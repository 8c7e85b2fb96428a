"""Makes the system calls of the disk tier fail; all of them go through `pagoda_sidecar.disk.files`."""

from tests.support.faults.control import Control, DiskFault

DISK_FAULTS: tuple[DiskFault, ...] = ()


def install(control: Control) -> None:
    """Nothing to hook until there is a disk tier."""
    del control
