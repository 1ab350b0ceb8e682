# SPDX-License-Identifier: BSD-3-Clause
# Sourced with BUILD set. need_python MODULE…: $python is one that has them all: PYTHON, if it has; else that of one virtual
# environment for all tests, in the build folder, which installs from PyPI what it does not have. A skip where there is neither.
need_python() {
  local folder=$BUILD/tests/python log=$PWD/venv.log
  python=${PYTHON:-}
  [ -z "$python" ] || ! has_modules "$@" || return 0
  python=$folder/bin/python
  mkdir -p "$BUILD/tests"
  exec {python_lock}>"$folder.lock"
  flock "$python_lock"
  if ! has_modules "$@"; then
    [ -x "$python" ] || python3 -m venv "$folder" >"$log" 2>&1 || { echo "skipped: no python3 with venv: $(tail -n 1 "$log")"; exit 77; }
    "$python" -m pip install -q --timeout 60 --retries 1 "$@" >"$log" 2>&1 && has_modules "$@" ||
      { echo "skipped: ${PYTHON:+PYTHON, $PYTHON, does not have $*, and }PyPI cannot be reached: $(tail -n 1 "$log")"; exit 77; }
  fi
  exec {python_lock}>&-
}
has_modules() { "$python" -c "import $(echo "$*" | tr ' ' ,)" >/dev/null 2>&1; }
