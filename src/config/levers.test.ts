import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { GyreError } from '../core/errors.ts'
import { derivedNumbers, dryRunReport } from './derived.ts'
import { parseConfig, type LoadedConfig } from './load.ts'

const context = { cwd: '/w', env: { KEY: 's3cret' }, file: '/w/q.yaml', label: 'q.yaml' }
const load = (elastic: string, ...overrides: string[]): LoadedConfig =>
  parseConfig(`tasks: { generate: {} }\nelastic:\n${elastic}`, context, overrides)

function refusals(elastic: string, ...overrides: string[]): readonly string[] {
  try {
    load(elastic, ...overrides)
  } catch (error) {
    if (error instanceof GyreError) return error.message.split('\n')
    throw error
  }
  return []
}

describe('a lever', () => {
  test('that is not named is what the policy has; one that is named wins', () => {
    expect(load('  policy: elastic\n').config.elastic).toMatchObject({ demandAware: true, placement: 'balanced' })
    expect(load('  policy: qwengyre\n').config.elastic).toMatchObject({ demandAware: false, placement: 'latest' })
    expect(load('  policy: colocate\n').config.elastic).toMatchObject({ carryOver: 0, kvHandover: false })
    expect(load('  demandAware: false\n  placement: latest\n').config.elastic).toMatchObject({
      demandAware: false,
      placement: 'latest',
    })
  })

  test('carryOver given alone is fixed; a bound moves it and leaves it a range', () => {
    expect(load('  carryOver: 0.75\n').config.elastic).toMatchObject({
      carryOver: 0.75,
      carryOverMin: 0.75,
      carryOverMax: 0.75,
    })
    expect(load('  slotsPerCell: 64\n  carryOver: 0.75\n  carryOverMax: 1.5\n').config.elastic).toMatchObject({
      carryOver: 0.75,
      carryOverMin: 0.75,
      carryOverMax: 1.5,
    })
    expect(load('  carryOverMin: 1\n  carryOverMax: 1\n').config.elastic.carryOver).toBe(1)
  })

  test.each([
    ['  policy: colocate\n  kvHandover: true\n', /^q\.yaml:4:3: colocate moves cells when nothing runs/],
    ['  policy: colocate\n  carryOverMax: 1\n', /^q\.yaml:4:3: colocate waits for every execution/],
    ['  policy: colocate\n  demandAware: true\n', /^q\.yaml:4:3: colocate moves every cell at once/],
    ['  policy: async\n  kvHandover: true\n', /^q\.yaml:4:3: the cells of async do not change roles/],
    ['  policy: qwengyre\n  stragglerQuorum: 0.8\n', /^q\.yaml:4:3: qwengyre is the published behaviour, which cuts/],
    ['  policy: qwengyre\n  overCommit: 1.5\n', /^q\.yaml:4:3: .*does not over-commit/],
    ['  policy: qwengyre\n  demandAware: true\n', /^q\.yaml:4:3: .*water level alone/],
    ['  policy: qwengyre\n  carryOverMax: 1\n', /^q\.yaml:4:3: .*phi is fixed/],
    ['  policy: qwengyre\n  earlyForward: true\n', /^q\.yaml:4:3: .*trains complete groups/],
    ['  policy: colocate\n  earlyForward: true\n', /^q\.yaml:4:3: colocate trains when every group is complete/],
    ['  carryOver: 1\n  carryOverMax: 0.5\n', /^q\.yaml:3:3: carryOver 1 is above carryOverMax 0\.5$/],
    ['  carryOver: 0.25\n  carryOverMin: 0.5\n  carryOverMax: 1\n', /carryOver 0\.25 is below carryOverMin 0\.5$/],
    ['  carryOverMin: 1\n  carryOverMax: 0.5\n', /^q\.yaml:3:3: carryOverMin 1 is above carryOverMax 0\.5$/],
    ['  maxStaleness: 0\n', /^q\.yaml:3:3: the steps of one burst alone make a staleness of 1/],
    ['  maxStaleness: 1\n  carryOver: 0.5\n', /^q\.yaml:4:3: carryOver 0\.5 allows more staleness than maxStaleness 1/],
  ])('that the policy cannot follow is refused with its line: %j', (text, message) => {
    expect(refusals(text)).toEqual([expect.stringMatching(message)])
  })

  test('earlyForward is off, and refused with an entropy bonus', () => {
    for (const policy of ['elastic', 'qwengyre', 'colocate', 'async']) {
      expect(load(`  policy: ${policy}\n`).config.elastic.earlyForward).toBe(false)
    }
    expect(dryRunReport(load('  earlyForward: true\n').config)).toMatch(/levers .*earlyForward/)
    expect(refusals('  earlyForward: true\n', 'training.entropyWeight=0.01')).toEqual([
      expect.stringMatching(/^q\.yaml:3:3: training\.entropyWeight 0\.01 is not linear in the advantage/),
    ])
  })

  test('maxStaleness bounds what carryOverMax may reach, whatever the steps of a burst', () => {
    expect(load('  slotsPerCell: 64\n  maxStaleness: 3\n  carryOverMax: 9\n').config.elastic.carryOverMax).toBe(2)
    expect(load('  maxStaleness: 1\n').config.elastic).toMatchObject({ carryOver: 0, carryOverMin: 0, carryOverMax: 0 })
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 6 }), fc.integer({ min: 0, max: 20 }), (mu, maxStaleness) => {
        fc.pre(maxStaleness >= mu - 1)
        const { config } = load(
          `  maxStaleness: ${maxStaleness}\n  carryOverMin: 0\n  carryOverMax: 64\n  slotsPerCell: 100000\n`,
          `training.stepsPerBurst=${mu}`,
        )
        expect(derivedNumbers(config).stalenessBound).toBeLessThanOrEqual(maxStaleness)
        // Another step of phi would break it.
        expect(maxStaleness - derivedNumbers(config).stalenessBound).toBeLessThan(mu)
      }),
    )
  })

  test('is in the dry-run report, and what it resolves to loads again to the same', () => {
    const first = load('  carryOver: 0.5\n  carryOverMax: 1\n  stragglerQuorum: 0.875\n')
    expect(dryRunReport(first.config)).toMatch(/levers +carryOver 0\.5, 0\.5 to 1, stragglerQuorum 0\.875 with grace/)
    const again = parseConfig(first.resolvedYaml, { ...context, file: '/else/config.resolved.yaml' })
    expect(again.config).toEqual({ ...first.config })
  })
})

