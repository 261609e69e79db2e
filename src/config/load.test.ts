import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parse } from 'yaml'
import { afterAll, describe, expect, test } from 'vitest'
import { GyreError } from '../core/errors.ts'
import { loadConfig, parseConfig, type LoadedConfig } from './load.ts'

const context = {
  cwd: '/home/ada',
  home: '/home/ada',
  env: { TOKEN: 's3cret' },
  file: '/home/ada/ex/q.yaml',
  label: 'ex/q.yaml',
}
const MINIMAL = 'tasks: { generate: {} }\n'
const load = (text: string, ...overrides: string[]): LoadedConfig => parseConfig(text, context, overrides)

/** The error of a bad config: its code, and its message line by line. */
function refusal(text: string, ...overrides: string[]): { code: string; lines: string[]; details: unknown } {
  try {
    load(text, ...overrides)
  } catch (error) {
    if (error instanceof GyreError) {
      return { code: error.code, lines: error.message.split('\n'), details: error.details['problems'] }
    }
    throw error
  }
  throw new Error('the config was accepted')
}

describe('a run file', () => {
  test('needs nothing but tasks; every default is filled in, durations in ms, sizes in bytes, paths absolute', () => {
    const { config, warnings } = load(MINIMAL)
    expect(config).toMatchObject({
      name: 'q',
      seed: 1,
      harness: { name: 'pi', timeoutMs: 60_000, env: {} },
      tasks: { generate: { family: 'trail', train: 64 } },
      sandbox: { kind: 'auto', memoryBytes: 0, fileBytes: 256 * 2 ** 20 },
      rollout: { groupSize: 8, overallTimeoutMs: 300_000 },
      gateway: { host: '127.0.0.1', port: 0, bodyLimitBytes: 256 * 2 ** 20, keepAliveMs: 15_000 },
      paths: { runs: '/home/ada/runs', cache: '/home/ada/.cache/gyre' },
      runFolder: '/home/ada/runs/q',
    })
    expect(warnings).toEqual([])
  })

  test('overrides win over the file, the last over the first, and their values are YAML', () => {
    const { config } = load(
      `${MINIMAL}rollout:\n  groupSize: 2\n  temperature: 0.5\n`,
      'rollout.groupSize=3',
      'rollout.groupSize=4',
      'harness.args=[--thinking, "off"]',
      'harness.env={ A: "1" }',
      'harness.timeout=2m30s',
    )
    expect(config.rollout).toMatchObject({ groupSize: 4, temperature: 0.5 })
    expect(config.harness).toMatchObject({ args: ['--thinking', 'off'], env: { A: '1' }, timeoutMs: 150_000 })
  })

  test('paths count from the file, those of overrides from the working directory', () => {
    const text = 'tasks: { train: ../t/train, heldOut: /abs/held }\n'
    expect(load(text).config.tasks).toMatchObject({ train: '/home/ada/t/train', heldOut: '/abs/held' })
    expect(load(text, 'tasks.train=mine').config.tasks.train).toBe('/home/ada/mine')
    expect(load(MINIMAL, 'paths.runs=~/r', 'name=x').config.runFolder).toBe('/home/ada/r/x')
  })

  test('what it resolves to loads again to the same config, and never holds a secret', () => {
    const first = load(MINIMAL, 'harness.env={ KEY: env:TOKEN }', 'gateway.keepAlive=1m')
    expect(first.config.harness.env).toEqual({ KEY: 's3cret' })
    expect(first.resolvedYaml).not.toContain('s3cret')
    expect(parse(first.resolvedYaml)).toMatchObject({ gateway: { keepAlive: '1m' } })
    const again = parseConfig(first.resolvedYaml, { ...context, file: '/elsewhere/config.resolved.yaml', cwd: '/' })
    expect(again.config).toEqual(first.config)
  })

  test('an empty section means its defaults', () => {
    expect(load(`${MINIMAL}rollout:\ntraining: {}\n`).config.rollout.groupSize).toBe(8)
  })
})

