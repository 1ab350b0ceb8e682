#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# The objects of train, plan, tune, launch and report, with the rooms below them, against libtessera.so: each symbol of the
# core that they need and the library does not export stands here with its reason. A symbol without a reason fails, and so
# does a listed symbol that nothing needs any more.
. "$SOURCE/tests/e2e/lib.sh"
command -v nm >/dev/null || { echo "skipped: nm not found (binutils)"; exit 77; }
[ -z "$SANITIZE" ] || { echo "skipped: a sanitizer renames what objects call"; exit 77; }
# Each line: a reason, a colon, the symbols without tess__.
cat >lacking <<'LIST'
The options of the command stand in the table that makes docs/variables.md, and are read by its rules: given_use options_add options_register option_bytes option_choice option_find option_flag option_int option_real option_text option_variable nearest
Lines of the command look like the engine's, with the rank, and are silent while alternatives are planned: log log_set_least status_name
A program's declarations are written and read by one table of fields: describe_path fields_of_block fields_of_options fields_of_param fields_read
One index of names serves the core and the readers of files: names_add names_find names_free
Safetensors files have one reader, one order and one header, the checkpoints': disk_read_all disk_sync_dir disk_write_all dtype_of_word dtype_word safetensors_arrange safetensors_close safetensors_header safetensors_list safetensors_open_source safetensors_read_raw tensor_dtype_bytes
Train names the checkpoint it goes on from before it has an engine: disk_real is_checkpoint manifest_free saved_manifest step_dir store_line store_list
Train compares the options of its optimizer, value by value, with those of the run that saved: kind_name plugin_close plugin_open
Launch starts the key-value server, which in a program without a launcher rank 0 starts: kv_server_catch_up kv_server_closing kv_server_connected kv_server_culprit kv_server_fits kv_server_joined kv_server_last_word kv_server_rank_ended kv_server_ready kv_server_silent kv_server_start kv_server_stop local_path secret_read seconds_option wire_is_loopback wire_route
A mesh is read by one parser, the core's: mesh_parse
Ranks are counted, and their threads chosen, before tess_open; a benchmark of blocks meets without it: control_close control_exchange control_open world_from_env
Plan says what the last run of a program held that no plan has: last_run_find
Plan and tune read the plan, instruction by instruction, to print and to simulate it: advice_of category_name change_text ledger_programs matrices_balance model_check_homes pass_name plan_of plugin_list point_name program_text selection_of saves_selectively shard_grad_bytes span_is_wait span_op span_unit stated_bytes states_of track_name
LIST
for room in train train_data plan tune launch report machine; do
  find "$BUILD/tools/CMakeFiles/tool_$room.dir" -name '*.o'
done >objects
find "$BUILD/tools/CMakeFiles/tessera_support.dir" "$BUILD"/tools/models/CMakeFiles/tessera_models*.dir -name '*.o' >>objects
[ "$(wc -l <objects)" -gt 100 ] || fail "only $(wc -l <objects) objects of the tools found"
exported=$(nm -D --defined-only "$BUILD/libtessera.so" | awk '{ print $NF }' | sed 's/@.*//' | sort -u)
# lacks OBJECTS: what they leave undefined and neither they nor the library define.
lacks() {
  xargs nm <"$1" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort -u >defined
  xargs nm -u <"$1" 2>/dev/null | awk '/ tess_/ { print $2 }' | sort -u | comm -23 - <(echo "$exported") | comm -23 - defined | sed 's/^tess__//'
}
sed 's/^.*: //' lacking | tr ' ' '\n' | sort >listed
[ -z "$(uniq -d listed)" ] || fail "listed twice: $(uniq -d listed)"
lacks objects >called
[ -z "$(comm -23 called listed)" ] || fail "needed, not in libtessera.so, and without a reason: $(comm -23 called listed)"
[ -z "$(comm -13 called listed)" ] || fail "nothing needs these any more: $(comm -13 called listed)"
# The linker says the same.
cc -shared -o all.so @objects -L"$BUILD" -ltessera -Wl,-z,defs 2>link || true
grep -oE 'undefined reference to .tess_[a-z0-9_]+' link | sed 's/.*tess_/tess_/; s/^tess__//' | sort -u >unresolved
[ -z "$(comm -3 unresolved listed)" ] || fail "the linker does not find, or finds: $(comm -3 unresolved listed)"
# Of the rooms that hold `struct tess`, only the plan, read by core/readers/planned.h.
for room in engine inspect recovery saving group proof; do
  nm --defined-only "$BUILD/core/CMakeFiles/tessera_$room.dir/$room"/*.o || fail "no objects of core/$room"
done | awk '$2 == "T" && $3 ~ /^tess__/ { print substr($3, 7) }' | sort -u >engine
[ "$(comm -12 called engine | tr '\n' ' ')" = "advice_of plan_of selection_of " ] || fail "of the engine only the plan is read: $(comm -12 called engine)"
# A planted call must be found.
printf 'void tess__arena_obtain(void); void planted(void) { tess__arena_obtain(); }\n' >planted.c
cc -c planted.c && { cat objects; echo planted.o; } >planted
lacks planted | grep -qx arena_obtain || fail "a planted call is not found"
# Arguments go through tess_options and the words of a command, not through the environment of this
# process. The ranks of plugins check are its children, which get theirs between fork and exec.
! grep -rnE '\b(un)?setenv\(|\bputenv\(' "$SOURCE/core" "$SOURCE/kit" "$SOURCE/tools" --include='*.c' --include='*.cc' | grep -v 'fesetenv\|tools/plugins/check/run.c' ||
  fail "a variable is set to pass an argument"
echo "$(xargs nm -u <objects 2>/dev/null | awk '/ tess_[a-z]/ { print $2 }' | sort -u | wc -l) functions of tessera.h, $(wc -l <called) of the core for $(wc -l <lacking) reasons"
