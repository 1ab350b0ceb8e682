#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# Plugins with one fault each: `tessera plugins check` names the fault, whatever the plugin does, and leaves no process.
. "$SOURCE/tests/e2e/lib.sh"
faulty=$BUILD/tests/conformance/bad/faulty
samples=$BUILD/tests/conformance/bad/plugins
[ -e "$faulty/comm_none.so" ] || { echo "skipped: the plugins with faults are not built"; exit 77; }
# A sanitizer reports a crash in its own way and ends the process with an exit code.
crash='(killed by signal 11 \(Segmentation fault\)|the plugin ended the process, with exit code [0-9]+)'
count=0

# caught FILE CHECKS SECONDS PATTERN: one of these checks fails, and its line matches.
caught() {
  local file=$1 only=$2 seconds=$3 pattern=$4 code=0
  "$TESSERA" plugins check "$file" --only "$only" --timeout "$seconds" >out 2>err || code=$?
  [ $code = 1 ] || fail "$file: exit code $code, expected 1: $(cat out err)"
  grep -E '^[a-z]+ +[a-z_]+ +FAILED ' out >failures
  grep -Eq -- "$pattern" failures || fail "$file: no failure says '$pattern': $(cat out)"
  ! grep -q 'passed, 0 failed' out || fail "$file: counted as passed"
  count=$((count + 1))
}
comm() { caught "$faulty/comm_$1.so" "comm/$2" "${4:-20}" "$3"; }
precision() { caught "$faulty/precision_$1.so" "$2" 20 "$3"; }
wrap() { caught "$faulty/wrap_$1.so" 'wrap/*' 20 "$2"; }
offload() { caught "$faulty/offload_$1.so" 'offload/*' 20 "$2"; }
optimizer() { caught "$faulty/optimizer_$1.so" "optimizer/$2" 20 "$3"; }
device() { caught "$faulty/device_$1.so" "device/$2" 20 "$3"; }

# The file.
precision extra_export 'static/*' 'exports 1 more than the descriptor and the open function: faulty_helper'
precision imports_getenv 'static/*' 'imports getenv: options come from host->option'
precision crashes_at_exit 'static/*' 'imports .*atexit.*: .*nothing of it runs while the host exits'
precision executable_stack 'static/*' 'asks for an executable stack'
precision relative_rpath 'static/*' "R(UN)?PATH './lib': libraries are searched in a directory that is not absolute"
precision fast_math 'static/*' 'its start-up code sets flush to zero'
precision undefined_symbol 'static/undef*' '1 symbols are in none of the libraries it names: nobody_has_this'
precision undefined_symbol 'abi/load' 'cannot be loaded: .*nobody_has_this'
precision links_core 'static/no_link*' 'links the core \(tess_last_error\)'
caught "$samples/wrong_magic.so" 'static/*' 20 'bad magic in the descriptor'
caught "$samples/newer_core.so" 'static/*' 20 'needs a core of ABI 1.900 or newer, this one has 1\.'
caught "$samples/wrong_major.so" 'static/*' 20 "plugin ABI 2\.[0-9]+, this is Tessera's ABI 1\."

# Loading and opening.
caught "$samples/changes_mode.so" 'abi/load' 20 'changes the denormal mode .* while it is loaded'
caught "$samples/missing_post.so" 'abi/table' 20 'mandatory slot post is missing'
caught "$samples/open_fails.so" 'abi/table' 20 'open gave TESS_E_DEVICE: no card'
precision reads_behind_host 'abi/shorter_host' "$crash, in open with a short host table"
precision reads_behind_host 'abi/poisoned_host' 'open with garbage behind host table gave TESS_E_VERSION'
precision refuses_longer_host 'abi/longer_host' 'open with a longer host table gave TESS_E_VERSION'
precision writes_output_on_failure 'abi/unknown_kind' 'open failed and wrote its outputs all the same'
precision null_error 'abi/unknown_kind' "$crash, in open without an error struct"
precision opens_once 'abi/repeated*' 'open number 2, with the others open, gave TESS_E_INVALID: already open'
precision leaks_file 'abi/nothing*' '20 times open and close leave 20 open files more'
precision leaks_memory 'abi/nothing*' '20 times open and close leave [0-9]+ KiB of memory more'
precision depends_on_rank 'precision/same_on_all_ranks' 'choose says something else on rank'
precision no_message 'abi/odd_arguments' 'failed with TESS_E_INVALID and no message'
precision uses_store_in_open 'abi/open_is_local' 'open uses the key-value store'
precision crashes_at_exit 'abi/table' 'killed by signal 6 \(Aborted\), in what runs when the process end'

