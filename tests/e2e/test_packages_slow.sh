#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 3600
# The Debian packages in a clean root (debootstrap, chroot, a mount namespace): lintian, install, the README's first example, a
# new plugin of each kind built and checked against them, remove, nothing left. Needs root and a Debian mirror.
. "$SOURCE/tests/e2e/lib.sh"
skip() { echo "skipped: $*"; exit 77; }
[ -z "$SANITIZE" ] || skip "packages are not built with the sanitizer"
[ "$(id -u)" = 0 ] || skip "not root: a chroot cannot be made"
for tool in debootstrap dpkg-deb dpkg-shlibdeps unshare cpack; do
  command -v $tool >/dev/null || skip "$tool is not installed"
done
unset TESSERA_PLUGIN_PATH
export DEBFULLNAME="Tessera test" DEBEMAIL="packages@lists.debian.org"
packages=${TESSERA_TEST_PACKAGES:-$PWD/packages} # a folder that has built them before saves the time
"$SOURCE/tools/packages" "$packages" >debs.txt || fail "the packages are not built: $(tail -n 5 "$packages/packages.log")"
mkdir debs
cp "$packages"/*.deb debs

# Lintian: errors fail, and so do warnings but those of CPack's own scripts and of a package that closes no Debian bug.
if command -v lintian >/dev/null; then
  lintian debs/*.deb >lintian.txt 2>lintian.log
  grep -v 'initial-upload-closes-no-bugs\|maintscript-calls-ldconfig' lintian.txt | grep '^[EW]:' >wrong.txt
  [ ! -s wrong.txt ] || fail "lintian: $(cat wrong.txt)"
  echo "lintian: $(wc -l <lintian.txt) lines, all expected"
fi

mirror=$(sed -n 's/^\(deb\|URIs:\) *\(\[[^]]*\] *\)\?\(http[^ ]*debian\)\/\? .*/\3/p; s/^URIs: *\(http[^ ]*\)/\1/p' \
  /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
debootstrap --variant=minbase bookworm root "${mirror:-http://deb.debian.org/debian}" >debootstrap.log 2>&1 ||
  skip "debootstrap fails here: $(tail -n 1 debootstrap.log)"
cp -r /etc/apt/apt.conf.d/* root/etc/apt/apt.conf.d/ 2>/dev/null
cp /etc/resolv.conf root/etc/resolv.conf
mkdir root/debs
cp debs/*.deb root/debs
cat >root/inside.sh <<'END'
set -eu
export DEBIAN_FRONTEND=noninteractive HOME=/root
apt-get -q update
apt-get -q install -y --no-install-recommends gcc libc6-dev make cmake pkg-config man-db
find / -xdev \( -path /proc -o -path /var -o -path /tmp -o -path /debs -o -path /root \) -prune -o -print | sort >/tmp/before
apt-get -q install -y --no-install-recommends /debs/*.deb
tessera --version
tessera plugins list
man tessera-train | grep -q 'weight-decay'
cd /tmp
# The README's first example: by CMake, by pkg-config, alone and on two ranks with each backend.
cp -r /usr/share/doc/tessera/examples/first first
cmake -S first -B first/build >/dev/null
cmake --build first/build
cc first/train.c $(pkg-config --cflags --libs tessera) -o train
./train | grep 'step 1000 loss 0\.000'
cc first/train.c $(pkg-config --cflags --libs tessera-static) -o train-static # links what libtessera-dev depends on
./train-static | grep 'step 1000 loss 0\.000'
for comm in shm gloo; do
  TESSERA_COMM=$comm tessera run -n 2 -- first/build/train | grep 'step 1000 loss 0\.000'
done
tessera train gpt -n 2 --steps 3 --quiet
for kind in wrap precision offload comm device; do
  tessera plugins new $kind mine mine-$kind
  cmake -S mine-$kind -B mine-$kind/build >/dev/null
  cmake --build mine-$kind/build >/dev/null
  tessera plugins check mine-$kind/build/libtessera-$kind-mine.so >check.txt || { cat check.txt; exit 1; }
  tail -n 1 check.txt
done
apt-get -q purge -y 'libtessera*' 'tessera*' >/dev/null
apt-get -q autoremove -y >/dev/null
find / -xdev \( -path /proc -o -path /var -o -path /tmp -o -path /debs -o -path /root \) -prune -o -print | sort >/tmp/after
# Libraries that apt brought and took away again may leave their own folders; ours may not leave anything.
diff /tmp/before /tmp/after | grep -i tessera && exit 1
# Logs and the pages that man has formatted are the system's own.
find / -xdev \( -path /proc -o -path /tmp -o -path /debs -o -path /root -o -path /var/log -o -path /var/cache/apt -o -path /var/cache/man \) -prune -o -iname '*tessera*' -print |
  grep . && exit 1
echo "nothing of tessera is left"
END
unshare -m --propagation private sh -c 'mount -t proc proc root/proc && mount -t tmpfs tmpfs root/dev/shm && exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 chroot root sh /inside.sh' \
  >inside.log 2>&1 || fail "in the clean root: $(tail -n 30 inside.log)"
tail -n 25 inside.log
[ -n "${TESSERA_TEST_KEEP:-}" ] || rm -rf root packages debs
