#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# processors: 2
# Every command in README and docs/ runs, page by page and in order, against an install in a home of its own. A command is a
# line of an indented block, or of a ```console block behind "$ ", that begins with a program, a variable or a path. Step
# counts, samples, gpt's own text, checks of a new plugin and the wrap policies that tune tries are cut; nothing else is changed, so a remark
# stands behind #, as a shell has it. Each line of such a block is a
# command, but of one that begins with "$ ", which shows output too. Before a block may stand:
#   <!-- not run: REASON -->      it cannot be run here
#   <!-- exit code: N -->         its last command ends with N
# A ```json block is the file that its page's commands name; C is compiled by e2e/test_guide, CMake by e2e/test_install.
. "$SOURCE/tests/e2e/lib.sh"
[ -z "$SANITIZE" ] || { echo "skipped: programs outside the tree are not built with the sanitizer"; exit 77; }
[ -e "$BUILD/libtessera.so" ] || { echo "skipped: no libtessera.so in this build"; exit 77; }
[ -e "$BUILD/plugins/libtessera-comm-shm.so" ] || { echo "skipped: no comm-shm in this build"; exit 77; }

export HOME=$PWD/home TESSERA_STEPS=4 TESSERA_SAMPLE=2 TESSERA_LOG=error
export CHECK_OPTIONS=$brief_checks
! command -v ccache >/dev/null || export CMAKE_C_COMPILER_LAUNCHER=ccache
export PATH=$HOME/tessera/bin:$PATH
mkdir -p home work/build
cmake --install "$BUILD" --prefix home/tessera >install.log 2>&1 || fail "install: $(tail -5 install.log)"
cd work || exit 1
ln -s "$BUILD" build/release
ln -s "$SOURCE/examples" "$SOURCE/tests" "$SOURCE/core" .
# The reader's own files: a text, tokens, a Llama and a GPT-2, and the programs of the pages.
head -c 40000 "$SOURCE/docs/memory.md" >input.txt
head -c 12000 input.txt >short.txt
mkdir tokens fineweb
awk 'BEGIN { for (i = 0; i < 20000; i++) printf "\\%03o\\000", i * 7 % 60 }' >ids
printf "$(cat ids)" | tee tokens/part.bin >fineweb/part.bin
cp -r "$SOURCE/tests/reference/data/hf-llama-tied" llama
ln -s llama/model.safetensors FILE.safetensors
sed 's/"vocab_size": *[0-9]*/"vocab_size": 256/; s/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 1024/' llama/config.json >config.json
ln -s "$PWD/llama" "$HOME/Llama-3.2-1B"
ln -s "$SOURCE/tests/reference/data/hf-gpt2" "$HOME/gpt2"
for page in blocks your-own-loop; do
  awk '/^<!-- not run:/ { skip = 1; next } /^```c$/ { on = !skip; next } /^```$/ { on = 0 } on { print } NF { skip = 0 }' "$SOURCE/docs/$page.md" >$page.c
  cc -std=gnu11 $page.c -I"$SOURCE/core/include" -L"$BUILD" -ltessera -lm -Wl,-rpath,"$BUILD" -o $page || fail "$page.md does not build"
done
ln -s your-own-loop train
ln -s your-own-loop.c train.c

# commands PAGE: MARK, LINE OF THE BLOCK and COMMAND per line, parted by the byte 037, continuations joined.
commands() {
  awk '
    function flush() { if (held != "") print mark "\037" begin "\037" held; held = "" }
    function take(text) {
      sub(/^ +/, "", text); sub(/^\$ /, "", text)
      if (held != "") { sub(/ *\\$/, " ", held); held = held text } else held = text
      if (held !~ /\\$/) flush()
    }
    function starts(text) {
      return text ~ /^ *(\$ )?([A-Z_]+=([^ \047]*|\047[^\047]*\047) )*((~|\.)?[a-z_0-9\/.-]*\/)?(tessera|cmake|ctest|cc|export|openssl|scp|ln|mkdir|cd|tail|pip|apt|python3|\.\/[a-z_]+|tools\/[a-z]+|tests\/[a-z_0-9\/]+(\.sh)?|\.ci\/run|build\/first\/train|[a-z]+\/test_matrix)( |$)/
    }
    /^<!-- (not run|exit code): / { mark = $0; gsub(/^<!-- | -->$/, "", mark); pending = 1; next }
    /^```/ {
      if (fence) { fence = console = 0; mark = ""; next }
      fence = 1; console = ($0 == "```console"); begin = NR; pending = 0; next
    }
    fence { if (console && (held != "" || $0 ~ /^\$ /)) take($0); next }
    /^ *[0-9]+\. / { next }
    /^       ? ?[^ ]/ || /^    [^ ]/ {
      if (!inside) { block = starts($0); shows = $0 ~ /^ *\$ /; begin = NR; inside = 1; pending = 0 }
      if (block && (held != "" || starts($0))) take($0)
      else if (block && !shows) { held = "false: no command: " $0; flush() }
      next
    }
    /^$/ { if (inside) { block = inside = 0; if (!pending) mark = "" } next }
    { block = inside = 0; if (!pending) mark = "" }' "$1"
}

ran=0 not=0
for page in "$SOURCE"/README.md "$SOURCE"/CONTRIBUTING.md "$SOURCE"/docs/*.md; do
  page=${page#"$SOURCE"/}
  awk '/^```json$/ { on = 1; next } /^```$/ { on = 0 } on' "$SOURCE/$page" >model.json.page
  [ ! -s model.json.page ] || mv model.json.page model.json
  last=""
  while IFS=$'\037' read -r mark begin command; do
    case $mark in 'not run: '?*) not=$((not + 1)); continue ;; esac
    [ -n "$command" ] || fail "$page:$begin: no command"
    want=0
    case $mark in 'exit code: '*) want=${mark#exit code: } ;; esac
    shorter=$(sed -E 's/--steps [0-9]+/--steps 4/g; s/--save-every [0-9]+/--save-every 2/g' <<<"$command")
    case $command in tessera\ tune\ *) shorter="TESSERA_WRAP=scopes $shorter" ;; esac
    case $command in export\ *) eval "$command"; continue ;; esac
    data=() # of gpt, for which the documentation takes longer than the steps
    case $command in *mnist*) ;; *tessera\ *\ gpt*) data=(env TESSERA_DATA="$PWD/short.txt") ;; esac
    code=0
    timeout 300 "${data[@]}" bash -c "$shorter" >../out 2>../err </dev/null || code=$?
    [ "$code" = "$want" ] || fail "$page:$begin: exit code $code of: $command
$(tail -n 20 ../err)$(tail -n 5 ../out)"
    last=$code
    ran=$((ran + 1))
  done < <(commands "$SOURCE/$page")
  [ -z "$last" ] || echo "$page"
done
[ $ran -gt 50 ] || fail "only $ran commands found"
echo "$ran commands ran, $not are marked"
