#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# What train, plan, tune, launch and report call of the core beyond tessera.h, and why; all else links against
# libtessera.so. A call without a reason fails, and so does a reason that nothing needs any more.
. "$SOURCE/tests/e2e/lib.sh"
command -v nm >/dev/null || { echo "skipped: nm not found (binutils)"; exit 77; }
[ -z "$SANITIZE" ] || { echo "skipped: a sanitizer renames what objects call"; exit 77; }
# reason: extended pattern of the symbols, without tess__
cat >lacking <<'LIST'
tess_fail under the core's own name: fail
the options of a command stand in the one table that makes docs/variables.md: option_[a-z]+|parse_[a-z]+|seconds_option|nearest
messages have the form of the core's: log|log_set_least
an index of names, and file formats, that the core has too: names_[a-z]+|safetensors_[a-z_]+|checkpoint_[a-z_]+|ckpt_[a-z_]+|file_[a-z_]+|disk_[a-z_]+|is_checkpoint|store_[a-z_]+|manifest_[a-z_]+|saved_[a-z_]+|step_[a-z_]+|secret_[a-z_]+|step_dir|secret_read|saved_manifest|manifest_free|local_path|dtype_of_word|json_[a-z_]+
launch starts the core's own key-value server, and a rank chooses its threads before tess_open: kv_[a-z_]+|wire_[a-z_]+|now_ns|world_from_env|binding_[a-z]+
plan reads the plan itself, instruction by instruction, and simulates it: advice_of|category_name|change_text|track_name|ledger_[a-z]+|model_[a-z_]+|pass_name|plan_of|plugin_list|point_name|program_text|selection_of|simulate|span_[a-z]+|timeline_free
LIST
for room in train plan tune launch report; do
  find "$BUILD/tools/CMakeFiles/tool_$room.dir" -name '*.o'
done | grep -v '/binding\.c\.o$' >objects
[ "$(wc -l <objects)" -gt 30 ] || fail "only $(wc -l <objects) objects of the tools found"
xargs nm -u <objects 2>/dev/null | awk '/ tess__/ { print $2 }' | sort -u >called
[ -s called ] || fail "nm found no call"
patterns=$(sed 's/^.*: //' lacking | paste -sd '|')
while read -r symbol; do
  grep -Eqx "${patterns}" <<<"${symbol#tess__}" ||
    fail "$symbol is called, is in no header of the library, and is not listed with a reason"
done <called
while IFS= read -r line; do
  sed 's/^tess__//' called | grep -Eqx "${line##*: }" || fail "nothing needs this any more: $line"
done <lacking
# Nothing of the engine's room, whose symbols tessera.h offers.
nm --defined-only "$BUILD"/core/CMakeFiles/tessera_engine.dir/engine/*.o | awk '$2 == "T" && $3 ~ /^tess__/ { print $3 }' | sort -u >engine
comm -12 called engine >of_engine
[ "$(tr '\n' ' ' <of_engine)" = "tess__advice_of tess__plan_of tess__selection_of " ] ||
  fail "of the engine only the plan is read, by core/readers/planned.h: $(cat of_engine)"
xargs nm -u <objects 2>/dev/null | awk '/ tess_[a-z]/ { print $2 }' | sort -u >public
exported=$(nm -D --defined-only "$BUILD/libtessera.so" | awk '{ print $NF }' | sed 's/@.*//' | sort -u)
! comm -23 public <(echo "$exported") | grep -vx 'tess_launch.*' | grep . || fail "called, but libtessera.so does not export it"
# Arguments go through tess_options and the words of a command, not through the environment of this
# process. The ranks of plugins check are its children, which get theirs between fork and exec.
! grep -rnE '\b(un)?setenv\(|\bputenv\(' "$SOURCE/core" "$SOURCE/tools" --include='*.c' --include='*.cc' | grep -v 'fesetenv\|tools/plugins/check/run.c' ||
  fail "a variable is set to pass an argument"
echo "$(wc -l <public) functions of tessera.h, $(wc -l <called) of the core for $(wc -l <lacking) reasons"
