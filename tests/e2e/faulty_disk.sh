# Sourced behind lib.sh: gpt's states rest in the folder files, and `faulty COMMAND…` has faults there (tests/support/disk_faults.c).
[ -z "${SANITIZE:-}" ] || { echo "skipped: a sanitizer's library must come first"; exit 77; }
[ -f "$BUILD/plugins/libtessera-offload-disk.so" ] || { echo "skip: offload-disk is not built here"; exit 77; }
"$TESSERA" train --help 2> /dev/null | grep -q gpt || { echo "skip: the reference models are not built here"; exit 77; }
export TESSERA_LOG=error
mkdir -p files
shim=$BUILD/tests/support/disk_faults.so
faulty() { env LD_PRELOAD="$shim" DISK_FAULT_DIR="$PWD/files" "$@"; }
