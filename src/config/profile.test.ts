import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { GyreError } from '../core/errors.ts'
import { HARNESS_PROFILES, HARNESS_PROFILE_NAMES, extendedProfile } from '../trajectory/profiles.ts'
import { BASE_PROFILES, loadProfile, parseProfile } from './profile.ts'

function refusal(content: string): { readonly code: string; readonly message: string } {
  try {
    parseProfile(content, 'mine.yaml')
  } catch (error) {
    if (error instanceof GyreError) return { code: error.code, message: error.message }
    throw error
  }
  throw new Error('the profile was taken')
}

test('the shipped profiles keep to the schema, and all of them can be extended', () => {
  for (const profile of HARNESS_PROFILES) {
    expect(parseProfile(JSON.stringify(profile), profile.name)).toEqual(profile)
  }
  expect(BASE_PROFILES).toEqual(HARNESS_PROFILE_NAMES)
})

test('a file of differences makes a whole profile', () => {
  const folder = mkdtempSync(join(tmpdir(), 'gyre-profile-'))
  try {
    writeFileSync(
      join(folder, 'mine.yaml'),
      'name: mine\nextends: pi\nthreadHeaders: [x-thread]\nsubAgent:\n  - header: x-parent\n  - systemIncludes: [You help another agent]\n',
    )
    const own = extendedProfile(loadProfile('mine.yaml', folder))
    expect(own.threadHeaders).toEqual(['x-thread'])
    expect(own.subAgent).toEqual([{ header: 'x-parent' }, { systemIncludes: ['You help another agent'] }])
    expect(own.summary).toEqual(HARNESS_PROFILES.find(({ name }) => name === 'pi')?.summary)
  } finally {
    rmSync(folder, { recursive: true })
  }
})

describe('a profile that cannot be used', () => {
  test.each([
    [
      'an unknown field',
      'name: x\nthreadHeader: [a]',
      'E_CONFIG_UNKNOWN_KEY',
      'mine.yaml:2:1',
      'did you mean threadHeaders?',
    ],
    [
      'an unknown condition',
      'name: x\nside:\n  - header: a\n    systemInclude: [b]',
      'E_CONFIG_UNKNOWN_KEY',
      'mine.yaml:4:5',
      'did you mean side.0.systemIncludes?',
    ],
    ['no name', 'side: []', 'E_CONFIG_MISSING', 'mine.yaml', 'name is missing'],
    ['a wrong kind', 'name: x\nsilenceLimitMs: soon', 'E_CONFIG_TYPE', 'mine.yaml:2:1', 'a whole number'],
    ['a header with capitals', 'name: x\nthreadHeaders: [X-Thread]', 'E_CONFIG_TYPE', 'mine.yaml:2', 'in lower case'],
    ['an empty signal', 'name: x\nside: [{}]', 'E_CONFIG_TYPE', 'mine.yaml:2', 'holds for every call'],
    [
      'a header text without its header',
      'name: x\nside: [{headerIncludes: a}]',
      'E_CONFIG_TYPE',
      'mine.yaml:2',
      'says which header',
    ],
    [
      'an unknown base',
      'name: x\nextends: claude',
      'E_CONFIG_TYPE',
      'mine.yaml:2:1',
      'one of generic, pi, claude-code',
    ],
    ['a list', '- name', 'E_CONFIG_TYPE', 'mine.yaml', 'the profile: expected a section'],
    ['no YAML', 'name: [', 'E_CONFIG_SYNTAX', 'mine.yaml:1', 'not valid YAML'],
  ])('%s', (_, content, code, place, words) => {
    const { code: found, message } = refusal(content)
    expect(found).toBe(code)
    expect(message).toContain(place)
    expect(message).toContain(words)
  })

  test('a file that is not there', () => {
    expect(() => loadProfile('none.yaml', tmpdir())).toThrow(expect.objectContaining({ code: 'E_CONFIG_NOT_FOUND' }))
  })
})
