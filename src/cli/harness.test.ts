import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import picocolors from 'picocolors'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { HARNESS_RECIPES } from '../adapters/harness/packaged/recipes.ts'
import type { CliContext } from './context.ts'
import { reportFailure } from './failure.ts'
import { buildProgram } from './program.ts'

let home = ''
beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), 'gyre-harness-cli-'))
})
afterEach(() => rmSync(home, { recursive: true, force: true }))

async function gyre(...args: string[]): Promise<{ code: number; out: string; err: string }> {
  const out: string[] = []
  const err: string[] = []
  const context: CliContext = {
    cwd: home,
    home,
    env: {},
    print: (text) => out.push(text),
    warn: (text) => err.push(text),
    isTty: false,
    width: () => 100,
    colors: picocolors.createColors(false),
  }
  let code = 0
  try {
    await buildProgram(context).parseAsync(['node', 'gyre', 'harness', ...args])
  } catch (error) {
    code = reportFailure(error, context, args.includes('--json'))
  }
  return { code, out: out.join('\n'), err: err.join('\n') }
}

/** What an installation leaves behind, without npm. */
function putInCache(cache: string, name: string, version: string): string {
  const packageName = HARNESS_RECIPES.find((recipe) => recipe.name === name)?.packageName ?? ''
  const folder = join(cache, `${name}-${version}`)
  const place = join(folder, 'node_modules', packageName)
  mkdirSync(place, { recursive: true })
  writeFileSync(join(place, 'package.json'), JSON.stringify({ version }))
  writeFileSync(join(place, 'weight.bin'), Buffer.alloc(3 * 2 ** 20, 1))
  return folder
}

const DEFAULT_CACHE = ['.cache', 'gyre', 'harness']

test('lists every harness, with the size of what is installed', async () => {
  putInCache(join(home, ...DEFAULT_CACHE), 'pi', '0.73.1')
  putInCache(join(home, ...DEFAULT_CACHE), 'pi', '0.70.0')
  mkdirSync(join(home, ...DEFAULT_CACHE, 'codex-0.171.0'), { recursive: true })
  const { code, out } = await gyre('list')
  expect(code).toBe(0)
  expect(out).toMatch(/^pi +0\.73\.1 +OpenAI Chat Completions +3 ?MiB$/m)
  expect(out).toMatch(/^pi +0\.70\.0 /m)
  expect(out).toMatch(/^codex +0\.171\.0 +OpenAI Responses +no$/m)
  const listed = JSON.parse((await gyre('list', '--json')).out) as { harnesses: { name: string; bytes: number }[] }
  expect(new Set(listed.harnesses.map((row) => row.name))).toEqual(
    new Set(HARNESS_RECIPES.map((recipe) => recipe.name)),
  )
  expect(listed.harnesses[0]?.bytes).toBeGreaterThan(3 * 2 ** 20)
})

test('prints where an installed harness is, in the cache it is told', async () => {
  const folder = putInCache(join(home, 'mine'), 'opencode', '1.18.33')
  expect(await gyre('path', 'opencode', '--cache', 'mine')).toEqual({ code: 0, out: folder, err: '' })
  const { code, err } = await gyre('path', 'opencode')
  expect(code).toBe(1)
  expect(err).toContain('gyre harness install opencode@1.18.33')
})

test('installs nothing twice', async () => {
  const folder = putInCache(join(home, ...DEFAULT_CACHE), 'pi', '0.73.1')
  const { code, out, err } = await gyre('install', 'pi@0.73.1')
  expect({ code, err }).toEqual({ code: 0, err: '' })
  expect(out).toContain(folder)
})

test('names the nearest harness for one that there is not, and refuses what is no version', async () => {
  const end = await gyre('install', 'qwen-cod', '--json')
  expect(end.code).toBe(2)
  expect(JSON.parse(end.out)).toMatchObject({
    error: { code: 'E_CONFIG_HARNESS', message: expect.stringContaining('Did you mean qwen-code?') as string },
  })
  for (const text of ['pi@../../x', 'pi@latest', 'pi@', 'pi@1@2']) {
    expect(await gyre('path', text)).toMatchObject({ code: 2, err: expect.stringContaining('no version') as string })
  }
})

test('says what npm said when it cannot install', async () => {
  const { code, err } = await gyre('install', 'pi@0.0.0-none')
  expect(code).toBe(1)
  expect(err).toMatch(/installing @mariozechner\/pi-coding-agent 0\.0\.0-none/)
  expect(err).toMatch(/E_HARNESS_INSTALL/)
})
