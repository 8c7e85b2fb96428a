#!/bin/sh
# Lay out the root file system of the engine's image. Usage: images/engine.sh ROOTFS [--without-packages]
set -eu
exec "${PYTHON:-python3}" "$(dirname "$0")/rootfs.py" engine "$@"
