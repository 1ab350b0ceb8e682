#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 3600
# The Dockerfile, built by buildah without a daemon on a Debian 12 image made by debootstrap, and the image in use: it trains
# on two ranks, and a program compiles in it by pkg-config and by CMake. Needs root and a Debian mirror.
. "$SOURCE/tests/e2e/lib.sh"
skip() { echo "skipped: $*"; exit 77; }
[ -z "$SANITIZE" ] || skip "the image has a build of its own"
[ "$(id -u)" = 0 ] || skip "not root: a chroot cannot be made"
for tool in debootstrap buildah git; do
  command -v $tool >/dev/null || skip "$tool is not installed"
done
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
image() { buildah --root "$PWD/store" --runroot "$PWD/run" "$@"; }
clean() { rm -rf store run root context; }
trap clean EXIT
debootstrap --variant=minbase bookworm root http://deb.debian.org/debian >debootstrap.log 2>&1 ||
  skip "debootstrap fails here: $(tail -n 1 debootstrap.log)"
base=$(image from scratch) || fail "buildah makes no container"
image copy -q "$base" root / >copy.log
image commit -q "$base" docker.io/library/debian:12 >>copy.log 2>&1 || fail "no base image: $(tail -n 3 copy.log)"

# What a fresh clone has.
mkdir context
(cd "$SOURCE" && command git -c safe.directory='*' ls-files -z | xargs -0 cp --parents -t "$OLDPWD/context")
image bud --pull-never -t tessera context >build.log 2>&1 || fail "the image is not built: $(tail -n 20 build.log)"
box=$(image from --pull-never localhost/tessera)
inside() { image run "$box" -- "$@"; }
inside tessera --version | head -n 1
[ "$(inside id -un)" = trainer ] || fail "programs of the image run as $(inside id -un)"
inside tessera train gpt -n 2 --steps 20 --quiet || fail "train in the image"
inside tessera plugins list | grep -q 'comm *gloo .*/opt/tessera/' || fail "no comm-gloo in the image"
image copy -q "$box" "$SOURCE/examples/first" /home/trainer/first >>copy.log
image run --user root "$box" -- chown -R trainer /home/trainer/first
inside sh -ec 'cc first/train.c $(pkg-config --cflags --libs tessera) -o train
  tessera run -n 2 -- ./train | grep "step 1000 loss 0\.000"
  cmake -S first -B first/build >/dev/null && cmake --build first/build >/dev/null && first/build/train | grep "step 1000 loss 0\.000"' ||
  fail "a program in the image"
echo "the image is built and works"
