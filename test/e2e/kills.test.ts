import { expect, test } from 'vitest'
import { DEFAULT_PLAN, killRuns } from '../kill/kill-runs.ts'

const LIMIT_MS = 240_000

/** `npm run test:kill` is the same with hundreds of kills. */
test(
  'a run whose processes are killed at random trains on what an undisturbed one trains on',
  { timeout: LIMIT_MS },
  async () => {
    const runs = await killRuns({
      ...DEFAULT_PLAN,
      kills: 8,
      seed: 1,
      steps: 8,
      pauseSteps: [0.05, 0.8],
      log: () => undefined,
    })
    expect(runs.reduce((sum, run) => sum + run.controlKills + run.cellKills, 0)).toBe(8)
    for (const run of runs) {
      expect(run.problems).toEqual([])
      expect(run).toMatchObject({ otherSamples: 0, otherEvidence: 0, sha256: run.referenceSha256 })
    }
  },
)
