import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { harnessContract } from '../../../ports/harness.contract.ts'
import type { HarnessEndpoint } from '../../../ports/harness.ts'
import type { ProcessEnd } from '../../../ports/sandbox.ts'
import { BubblewrapSandbox, probeBubblewrap } from '../../sandbox/bubblewrap/bubblewrap-sandbox.ts'
import { ProcessSandbox } from '../../sandbox/process/process-sandbox.ts'
import { isInstalled } from './install-package.ts'
import { PackagedHarness, type PackagedHarnessOptions } from './packaged-harness.ts'
import type { LaunchPlan, RecipeContext } from './recipe.ts'
import { claudeCode } from './recipes/claude-code.ts'

const cacheFolder = join(process.env['GYRE_CACHE'] ?? join(homedir(), '.cache', 'gyre'), 'harness')
const makeSandbox = (baseFolder: string): ProcessSandbox => new ProcessSandbox({ baseFolder, graceMs: 200 })
const makeBubblewrap = (baseFolder: string): BubblewrapSandbox => new BubblewrapSandbox({ baseFolder, graceMs: 200 })
const BASH = { name: 'Bash', argumentsFor: (command: string) => ({ command }) }
const probe = await probeBubblewrap()

describe.each(['2.1.332', '2.1.197'])('version %s', (version) => {
  const make =
    (over: PackagedHarnessOptions = {}) =>
    (): PackagedHarness =>
      new PackagedHarness(claudeCode, { version, cacheFolder, ...over })
  const installed = isInstalled({ folder: make()().folder, packageName: claudeCode.packageName, version })

  // npm run test:harness installs it.
  describe.skipIf(!installed && process.env['GYRE_TEST_HARNESSES'] === undefined)('installed', () => {
    harnessContract('claude-code', make(), makeSandbox, 'all', BASH)
    harnessContract('claude-code with events', make({ events: true }), makeSandbox, 'essentials', BASH)
    describe.skipIf(!probe.works)('without network', () => {
      harnessContract('claude-code in bubblewrap', make(), makeBubblewrap, 'essentials', BASH)
    })
  })
})

describe('what Claude Code says of its end', () => {
  const folder = mkdtempSync(join(tmpdir(), 'gyre-claude-'))
  afterAll(() => rmSync(folder, { recursive: true, force: true }))
  const ended: ProcessEnd = { exitCode: 0, signal: undefined, timedOut: false, durationMs: 1 }

  function classified(stdout: string, events: boolean, exitCode = 0): ProcessEnd {
    const file = join(folder, 'stdout')
    writeFileSync(file, stdout)
    const end = { ...ended, exitCode }
    return claudeCode.classifyEnd?.(end, file, file, { events } as unknown as RecipeContext) ?? end
  }

  test('an error in its last event is a failure, whatever the exit code', () => {
    const lines = ['{"type":"assistant"}', '{"is_error":true,"type":"result","result":"API Error: 400 no"}', '']
    expect(classified(lines.join('\n'), true)).toMatchObject({ exitCode: 1, detail: 'API Error: 400 no' })
    expect(classified(lines.join('\n'), true, 7)).toMatchObject({ exitCode: 7 })
  })

  test('a good end stays one, also with a line that was cut off and words that look like a result', () => {
    const said = '{"type":"assistant","text":"{\\"type\\":\\"result\\",\\"is_error\\":true}"}'
    const good = '{"type":"result","is_error":false,"result":"done"}'
    expect(classified(`${said}\n${good}\n{"type":"result","is_err`, true)).toEqual(ended)
    expect(classified('done', false)).toEqual(ended)
  })

  test('in text mode its last line is the reason', () => {
    expect(classified('working\nPrompt is too long\n', false, 1)).toMatchObject({ detail: 'Prompt is too long' })
  })
})

describe('what Claude Code is told', () => {
  const folder = mkdtempSync(join(tmpdir(), 'gyre-claude-'))
  afterAll(() => rmSync(folder, { recursive: true, force: true }))
  const native = join(folder, 'node_modules', `@anthropic-ai/claude-code-${process.platform}-${process.arch}`)
  mkdirSync(native, { recursive: true })
  writeFileSync(join(native, 'claude'), '')

  function planned(over: Partial<HarnessEndpoint>, instruction = 'i'): LaunchPlan {
    const limits = { contextWindow: 200_000, maxOutputTokens: 16_000 }
    const endpoint = { baseUrl: 'http://x', apiKey: 'k', model: 'm', ...limits, ...over }
    const context = { endpoint, folder, instruction, extraArgs: [], events: false, timeoutMs: 1000 }
    return claudeCode.plan(context as unknown as RecipeContext)
  }

  test('an instruction is never a command of its own', () => {
    expect(planned({}, '/help me').argv.slice(-2)).toEqual(['--', ' /help me'])
    expect(planned({}, '- help me').argv.slice(-2)).toEqual(['--', '- help me'])
  })

  test.each([
    [200_000, 16_000, '200000', undefined],
    [100_000, 16_000, '100000', undefined],
    // 42,000 of the 84,000 that the harness reckons with.
    [64_000, 16_000, '100000', '50'],
    [32_000, 1000, '100000', '27'],
    [2000, 2000, '100000', '1'],
  ])('a window of %d tokens with answers of %d', (contextWindow, maxOutputTokens, window, percent) => {
    const { env } = planned({ contextWindow, maxOutputTokens })
    expect(env['CLAUDE_CODE_AUTO_COMPACT_WINDOW']).toBe(window)
    expect(env['CLAUDE_AUTOCOMPACT_PCT_OVERRIDE']).toBe(percent)
  })
})
