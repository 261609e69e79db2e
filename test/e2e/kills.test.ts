import { expect, test } from 'vitest'
import { DEFAULT_PLAN, killRuns } from '../kill/kill-runs.ts'

const LIMIT_MS = 240_000

/** `npm run test:kill` is the same with hundreds of kills. */
test(
  'a run whose processes are killed at random trains on what an undisturbed one trains on',
  { timeout: LIMIT_MS },
  async () => {
    const [run, ...more] = await killRuns({
      ...DEFAULT_PLAN,
      kills: 8,
      seed: 1,
      steps: 6,
      log: () => undefined,
    })
    expect(more).toEqual([])
    expect(run?.problems).toEqual([])
    expect(run).toMatchObject({ otherSamples: 0, sha256: run?.referenceSha256 })
    expect((run?.controlKills ?? 0) + (run?.cellKills ?? 0)).toBe(8)
  },
)
