# Helpers for the end-to-end tests: . "$SOURCE/tests/e2e/lib.sh"
set -u
fail() { echo "FAILED: $*"; exit 1; }
[ ! -e CMakeLists.txt ] || fail "this is a folder of sources, and a test writes where it runs: use ctest, or an empty folder"

# Every process started from here on can be told by this mark in its environment.
export TESSERA_TEST_MARK="$PWD/$$"
# Threads that wait sleep. In scripts that train, decoders write no text at the end, each token of which is a pass, and no run
# measures products for its utilisation; a program would warn of the variables, which it does not read.
export OMP_WAIT_POLICY=passive
! grep -q '[" ]train ' "$0" || export TESSERA_SAMPLE=0 TESSERA_PEAK_FLOPS=1e11

# expect CODE COMMAND…: runs it with output to out and err, and checks the exit code.
expect() {
  local want=$1 got=0
  shift
  "$@" >out 2>err || got=$?
  [ "$got" = "$want" ] || fail "exit code $got, expected $want, of: $*
$(head -c 4000 out err)"
}

# one_line FILE TEXT: the file is this one line.
one_line() {
  [ "$(cat "$1")" = "$2" ] || fail "$1 is '$(cat "$1")', expected the one line '$2'"
}

# has_line FILE PATTERN: a whole line matches the extended pattern.
has_line() { grep -Eqx -- "$2" "$1" || fail "no line '$2' in $1: $(head -c 4000 "$1")"; }

# within SECONDS COMMAND…: repeats it until it succeeds.
within() {
  local tries=$(($1 * 50)) i
  shift
  for ((i = 0; i < tries; i++)); do
    if "$@"; then return 0; fi
    pause
  done
  return 1
}
# pause: 20 ms, without a process: nobody writes into this pipe.
exec {quiet}<> <(:)
pause() { read -rt 0.02 -u "$quiet" || :; }

# leftovers: the running processes with our mark, but this shell's own helpers; zombies are ended already.
leftovers() {
  local p pid
  set -- /proc/[0-9]*/environ # before grep starts, which would find itself
  for p in $(grep -lzsx "TESSERA_TEST_MARK=$TESSERA_TEST_MARK" "$@" 2>/dev/null); do
    pid=${p#/proc/} pid=${pid%/environ}
    [ "$pid" != "$$" ] && [ "$pid" != "$BASHPID" ] || continue
    case "$(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null)" in *test_*.sh*) continue ;; esac
    echo "$pid"
  done
}
none_left() { [ -z "$(leftovers)" ]; }
# process_of RANK [VARIABLE=VALUE]: the newest process of this test that began with this number, and with that variable. Not a child
# of one, in which plugins are tried out: such a child ends at once, and the rank survives its death.
process_of() {
  local word found
  found=$(printf '%s\n' /proc/[0-9]*/environ)
  for word in "TESSERA_TEST_MARK=$TESSERA_TEST_MARK" "RANK=$1" ${2:+"$2"}; do
    found=$(grep -lzsx -- "$word" $found) || [ -n "$found" ] || return 1
  done
  ps -o pid= -o ppid= -p "$(sed -E 's,/proc/([0-9]+)/environ,\1,' <<<"$found" | paste -sd,)" |
    awk '{ of[$1] = $2 } END { for (pid in of) if (!(of[pid] in of)) print pid }' | sort -n | tail -n 1 | grep .
}

# nothing_left: no process of this test runs any more, or soon: within 6 s, in which a silent peer is found, or in 30 s of which
# processors were scarce for the rest.
nothing_left() {
  local clock_began clock_scarce took waited
  start_clock
  within 30 none_left || fail "processes left: $(ps -o pid,stat,args -p "$(leftovers | paste -sd,)")"
  stop_clock
  [ $((took - waited)) -lt 6000 ] || fail "the last processes ran for $took ms more; processors were scarce for $waited ms of them"
}

