#!/bin/sh
# Lay out the root file system of the operator's image. Usage: images/operator.sh ROOTFS
set -eu
exec "${PYTHON:-python3}" "$(dirname "$0")/rootfs.py" operator "$@"
