#!/bin/sh
# Lay out the root file system of the sidecar's image. Usage: images/sidecar.sh ROOTFS
set -eu
exec "${PYTHON:-python3}" "$(dirname "$0")/rootfs.py" sidecar "$@"
