/** @file What every harness is held to with sessions of its own: the same tests, with the facts of each. */
import { describe, expect, test } from 'vitest'
import type { HarnessRecipe } from '../../src/adapters/harness/packaged/recipe.ts'
import type { LeafRole } from '../../src/trajectory/node.ts'
import { expectSoundSession, importedTurns, playSession, rolesOf, scenarioFile } from './harness-session.ts'
import type { PlayedSession, PlayOptions } from './harness-session.ts'
import { moving, silent } from './restless-engines.ts'

const LIMIT_MS = 120_000
/** Longer than any limit of the harness, for a run that has the time. [ms] 0 leaves it out. */
const SILENCE_MS = Number(process.env['GYRE_TEST_SILENCE_MS'] ?? 0)

/** What is to come of one scenario. */
export interface ScenarioFacts {
  /** Of the workspace at the end. A text must be the whole file. */
  readonly files: Readonly<Record<string, string>>
  /** How many calls of each role. */
  readonly calls: Readonly<Partial<Record<LeafRole, number>>>
  readonly leaves: number
  /** Turns that the harness says were spoken where the policy did not speak them. */
  readonly imported?: number
  /** Requests the gateway refuses because they do not fit. */
  readonly refused?: number
  /** Requests that repeat another one, whose answer was lost. */
  readonly repeated?: number
  /** Its length depends on when the harness finds the window full: only the roles are compared. */
  readonly varies?: true
}

export interface HarnessSuite {
  readonly recipe: HarnessRecipe
  readonly version?: string
  /** By scenario: what follows `NAME-` in the name of its file. */
  readonly scenarios: Readonly<Record<string, ScenarioFacts>>
}

export function harnessSuite({ recipe, version = recipe.defaultVersion, scenarios }: HarnessSuite): void {
  const play = async (scenario: string, options: PlayOptions = {}): Promise<PlayedSession> =>
    playSession(recipe, version, scenarioFile(`${recipe.name}-${scenario}`), options)

  describe(`${recipe.name} ${version}`, () => {
    for (const [scenario, facts] of Object.entries(scenarios)) {
      test(`keeps every token of the scenario ${scenario}`, { timeout: LIMIT_MS }, async () => {
        await using session = await play(scenario, { files: Object.keys(facts.files) })
        expectSoundSession(session)
        expectFacts(session, facts)
        expect(Object.fromEntries(session.files)).toEqual(facts.files)
      })
    }

    const { task } = scenarios
    if (task === undefined) return
    test('sees nothing of engines that die and of calls that move in mid-stream', { timeout: LIMIT_MS }, async () => {
      await using session = await play('task', { files: Object.keys(task.files), onOpen: moving() })
      expectSoundSession(session)
      expectFacts(session, task)
      expect(Object.fromEntries(session.files)).toEqual(task.files)
      expect(session.stats.requestsMoved).toBeGreaterThan(3)
    })

    test.skipIf(SILENCE_MS === 0)(
      'waits for a silent engine as long as it is kept alive',
      { timeout: 4 * SILENCE_MS + LIMIT_MS },
      async () => {
        const file = `${recipe.name}-task`
        const rules = [{ when: {}, turns: [{ text: 'Said in two parts, with a long pause between them.' }] }]
        const scenario = scenarioFile(file, { rules, timeoutSeconds: 2000 })
        await using session = await playSession(recipe, version, scenario, silent(SILENCE_MS))
        expectSoundSession(session)
        expect(session.exchanges.filter(({ isComplete }) => !isComplete)).toEqual([])
        expect(session.exchanges).toHaveLength(session.records.length)
      },
    )
  })
}

function expectFacts(session: PlayedSession, facts: ScenarioFacts): void {
  const { calls, leaves, imported = 0, refused = 0, repeated = 0, varies } = facts
  const roles: Partial<Record<LeafRole, number>> = {}
  for (const role of rolesOf(session) as readonly LeafRole[]) roles[role] = (roles[role] ?? 0) + 1
  expect(session.exchanges).toHaveLength(session.records.length + refused + repeated)
  expect(session.exchanges.filter(({ status }) => status === 400)).toHaveLength(refused)
  if (varies === true) {
    expect(new Set(Object.keys(roles))).toEqual(new Set(Object.keys(calls)))
    return
  }
  expect(roles).toEqual(calls)
  expect({ leaves: session.tree.leaves().length, imported: importedTurns(session) }).toEqual({ leaves, imported })
}
