#!/bin/sh
# Lay out the root file system of the router's image. Usage: images/router.sh ROOTFS
set -eu
exec "${PYTHON:-python3}" "$(dirname "$0")/rootfs.py" router "$@"
