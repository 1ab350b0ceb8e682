#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
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

# Everything the headers declare is there and nothing else is.
sed -n 's/^TESS_API [^(]*\b\(tess_[a-z_]*\)(.*/\1/p' "$prefix"/include/tessera/*.h | sort | tr '\n' ' ' >declared
[ "$(wc -w <declared)" -gt 20 ] || fail "only $(wc -w <declared) declarations found in the headers"
same "$(exported "$lib")" "$(cat declared)" "symbols of libtessera.so"
# Documents that installed headers name are installed.
find "$prefix" -name '*.h' -exec grep -hoE '[a-zA-Z/-]+\.md' {} + | sort -u >named
[ -s named ] || fail "no header names a document"
while read -r name; do [ -s "$prefix/share/doc/tessera/$name" ] || fail "a header names $name, which is not installed"; done <named
# Each link of an installed page leads to an installed file; those to plugins, to their sources.
[ -s "$prefix/share/doc/tessera/plugins/optimizer-lion/plugin.c" ] || fail "the sources of the plugins are not installed"
links=0
while IFS=: read -r page link; do
  link=${link#](} link=${link%[)#]}
  case $link in *:*) continue ;; esac
  [ -e "$(dirname "$page")/$link" ] || fail "${page#"$prefix"/} links to $link, which is not installed"
  links=$((links + 1))
done < <(grep -rHoE '\]\([^)# ]+[)#]' "$prefix/share/doc/tessera" --include=*.md)
[ $links -gt 300 ] || fail "only $links links found in installed pages"

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
  same "$(printf '#include <tessera/tessera.h>\nTESS_VERSION_MAJOR.TESS_VERSION_MINOR.TESS_VERSION_PATCH\n' |
    cc -E -P $(pkg-config --cflags tessera) - | tail -n 1 | tr -d ' ')" "$(pkg-config --modversion tessera)" "version of the header"
  same "$(realpath -m "$(pkg-config --variable=plugindir tessera)")" "$(realpath -m "$libdir/tessera")" "plugindir"
  same "$(ls "$(pkg-config --variable=kitdir tessera)/plugin_base.c")" "$(pkg-config --variable=kitdir tessera)/plugin_base.c" "kitdir"
  # shellcheck disable=SC2046
  cc "$SOURCE/tests/e2e/consumer/main.c" $(pkg-config --cflags --libs tessera) -o pc_consumer
  same "$(./pc_consumer)" "1 rank, exit code 5" "consumer by pkg-config"
  # One line is enough for a program that needs libm, too; the static variant needs no library of ours at run time.
  # shellcheck disable=SC2046
  cc "$SOURCE/examples/first/train.c" $(pkg-config --cflags --libs tessera) -o pc_train || fail "examples/first by pkg-config"
  # shellcheck disable=SC2046
  cc "$SOURCE/tests/e2e/consumer/main.c" $(pkg-config --cflags --libs tessera-static) -o static_consumer ||
    fail "consumer by tessera-static"
  same "$(./static_consumer)" "1 rank, exit code 5" "consumer, linked statically"
  ! readelf -d static_consumer | grep -q 'NEEDED.*libtessera' || fail "the static consumer needs libtessera.so"
fi
# The packages: what the static line links comes with libtessera-dev.
for name in hwloc ssl; do
  ! grep -q "^Libs:.* -l$name" "$libdir/pkgconfig/tessera-static.pc" ||
    grep -q "^set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS .*lib$name-dev" "$BUILD/CPackConfig.cmake" ||
    fail "libtessera-dev does not depend on lib$name-dev"
done
# What is installed loads its own plugins, also below the build tree as here, and the build those of the build.
plugin_dirs() { env -u TESSERA_PLUGIN_PATH "$@" plugins list --json | sed -n 's/.*"path":"\([^"]*\)\/[^/"]*".*/\1/p' | sort -u | tr '\n' ' '; }
if [ -x "$prefix/bin/tessera" ]; then
  same "$(plugin_dirs "$prefix/bin/tessera")" "$(realpath "$libdir")/tessera " "folders of an install"
  same "$(plugin_dirs "$TESSERA")" "$(realpath "$BUILD")/plugins " "folders of the build"
