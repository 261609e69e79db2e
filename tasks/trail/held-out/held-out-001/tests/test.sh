#!/bin/sh
# Scores answer.txt in the workspace against expected.txt beside this script.
logs="${LOGS_DIR:-/logs}/verifier"
expected="$(dirname "$0")/expected.txt"
mkdir -p "$logs"
[ -f answer.txt ] || : > answer.txt
awk -v share=0.2 '
  FILENAME == ARGV[1] { want[++n] = $0; next }
  { got[++m] = $0 }
  END {
    while (right < n && got[right + 1] == want[right + 1]) right++
    exact = (right == n && m == n) ? 1 : 0
    reward = exact ? 1 : share * right / n
    printf "{\"reward\": %.4f, \"exact\": %d, \"prefix\": %.4f}\n", reward, exact, right / n
  }' "$expected" answer.txt > "$logs/reward.json"