describe('a wrong run file is refused', () => {
  test('for an unknown key, with the line and the nearest name', () => {
    expect(refusal(`${MINIMAL}rollout:\n  groupsize: 4\n`)).toMatchObject({
      code: 'E_CONFIG_UNKNOWN_KEY',
      lines: ['ex/q.yaml:3:3: unknown key rollout.groupsize: did you mean rollout.groupSize?'],
    })
    expect(refusal(`${MINIMAL}traning: {}\n`).lines).toEqual([
      'ex/q.yaml:2:1: unknown key traning: did you mean training?',
    ])
  })

  test('for a key in the wrong section, with its right place', () => {
    expect(refusal(`${MINIMAL}training: { groupSize: 4 }\n`).lines[0]).toMatch(/did you mean rollout\.groupSize\?$/)
  })

  test('for an unknown key near nothing, with the names that are known', () => {
    expect(refusal(`${MINIMAL}checkpoints: { xyzzy: 1 }\n`).lines[0]).toMatch(/known here: keep, durability$/)
  })

  test.each([
    ['rollout: { groupSize: eight }', 'rollout.groupSize: expected a whole number, found the text "eight"'],
    ['rollout: { groupSize: 2.5 }', 'rollout.groupSize: expected a whole number, found 2.5'],
    ['rollout: { groupSize: 1 }', 'rollout.groupSize: expected at least 2, found 1'],
    ['rollout: { topP: 2 }', 'rollout.topP: expected at most 1, found 2'],
    ['rollout: 5', 'rollout: expected a section, found 5'],
    ['rollout: [1]', 'rollout: expected a section, found a list'],
    ['warmstart: { enabled: 1 }', 'warmstart.enabled: expected true or false, found 1'],
    [
      'elastic: { policy: eager }',
      'elastic.policy: expected one of elastic, qwengyre, colocate, async, found the text "eager"',
    ],
    ['harness: { timeout: 60 }', 'harness.timeout: expected text, found 60'],
    [
      'harness: { timeout: 60x }',
      'harness.timeout: expected a duration such as 90s, 15m or 2h30m, found the text "60x"',
    ],
    ['harness: { args: x }', 'harness.args: expected a list, found the text "x"'],
    ['harness: { env: { A: 1 } }', 'harness.env.A: expected text, found 1'],
    [
      'gateway: { bodyLimit: 5 bananas }',
      'gateway.bodyLimit: expected a size such as 512MiB or 2GB, or "0" for no limit, found the text "5 bananas"',
    ],
    [
      'name: a/b',
      'name: expected letters, digits, dots, dashes and underscores: it names the run folder, found the text "a/b"',
    ],
  ])('for a wrong value: %s', (line, message) => {
    const { code, lines } = refusal(`${MINIMAL}${line}\n`)
    expect([code, lines]).toEqual(['E_CONFIG_TYPE', [expect.stringMatching(/^ex\/q\.yaml:2:\d+: /)]])
    expect(lines[0]?.replace(/^\S+ /, '')).toBe(message)
  })

  test('for a missing section', () => {
    expect(refusal('seed: 2\n')).toMatchObject({
      code: 'E_CONFIG_MISSING',
      lines: ['ex/q.yaml: tasks is missing: expected a section'],
    })
    expect(refusal('').code).toBe('E_CONFIG_MISSING')
  })

  test('for everything at once', () => {
    const { lines, details } = refusal(`${MINIMAL}seed: x\nrolout: {}\nharness:\n  args: 1\n`)
    expect(lines).toHaveLength(3)
    expect(details).toContainEqual(
      expect.objectContaining({ code: 'E_CONFIG_TYPE', path: 'seed', place: 'ex/q.yaml:2:1' }),
    )
  })

  test('for broken YAML, with the place', () => {
    expect(refusal('tasks: {\nseed: 1')).toMatchObject({
      code: 'E_CONFIG_SYNTAX',
      lines: [expect.stringMatching(/^ex\/q\.yaml:2:\d+: not valid YAML/)],
    })
    expect(refusal('seed: 1\nseed: 2\n').lines[0]).toMatch(/unique/)
  })

  test('for a wrong override, which is named instead of a line', () => {
    expect(refusal(MINIMAL, 'rolout.groupSize=4')).toMatchObject({
      code: 'E_CONFIG_UNKNOWN_KEY',
      lines: ['override rolout.groupSize=4: unknown key rolout: did you mean rollout?'],
    })
    expect(refusal(MINIMAL, 'rollout.groupSize=many').lines).toEqual([
      'override rollout.groupSize=many: rollout.groupSize: expected a whole number, found the text "many"',
    ])
    expect(refusal(MINIMAL, '__proto__.x=1').code).toBe('E_CONFIG_UNKNOWN_KEY')
  })

  test.each(['--steps', 'steps', '=4', 'a..b=1'])('for an override of no form: %s', (text) => {
    expect(refusal(MINIMAL, text)).toMatchObject({
      code: 'E_CONFIG_OVERRIDE',
      lines: [expect.stringContaining('such as rollout.groupSize=4')],
    })
  })

  test('for an override whose value is not YAML', () => {
    expect(refusal(MINIMAL, 'harness.args=[a')).toMatchObject({ code: 'E_CONFIG_OVERRIDE' })
  })

  test('for a secret that is not set', () => {
    expect(refusal(MINIMAL, 'harness.env={ KEY: env:NOPE }')).toMatchObject({
      code: 'E_CONFIG_SECRET',
      lines: [expect.stringMatching(/harness\.env\.KEY: the environment variable NOPE is not set/)],
    })
  })

  test.each([
    ['tasks: {}', /give the folders/],
    ['tasks: { train: a, heldOut: b, generate: {} }', /not both/],
    ['tasks: { train: a, heldOut: b }\nwarmstart: { enabled: true }', /warmstart needs tasks\.generate/],
    [`${MINIMAL}harness: { name: command }`, /needs argv/],
    [`${MINIMAL}harness: { argv: [x] }`, /only for harness command/],
    [`${MINIMAL}policy: { init: folder }`, /needs policy\.folder/],
    [`${MINIMAL}policy: { model: { heads: 3 } }`, /multiple of 8/],
    [`${MINIMAL}rollout: { maxTokens: 4096 }`, /leaves no room/],
  ])('for fields that contradict each other: %s', (text, message) => {
    const { code, lines } = refusal(text)
    expect(code).toBe('E_CONFIG_CONFLICT')
    expect(lines[0]).toMatch(message)
  })

  test('when training could never start, with the numbers', () => {
    const { code, lines } = refusal(`${MINIMAL}elastic:\n  carryOver: 2\n  slotsPerCell: 16\n`)
    expect(code).toBe('E_CONFIG_CAPACITY')
    expect(lines[0]).toMatch(/^ex\/q\.yaml:3:3: training could never start: up to 64 .* hold 16 \(1 x 16 slots\)/)
    expect(load(MINIMAL, 'elastic.cells=1', 'elastic.carryOver=0', 'elastic.slotsPerCell=64').warnings).toEqual([])
    expect(refusal(MINIMAL, 'elastic.policy=async', 'elastic.trainingCells=2').code).toBe('E_CONFIG_CAPACITY')
  })
})