fi
# Components: a plugin that is there is found, an unknown one is not.
find_component() {
  mkdir -p component
  printf 'cmake_minimum_required(VERSION 3.22)\nproject(c C)\nfind_package(tessera REQUIRED COMPONENTS %s)\n' "$1" >component/CMakeLists.txt
  rm -rf component/build
  cmake -S component -B component/build -DCMAKE_PREFIX_PATH="$prefix" >component.log 2>&1
}
find_component precision-bf16 || { cat component.log; fail "COMPONENTS precision-bf16 is not found"; }
[ -s "$prefix/include/tessera/torch.hpp" ] && [ -s "$prefix/include/tessera/torch/state.hpp" ] || fail "tessera/torch.hpp is not installed, or not its parts"
if [ -x "$BUILD/tests/torch/test_torch" ]; then
  find_component torch || { cat component.log; fail "COMPONENTS torch is not found"; }
  cmake -S "$SOURCE/examples/torch" -B torch -DCMAKE_PREFIX_PATH="$prefix" >torch.log 2>&1 || { cat torch.log; fail "examples/torch"; }
fi
! find_component comm-carrier-pigeon || fail "an unknown component is found"
grep -q 'comm-carrier-pigeon' component.log || { cat component.log; fail "the message does not name the component"; }

# Guide, examples, man pages and completion.
for file in share/doc/tessera/README.md share/doc/tessera/docs/your-own-loop.md share/doc/tessera/examples/first/train.c \
  share/man/man1/tessera-train.1 share/man/man3/tessera.h.3 share/man/man3/tessera-inspect.h.3 share/man/man3/tessera-gpu.h.3 share/bash-completion/completions/tessera \
  share/zsh/site-functions/_tessera; do
  [ -s "$prefix/$file" ] || fail "$file is not installed"
done

examples="first gpt mesh"
command -v gfortran >/dev/null && examples+=" fortran"
for example in $examples; do
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

# Each plugin of this tree builds by itself too, from a copy of its folder; what those for CUDA share is installed. Nobody runs
# them, so that the compiler need not optimize.
launcher=$(command -v ccache || true)
# Their kernels for one architecture, not down to its code: the build has made the others from the same sources.
cached() { sed -n "s/^$1:[A-Z]*=\\(\/.*\\)/\\1/p" "$BUILD/CMakeCache.txt"; }
nvcc=$(cached TESSERA_NVCC)
if [ -x "$nvcc" ]; then
  cat >nvcc <<SH
#!/bin/bash
args=()
while [ \$# -gt 0 ]; do
  if [ "\$1" = -gencode ]; then shift; else args+=("\$1"); fi
  shift
done
exec "$nvcc" -gencode arch=compute_80,code=compute_80 "\${args[@]}"
SH
  chmod +x nvcc
fi
for folder in "$SOURCE"/plugins/*/; do
  name=$(basename "$folder")
  grep -qs 'find_package(tessera' "$folder/CMakeLists.txt" || continue
  cp -r "$folder" "$name"
  if ! cmake -S "$name" -B "$name/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=None \
    -DCMAKE_C_COMPILER_LAUNCHER="$launcher" -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" \
    ${nvcc:+-DTESSERA_NVCC="$PWD/nvcc" -DTESSERA_CUDA_INCLUDE="$(cached TESSERA_CUDA_INCLUDE)"} >"$name.log" 2>&1 ||
    ! cmake --build "$name/build" >>"$name.log" 2>&1; then
    cat "$name.log"
    fail "plugins/$name does not build against the install"
  fi
done
for plugin in "$libdir"/tessera/*.so; do
  same "$(exported "$plugin")" "tess_plugin_note_v1 tess_plugin_open_v1 " "symbols of $(basename "$plugin")"
  readelf -SW "$plugin" | grep -q '\.tessera\.plugin' || fail "$(basename "$plugin") has no section .tessera.plugin"
done
# The tree may be moved: program and library find the plugins where they are now.
mv "$prefix" moved
"$PWD/moved/bin/tessera" plugins list >list.txt
grep -q "$PWD/moved/.*libtessera-precision-bf16.so" list.txt || { cat list.txt; fail "the moved command does not find its plugins"; }
if [ -e moved/${libdir#"$prefix/"}/tessera/libtessera-comm-shm.so ]; then
  LD_LIBRARY_PATH=$PWD/moved/${libdir#"$prefix/"} "$PWD/moved/bin/tessera" run -n 2 -- first/train >first.txt ||
    fail "two ranks with the moved library"
fi
mv moved "$prefix"
echo "installed, built against and compared: $(ls "$libdir/tessera" | tr '\n' ' ')"
