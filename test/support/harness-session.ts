/** @file A scenario with a real harness, and what must hold of every such session. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect } from 'vitest'
import { isInstalled } from '../../src/adapters/harness/packaged/install-package.ts'
import { PackagedHarness } from '../../src/adapters/harness/packaged/packaged-harness.ts'
import type { HarnessRecipe } from '../../src/adapters/harness/packaged/recipe.ts'
import { runScenario } from '../../src/cli/compose/scenario-session.ts'
import type { ScenarioOptions, SessionResult } from '../../src/cli/compose/scenario-session.ts'
import { figuresOf, missedGoals } from '../../src/recording/figures.ts'
import { parseScenario } from '../../src/recording/scenario.ts'
import type { Scenario } from '../../src/recording/scenario.ts'
import type { SandboxInstance } from '../../src/ports/sandbox.ts'

const CACHE = join(process.env['GYRE_CACHE'] ?? join(homedir(), '.cache', 'gyre'), 'harness')
const SCENARIOS = join(import.meta.dirname, '../golden/scenarios')

/** `npm run test:harness` installs what is missing; elsewhere a test of a harness that is not there is skipped. */
export function canRun({ packageName, name }: HarnessRecipe, version: string): boolean {
  const folder = join(CACHE, `${name}-${version}`)
  return process.env['GYRE_TEST_HARNESSES'] !== undefined || isInstalled({ packageName, version, folder })
}

/** @param scenario File name without `.yaml`. */
export function scenarioFile(scenario: string, over: Partial<Scenario> = {}): Scenario {
  const file = join(SCENARIOS, `${scenario}.yaml`)
  return { ...parseScenario(readFileSync(file, 'utf8'), file), ...over }
}

export interface PlayedSession extends SessionResult {
  /** Text files of the workspace by name, as the harness left them. */
  readonly files: ReadonlyMap<string, string>
}

export type PlayOptions = Partial<ScenarioOptions> & {
  /** Files of the workspace to keep, by name. */
  readonly files?: readonly string[]
}

export async function playSession(
  recipe: HarnessRecipe,
  version: string,
  scenario: Scenario,
  options: PlayOptions = {},
): Promise<PlayedSession> {
  const { files: names = [], ...over } = options
  const folder = mkdtempSync(join(tmpdir(), 'gyre-session-'))
  const files = new Map<string, string>()
  const inspect = ({ hostWorkspace }: SandboxInstance): void => {
    for (const name of names) files.set(name, readFileSync(join(hostWorkspace, name), 'utf8'))
  }
  const remove = (): void => rmSync(folder, { recursive: true, force: true })
  const make: ScenarioOptions['harness'] = ({ args, env }) =>
    new PackagedHarness(recipe, { version, cacheFolder: CACHE, extraArgs: args, env, events: true })
  try {
    const session = await runScenario({ scenario, harness: make, profile: recipe.name, folder, inspect, ...over })
    const dispose = async (): Promise<void> => {
      await session[Symbol.asyncDispose]()
      remove()
    }
    return { ...session, files, [Symbol.asyncDispose]: dispose }
  } catch (error) {
    remove()
    throw error
  }
}

/** What must hold of every session, however the harness echoes, retries, compacts or branches. */
export function expectSoundSession(session: SessionResult): void {
  const { ends, stats, failures, misses, missedFaults, tree, contexts, exchanges } = session
  expect(ends.map(({ exitCode, detail }) => `${exitCode} ${detail ?? ''}`)).toEqual(ends.map(() => '0 '))
  expect(stats).toMatchObject({ tokensMismatched: 0, harnessErrors: 0, held: 0 })
  expect({ failures, misses, missedFaults }).toEqual({ failures: [], misses: [], missedFaults: [] })
  expect(exchanges.filter(({ status }) => status !== 200 && status !== 400)).toEqual([])
  expect(missedGoals(figuresOf(tree, 0, { jMax: Infinity, seed: 1 }))).toEqual([])
  for (const call of tree.calls()) {
    const context = contexts.get(call.callId)
    const path = tree.pathTokenIds(call.node)
    const own = tree.node(call.node)?.tokenIds.length ?? 0
    expect(Buffer.from(path.slice(0, -own).buffer).equals(Buffer.from(Int32Array.from(context ?? []).buffer))).toBe(
      true,
    )
  }
}

/** Turns on the paths of the tree that the harness says were spoken and the policy did not speak there. */
export function importedTurns({ tree }: SessionResult): number {
  return tree
    .nodes()
    .filter((node) => node.provenance === 'harness')
    .reduce((sum, node) => sum + node.items.filter((item) => item.kind === 'assistant').length, 0)
}

/** Role of each call, in the order they were answered. */
export function rolesOf({ records }: SessionResult): readonly string[] {
  return records.map(({ role }) => role)
}

/** The threads, each as its roles joined, the calls of one thread under one name. */
export function threadsOf({ records }: SessionResult): readonly string[] {
  const roles = new Map<string, Set<string>>()
  for (const { thread, role } of records) roles.set(thread, (roles.get(thread) ?? new Set()).add(role))
  return [...roles.values()].map((set) => [...set].join('+')).sort((a, b) => a.localeCompare(b))
}