test('a carry-over that colocate ignores is a warning; executions that queue for a slot are not', () => {
  expect(load(MINIMAL, 'elastic.slotsPerCell=16').warnings).toEqual([])
  expect(load(MINIMAL, 'elastic.policy=colocate').warnings).toEqual([])
  const colocate = load(MINIMAL, 'elastic.policy=colocate', 'elastic.carryOver=0.5')
  expect(colocate.warnings).toEqual([expect.stringContaining('carryOver 0.5 is taken as 0')])
  expect(colocate.config.elastic.carryOver).toBe(0)
})

describe('loadConfig', () => {
  const folder = mkdtempSync(join(tmpdir(), 'gyre-config-'))
  afterAll(() => rmSync(folder, { recursive: true }))

  test('names a run file that is not there and says what to give', () => {
    expect(() => loadConfig('nope.yaml', [], { cwd: folder, env: {} })).toThrow(
      expect.objectContaining({ code: 'E_CONFIG_NOT_FOUND', message: expect.stringContaining('nope.yaml') as string }),
    )
  })

  test('reads a file and names it relative to the working directory', () => {
    writeFileSync(join(folder, 'a.yaml'), `${MINIMAL}sed: 1\n`)
    expect(() => loadConfig('a.yaml', [], { cwd: folder, env: {} })).toThrow(
      /^a\.yaml:2:1: unknown key sed: did you mean seed\?/,
    )
  })
})
