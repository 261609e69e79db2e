/** @file Writes trail tasks as Harbor task folders. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { answerText, PARTIAL_SHARE, stopText, type TrailTask } from './trail.ts'

const TASK_TOML = `version = "1.0"

[metadata]
category = "lookup"
tags = ["generated", "trail"]

[agent]
timeout_sec = 60.0

[verifier]
timeout_sec = 20.0
`

const DOCKERFILE = `FROM debian:bookworm-slim
WORKDIR /workspace
COPY . /workspace
`

/** Counts leading lines that are right: work that stopped half-way earns its share. */
const TEST_SH = `#!/bin/sh
# Scores answer.txt in the workspace against expected.txt beside this script.
logs="\${LOGS_DIR:-/logs}/verifier"
expected="$(dirname "$0")/expected.txt"
mkdir -p "$logs"
[ -f answer.txt ] || : > answer.txt
awk -v share=${PARTIAL_SHARE} '
  FILENAME == ARGV[1] { want[++n] = $0; next }
  { got[++m] = $0 }
  END {
    while (right < n && got[right + 1] == want[right + 1]) right++
    exact = (right == n && m == n) ? 1 : 0
    reward = exact ? 1 : share * right / n
    printf "{\\"reward\\": %.4f, \\"exact\\": %d, \\"prefix\\": %.4f}\\n", reward, exact, right / n
  }' "$expected" answer.txt > "$logs/reward.json"
`

function solutionOf(task: TrailTask): string {
  return `#!/bin/sh\n${task.stops.map((stop) => `echo ${stop.code} >> answer.txt`).join('\n')}\n`
}

/** Writes one folder per task below `folder`; returns the folders in order. */
export function writeTrailTasks(tasks: readonly TrailTask[], folder: string): readonly string[] {
  return tasks.map((task) => {
    const root = join(folder, task.name)
    const put = (path: string, text: string, mode = 0o644): void => {
      const file = join(root, path)
      mkdirSync(join(file, '..'), { recursive: true })
      writeFileSync(file, text, { mode })
    }
    put('task.toml', TASK_TOML)
    put('instruction.md', `${task.instruction}\n`)
    put('environment/Dockerfile', DOCKERFILE)
    for (const stop of [...task.stops, ...task.decoys]) put(`environment/${stop.file}`, stopText(stop))
    put('tests/test.sh', TEST_SH, 0o755)
    put('tests/expected.txt', answerText(task))
    put('solution/solve.sh', solutionOf(task), 0o755)
    return root
  })
}