describe('standalone engines', () => {
  test('add to the capacity, carry secrets, and keep them out of the resolved file', () => {
    const text =
      '  cells: 1\n  standalone:\n    - { kind: embedded, slots: 20 }\n' +
      '    - { kind: sglang, url: "http://gpu:30000", slots: 30, apiKey: env:KEY, headers: { X: env:KEY } }\n'
    const { config, resolvedYaml } = load(text)
    expect(config.elastic.standalone).toEqual([
      { kind: 'embedded', slots: 20, threads: 1, headers: {} },
      { kind: 'sglang', slots: 30, threads: 1, url: 'http://gpu:30000', apiKey: 's3cret', headers: { X: 's3cret' } },
    ])
    expect(derivedNumbers(config)).toMatchObject({ rolloutCapacity: 90, firstMoveAt: 50 })
    expect(dryRunReport(config)).toMatch(/1 cells x 40 slots \+ 50 of standalone engines/)
    expect(resolvedYaml).not.toContain('s3cret')
  })

  test.each([
    ['{ kind: sglang }', /^q\.yaml:4:\d+: sglang needs the base URL/],
    ['{ kind: vllm, url: "gpu:8000" }', /^q\.yaml:4:\d+: "gpu:8000" is no base URL/],
    ['{ kind: sglang, url: "http://a", model: m }', /sglang serves one model/],
    ['{ kind: embedded, url: "http://a" }', /url is only for a server you started/],
    ['{ kind: sglang, url: "http://a", apiKey: env:NOPE }', /the environment variable NOPE is not set/],
    [
      '{ kind: embedded, slot: 3 }',
      /unknown key elastic\.standalone\.0\.slot: did you mean elastic\.standalone\.0\.slots\?/,
    ],
  ])('are refused with their line: %s', (engine, message) => {
    expect(refusals(`  standalone:\n    - ${engine}\n`)).toEqual([expect.stringMatching(message)])
  })
})