# What plugin.h promises of every kind: short error structs, and memory of the host booked, stated and given back.
for kind in comm offload precision wrap optimizer device; do
  caught "$faulty/${kind}_short_error_unwritten.so" 'abi/other_error_sizes' 20 'an error struct of 32 bytes is not filled as far as it goes'
  caught "$faulty/${kind}_keeps_host_memory.so" 'abi/table' 20 'close leaves 4096 bytes of host->mem_alloc'
  caught "$faulty/${kind}_books_nowhere.so" 'abi/table' 20 'asks host->mem_alloc for category 0 and alignment 64, which it refuses'
  caught "$faulty/${kind}_takes_unstated.so" 'abi/table' 20 'takes 1073741824 bytes by host->mem_alloc, and states 0'
done
comm takes_unstated 'values_two_ranks' 'takes 10[0-9]* bytes by host->mem_alloc, and states [1-9][0-9]*$'
comm forgets_host_memory 'values_two_ranks' 'close leaves [0-9]+ bytes of host->mem_alloc'
comm short_error_unwritten 'bad_calls' 'post does not fill an error struct of 32 bytes as far as it goes'

# Collectives.
comm sum_order 'values_four_ranks' 'reduce_scatter f32>f32 sum .*element [0-9]+ is 0x[0-9a-f]+, not 0x'
comm short_count 'values_two_ranks' 'all_gather i32>i32 count 64: element 63 is'
comm writes_past_end 'values_one_rank' 'wrote beside recv, at'
comm forgets_three 'values_three_ranks' 'all_gather i32>i32 count 1: element 2 is'
comm scatters_in_place 'bad_calls' 'a reduce_scatter in place gave TESS_OK'
comm leaks_socket 'nothing_left_behind*' 'destroy leaves a file open'
comm max_loses_nan 'not_a_number' 'all_reduce (min|max) of NaN on one rank gives'
comm ignores_abort 'abort_while_waiting' 'did not end within [0-9.]+ s, in wait, after abort' 2
comm leaks_thread 'nothing_left_behind' 'destroy leaves a thread running'
comm leaves_file_open 'nothing_left_behind' 'destroy leaves a file open'
comm flushes_denormals 'values_one_rank' 'leaves the denormal mode \(flush to zero.* of the calling thread changed'
comm blocks_signals 'values_one_rank' 'leaves the signal mask of the calling thread changed'
comm init_crashes 'values_two_ranks' "rank [01]: $crash, in init"
comm init_hangs 'values_two_ranks' 'did not end within 1 s, in init' 1
comm calls_exit 'values_two_ranks' 'rank [01]: the plugin ended the process, with exit code 0, in post'
comm leaves_process 'values_one_rank' 'the plugin left a process running'
comm test_lies 'timeout_then_result' 'not pending while a rank is missing'
comm wait_ignores_timeout 'stalled_peer' 'did not end within 2 s, in wait with a timeout' 2
comm query_past_size 'describes_itself' 'query wrote past struct_size'
comm need_impure 'purity' 'need of operation .* depends on pointers, or leaves a part unwritten'
comm batch_at_once 'batch_in_order' 'rank [0-2] sent element [0-9]+ of (what|a block that) it receives in the same batch as'
comm apart_takes_turns 'apart_passes' 'a gather on the first communicator waits for what the other one was given: wait gave TESS_E_TIMEOUT'
comm apart_aborts_both 'apart_aborts' 'post on the first communicator gave TESS_E_ABORTED: comm faulty was aborted'
comm apart_registers_one 'apart_registers' 'post on the first communicator gave TESS_E_INVALID: comm faulty: that memory is registered with another'
comm apart_without_split 'apart_passes' 'claims TESS_COMM_APART, and cannot split'
comm parts_misplaced 'parts_three_ranks' 'all_to_all_v (i32|f32|f64|bf16)>(i32|f32|f64|bf16) count [0-9]+: element [0-9]+ is'
comm parts_too_long 'parts_three_ranks' '(all_to_all_v .* element [0-9]+ is|wrote beside recv, at)'
comm parts_unchecked 'bad_calls' "(an all_to_all_v without recv_parts|parts longer than count|another part from itself than to itself) gave TESS_OK|$crash"
comm register_writes_on_failure 'registered_memory' 'mem_register failed and wrote reg'

# Dtypes.
precision compute_unreadable 'precision/*' 'compute is .*, which the program does not read'
precision sums_in_bf16 'precision/*' 'sums are made in (bf16|f16)'
precision scales_by_three 'precision/*' 'not all are powers of two'
precision scale_grows_backwards 'precision/*' 'does not grow and back off'
precision gathers_wider 'precision/*' 'choose for f32: gathers in f32 what kernels read in bf16'
precision choice_unwritten 'precision/*' 'leaves a part unwritten'

# Wrap policies.
wrap drops_a_parameter 'parameter .* is in unit -[0-9]+, of 0 to'
wrap splits_tied 'tied to it, in'
wrap depends_on_rank 'assign says something else on rank'
wrap impure 'assign of .* again'
wrap empty_unit 'unit [0-9]+ of [0-9]+ has no parameter'
wrap reverses 'units are numbered in order of first use'
wrap writes_past_end "$crash, in assign"
wrap walks_by_sizeof "in longer structs|$crash, in assign"