# ends PID SECONDS: waits for a child; its exit code is in $code.
ends() {
  within "$2" gone "$1" || fail "process $1 still runs after $2 s"
  code=0
  wait "$1" 2>/dev/null || code=$?
}
gone() { # or a zombie; a name may hold spaces and brackets
  local stat
  ! read -r stat 2>/dev/null <"/proc/$1/stat" || [[ ${stat##*) } = [ZX]* ]]
}

milliseconds() { echo $(($(date +%s%N) / 1000000)); }
# scarce: the milliseconds so far in which someone waited for a processor, as the kernel counts them; 0 where it does not.
scarce() {
  local total=total=0
  { read -r _ _ _ _ total </proc/pressure/cpu; } 2>/dev/null || true
  echo $((${total#total=} / 1000))
}

# start_clock, stop_clock: how long something took is in `took`, and how much of that processors were scarce in `waited`.
start_clock() { clock_began=$(milliseconds) clock_scarce=$(scarce); }
stop_clock() { took=$(($(milliseconds) - clock_began)) waited=$(($(scarce) - clock_scarce)); }
# soon MILLISECONDS COMMAND…: between the clock's start and stop in COMMAND it takes less, the time aside in which processors
# were scarce; and never ten times as long.
soon() {
  "${@:2}"
  [ $((took - waited)) -lt "$1" ] && [ "$took" -lt $((10 * $1)) ] ||
    fail "${*:2}: it took $took ms, expected less than $1 ms; processors were scarce for $waited ms of them"
}

# pick_port: MASTER_PORT is a number that no other test here has before this shell ends, and that nobody listens on.
pick_port() {
  local folder
  folder=/tmp/tessera-test-ports-$(id -u)
  mkdir -p "$folder"
  for ((;;)); do
    MASTER_PORT=$((20000 + RANDOM % 10000))
    [ -z "${port_lock:-}" ] || exec {port_lock}>&-
    exec {port_lock}>"$folder/$MASTER_PORT"
    if flock -n "$port_lock" && ! (exec 3<>/dev/tcp/127.0.0.1/$MASTER_PORT) 2>/dev/null; then break; fi
  done
  export MASTER_PORT
}

# names_of_ours: what /dev/shm has of ours, whoever made it. A socket's name goes with its process.
names_of_ours() { ls -a /dev/shm | grep -i tessera | sort -u; }
# no_new_names BEFORE: what was not there before goes away again; other tests' names do when they end.
no_new_names() {
  settled() { [ -z "$(comm -13 "$1" <(names_of_ours))" ]; }
  within 60 settled "$1" || fail "left behind: $(comm -13 "$1" <(names_of_ours))"
}

# needs_doubles FILE…: a skip where the build has none of these, paths in it. on_double COMMAND…: runs it on the doubles.
needs_doubles() {
  local file
  for file in "$@"; do
    [ -e "$BUILD/$file" ] || { echo "skipped: no ${file##*/} in this build"; exit 77; }
  done
  doubles=$BUILD/tests/doubles
  [ -z "${SANITIZE:-}" ] || export HWLOC_PLUGINS_BLACKLIST=hwloc_pci.so # leaks a little
}
# brief_text: options for runs of decoders whose text does not matter: a short one to train on and to be judged by.
brief_text() { seq 1 1500 >brief.txt && echo "--data $PWD/brief.txt"; }
# brief_digits: the same for mnist, for which all images take longer than many steps: 512 to train on, 64 to be judged by.
brief_digits() {
  digits_of train 512 '\002\000'
  digits_of t10k 64 '\000\100'
  echo "--data $PWD/digits --batch 8"
}
digits_of() { # SET COUNT ITS BYTES
  mkdir -p digits
  { printf "\0\0\010\003\0\0$3\0\0\0\034\0\0\0\034" && head -c $(($2 * 28 * 28)) "$TESSERA"; } >"digits/$1-images-idx3-ubyte"
  { printf "\0\0\010\001\0\0$3" && printf '\0\001\002\003\004\005\006\007%.0s' $(seq $(($2 / 8))); } >"digits/$1-labels-idx1-ubyte"
}
# Of a new plugin's own test, what takes long is left to those who write one.
brief_checks="--skip comm/values_[ef]* --skip comm/large_* --skip comm/repeatable_five* --skip comm/stalled*"
on_double() { TESSERA_DOUBLE_RACES=1 LD_LIBRARY_PATH="$doubles" TESSERA_DOUBLE_LEAKS=${leaks:-99} TESSERA_DOUBLE_DELAY_US=${delay:-5} "$@"; }
# summary FIELD FILE: of the last line that a run writes with --json.
summary() { sed -n '/"event": *"summary"/s/.*"'"$1"'": *"\{0,1\}\([^",}]*\).*/\1/p' "$2"; }
# digest FILE: of the parameters, as its last line with one says.
digest() { grep -o '"params_digest":"[0-9a-f]*"' "$1" | tail -n 1; }
