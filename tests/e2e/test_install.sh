#!/bin/bash
# labels: e2e
# timeout: 300
# Installs into a prefix of its own; builds programs in C and C++ and a plugin against it; checks every exported symbol.
set -eu
[ -z "$SANITIZE" ] || { echo "skipped: programs outside the tree are not built with the sanitizer"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }
prefix=$PWD/prefix
exported() { nm -D --defined-only "$1" | awk '{ sub(/@.*/, "", $3); print $3 }' | sort | tr '\n' ' '; }
same() { [ "$1" = "$2" ] || fail "$3: found '$1', expected '$2'"; }

cmake --install "$BUILD" --prefix "$prefix" >install.log
lib=$(find "$prefix" -name 'libtessera.so')
[ -n "$lib" ] || fail "no libtessera.so below $prefix"
libdir=$(dirname "$lib")
same "$(readelf -d "$lib" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')" libtessera.so.0 "soname"
[ -e "$libdir/libtessera.so.0" ] || fail "no libtessera.so.0 beside $lib"

# Everything tessera.h declares is there and nothing else is.
sed -n 's/^TESS_API [^(]*\b\(tess_[a-z_]*\)(.*/\1/p' "$prefix/include/tessera/tessera.h" | sort | tr '\n' ' ' >declared
[ "$(wc -w <declared)" -gt 20 ] || fail "only $(wc -w <declared) declarations found in tessera.h"
same "$(exported "$lib")" "$(cat declared)" "symbols of libtessera.so"

# Programs.
if command -v c++ >/dev/null; then
  cmake -S "$SOURCE/tests/e2e/consumer" -B consumer -DCMAKE_PREFIX_PATH="$prefix" >consumer.log
  cmake --build consumer >>consumer.log || { cat consumer.log; fail "the consumer project does not build"; }
  same "$(consumer/consumer_c)" "1 rank, exit code 5" "consumer in C"
  same "$(consumer/consumer_cxx)" "1 rank, exit code 5" "consumer in C++"
  same "$(cat consumer/plugin_dir)" "$libdir/tessera" "tessera_PLUGIN_DIR"
else
  echo "no C++ compiler: the consumer project is left out"
fi
if command -v pkg-config >/dev/null; then
  export PKG_CONFIG_PATH=$libdir/pkgconfig
  same "$(realpath -m "$(pkg-config --variable=plugindir tessera)")" "$(realpath -m "$libdir/tessera")" "plugindir"
  # shellcheck disable=SC2046
  cc "$SOURCE/tests/e2e/consumer/main.c" $(pkg-config --cflags --libs tessera) -Wl,-rpath,"$libdir" -o pc_consumer
  same "$(./pc_consumer)" "1 rank, exit code 5" "consumer by pkg-config"
fi
for example in first gpt; do
  [ -e "$SOURCE/examples/$example/CMakeLists.txt" ] || continue
  cmake -S "$SOURCE/examples/$example" -B "$example" -DCMAKE_PREFIX_PATH="$prefix" >"$example.log"
  cmake --build "$example" >>"$example.log" || { cat "$example.log"; fail "examples/$example does not build"; }
done

# A plugin outside the tree, and every plugin of this tree.
"$prefix/bin/tessera" plugins new wrap every plugin >plugin.log
cmake -S plugin -B plugin/build -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_INSTALL_PREFIX="$prefix" >>plugin.log
cmake --build plugin/build --target install >>plugin.log || { cat plugin.log; fail "the plugin does not build"; }
[ -e "$libdir/tessera/libtessera-wrap-every.so" ] || fail "the plugin was not installed in $libdir/tessera"
# The programs use the plugins of the install, which is not where it was configured to be.
unset TESSERA_PLUGIN_PATH
model="--layers 5 --heads 2 --width 16 --context 16 --steps 3"
gpt/gpt_sharded $model >scopes.txt
TESSERA_WRAP=every:2 gpt/gpt_sharded $model >every.txt || fail "gpt_sharded with the wrap plugin"
diff scopes.txt every.txt || fail "the wrap plugin changes the numbers"
! TESSERA_WRAP=every:0 gpt/gpt_sharded $model >/dev/null 2>error.txt || fail "every:0 is taken"
grep -q 'expected every:K' error.txt || fail "every:0: $(cat error.txt)"

if [ -e "$libdir/tessera/libtessera-comm-gloo.so" ]; then
  "$prefix/bin/tessera" run -n 2 -- first/train >first.txt || fail "two ranks of examples/first"
  grep -q 'step 1000 loss 0\.000' first.txt || { cat first.txt; fail "examples/first on two ranks does not learn"; }
fi

# Each plugin of this tree builds by itself too, from a copy of its folder; those for CUDA share one, and do not.
launcher=$(command -v ccache || true)
for folder in "$SOURCE"/plugins/*/; do
  name=$(basename "$folder")
  grep -qs 'find_package(tessera' "$folder/CMakeLists.txt" || continue
  cp -r "$folder" "$name"
  if ! cmake -S "$name" -B "$name/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_C_COMPILER_LAUNCHER="$launcher" -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" >"$name.log" 2>&1 ||
    ! cmake --build "$name/build" >>"$name.log" 2>&1; then
    cat "$name.log"
    fail "plugins/$name does not build against the install"
  fi
done
for plugin in "$libdir"/tessera/*.so; do
  same "$(exported "$plugin")" "tess_plugin_note_v1 tess_plugin_open_v1 " "symbols of $(basename "$plugin")"
  readelf -SW "$plugin" | grep -q '\.tessera\.plugin' || fail "$(basename "$plugin") has no section .tessera.plugin"
done
echo "installed, built against and compared: $(ls "$libdir/tessera" | tr '\n' ' ')"