# Offload.
offload place_impure 'place of region [0-9]+ says something else the second time'
offload place_changes_later 'place of region [0-9]+ says something else at call [0-9]+'
offload too_small 'region [0-9]+ of [0-9]+ bytes rests on the host with'
offload takes_twice 'region [0-9]+ rests on the device and takes [0-9]+ bytes on the host'
offload rests_elsewhere 'region [0-9]+ rests in 4, which is neither the device nor the host nor a store'
offload rests_in_no_store 'region [0-9]+ rests in a store, and the table has none'
offload pins_more 'region [0-9]+: more pinned than there is on the host'
offload parts_states 'the states of unit [0-9]+ rest in different places'
offload parts_masters 'the masters and their bf16 copy of unit [0-9]+ rest in different places'
offload walks_by_sizeof 'place of longer structs says something else of region'
offload store_not_zero 'at first: byte 4711 of the store is another'
offload store_forgets_offset 'what a step wrote: byte [0-9]+ of the store is another'
offload store_in_words 'a part: byte [0-9]+ of the store is another'
offload store_knows_no_other 'in memory (that it knows|beyond it): byte [0-9]+ of the store is another'
offload store_of_one_thread 'what one of several threads wrote: byte [0-9]+ of the store is another'

# Optimizers.
optimizer grain_of_zero 'descriptions' 'describe of 1 elements states grain 0, which is none'
optimizer block_of_zero 'descriptions' 'states blocks of 0, expected a power of two'
optimizer state_of_half_a_block 'descriptions' 'state 1 has a value for 32 elements, expected 1, or the block or row'
optimizer kernel_with_other_states 'descriptions' 'names kernel 3, and its state most is not fp32 with one value'
optimizer states_alike 'descriptions' 'two states have the name momentum'
optimizer describe_impure 'descriptions' 'describe says something else the second time'
optimizer choice_unwritten 'descriptions' 'describe says something else the second time, or leaves a part unwritten'
optimizer step_crashes 'cut_anywhere' "$crash"
optimizer step_fails 'cut_anywhere' 'step of 1 elements gave TESS_E_DEVICE: no steps today'
optimizer keeps_a_count 'cut_anywhere' 'cut: (the parameter has|state momentum has) other bits than in one piece'
optimizer depends_on_cut 'cut_anywhere' 'state most has other bits than in one piece'
optimizer writes_behind_piece 'nothing_else*' 'step writes outside of (its piece of )?the parameter'
optimizer clears_gradient 'nothing_else*' 'step writes outside of its piece of the gradient'
optimizer matrix_of_no_rows 'descriptions' 'states matrices of 0 rows and 1 columns, of which it is no stack'
optimizer matrix_without_work 'descriptions' 'states the grain of a matrix, and has no step and matrix'
optimizer matrix_behind_scratch 'matrix_alone' 'matrix writes outside of its scratch'
optimizer matrix_writes_next 'matrix_alone' 'matrix writes outside of its update'
optimizer matrix_leaves_update 'update_written' '63 elements, before: step does not write element 1 of update, or reads what was there'
optimizer matrix_reads_scratch 'matrix_any*' 'matrix with other bytes in its scratch: the parameter has other bits than with those before'
optimizer matrix_by_parts 'matrix_any*' 'matrix with share in three parts: the parameter has other bits than with share in one'
# Of such a fault only its own check speaks.
for fault in matrix_leaves_update matrix_reads_scratch matrix_by_parts; do
  [ "$("$TESSERA" plugins check "$faulty/optimizer_$fault.so" --only 'optimizer/*' | grep -c FAILED)" = 1 ] ||
    fail "$fault: $("$TESSERA" plugins check "$faulty/optimizer_$fault.so" --only 'optimizer/*')"
done
optimizer matrix_early 'nothing_else*' 'step writes outside of its piece of the parameter, before'
optimizer matrix_fails 'cut_anywhere' 'matrix gave TESS_E_DEVICE: no matrices today'

# Devices.
device event_nothing 'event*' 'after event_wait the last byte is|a passed event is pending|came before the fill'
device stream_wait_nothing 'events_order*' 'a copy on a stream that waits for an event came before the fill'
device copy_short 'copies' 'copy from kind . to . changed the bytes'
device fill_long 'fill' 'fill of 501 bytes at 64: byte 565 is 255'
device no_capacity 'capacity' 'one byte beyond the capacity gave TESS_OK, expected TESS_E_NOMEM'
device sum_order 'tree_sums' 'tree_sum of 3 .*: element [0-9]+ is'
device no_weight_decay 'optimizers' '(sgd|adam).*: parameters: element'

nothing_left
[ "$(wc -l <"$faulty/list")" -gt 60 ] || fail "only $(wc -l <"$faulty/list") faults are built"
while read -r name; do
  grep -q "${name#*_}" "$0" "$SOURCE/tests/e2e/test_optimizers.sh" || fail "$name is in no line of this test or of test_optimizers"
done <"$faulty/list"
echo "$count faults named"
