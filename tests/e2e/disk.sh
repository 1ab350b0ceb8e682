# For tests of what rests in files: a model on the disk, whose planned bytes are the measured ones: . "$SOURCE/tests/e2e/disk.sh"
[ -f "$BUILD/plugins/libtessera-offload-disk.so" ] || { echo "skip: offload-disk is not built here"; exit 77; }
"$TESSERA" train --help 2> /dev/null | grep -q gpt || { echo "skip: the reference models are not built here"; exit 77; }
export TESSERA_LOG=error
head -c 3000 "$SOURCE/README.md" >text # the evaluation at the end is short
mkdir -p files
gpt="gpt --data text --layers 3 --width 72 --heads 2 --context 16 --batch 2 --steps 3 --optimizer adamw"
model=$gpt
. "$SOURCE/tests/e2e/trains.sh"
