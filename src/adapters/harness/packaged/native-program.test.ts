import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { GyreError } from '../../../core/errors.ts'
import { nativeProgram } from './native-program.ts'

const folder = mkdtempSync(join(tmpdir(), 'gyre-native-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))
mkdirSync(join(folder, 'node_modules', 'one-musl'), { recursive: true })
writeFileSync(join(folder, 'node_modules', 'one-musl', 'run'), '')
const paths = { 'linux-x64': ['one/run', 'one-musl/run'], 'darwin-arm64': ['two/run'] }

test('is the first that npm brought for this system', () => {
  expect(nativeProgram('one', folder, paths, 'linux-x64')).toBe(join(folder, 'node_modules', 'one-musl', 'run'))
})

test.each([
  ['win32-x64', 'has no program for win32-x64: it runs on linux-x64, darwin-arm64'],
  ['darwin-arm64', 'two/run: choose another harness.version'],
])('says on %s what to do about it', (platform, words) => {
  let thrown: unknown
  try {
    nativeProgram('one', folder, paths, platform)
  } catch (error) {
    thrown = error
  }
  if (!(thrown instanceof GyreError)) throw new Error(`expected a GyreError, got ${String(thrown)}`)
  expect(thrown).toMatchObject({ code: 'E_HARNESS_PLATFORM', boundary: 'harness', retryable: false })
  expect(thrown.message).toContain(words)
})
