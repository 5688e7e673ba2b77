# Sourced by .ci/run and .ci/nightly: runs parts, and says how long each took and how many tests passed.

reports=.tidemark/test
failed=0
times=()

# part NAME COMMAND...
part() {
  local name=$1 began=$SECONDS
  shift
  "$@" || { failed=1; echo "$name failed."; }
  times+=("$name: $((SECONDS - began)) s")
}

# finish REPORT...: prints each part's seconds and what failed, and ends with one plain line that counts tests.
finish() {
  printf '%s\n' "${times[@]}"
  PATH="$PWD/node_modules/.bin:$PATH" node .ci/count.mjs "$@" || failed=1
  exit "$failed"
}
