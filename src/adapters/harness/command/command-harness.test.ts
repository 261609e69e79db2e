import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { hasCode } from '../../../core/errors.ts'
import { harnessContract } from '../../../ports/harness.contract.ts'
import { BubblewrapSandbox, probeBubblewrap } from '../../sandbox/bubblewrap/bubblewrap-sandbox.ts'
import { ProcessSandbox } from '../../sandbox/process/process-sandbox.ts'
import { CommandHarness } from './command-harness.ts'

const folder = mkdtempSync(join(tmpdir(), 'gyre-command-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

/** A whole agent in a few lines: it asks the model, runs the command it is given, and asks again. */
const AGENT = `
import { execSync } from 'node:child_process'
const tools = [{ type: 'function', function: { name: 'bash', description: 'runs', parameters: { type: 'object' } } }]
const messages = [{ role: 'user', content: process.argv[2] }]
for (;;) {
  const response = await fetch(process.env.OPENAI_BASE_URL + '/chat/completions', {
    method: 'POST',
    headers: { authorization: 'Bearer ' + process.env.OPENAI_API_KEY, 'content-type': 'application/json' },
    body: JSON.stringify({ model: process.env.GYRE_MODEL, messages, tools, stream: true }),
  })
  const text = await response.text()
  if (!response.ok) { console.error(text); process.exit(1) }
  const deltas = text.split('\\n').filter((l) => l.startsWith('data: {')).flatMap((l) => JSON.parse(l.slice(6)).choices)
  const call = deltas.find((c) => c.delta.tool_calls)?.delta.tool_calls[0]
  if (!call) break
  messages.push({ role: 'assistant', content: '', tool_calls: [call] })
  let output = ''
  try { output = execSync(JSON.parse(call.function.arguments).command, { encoding: 'utf8' }) } catch (e) { output = String(e) }
  messages.push({ role: 'tool', tool_call_id: call.id, content: output })
}
`
writeFileSync(join(folder, 'agent.mjs'), AGENT)

const make = (): CommandHarness =>
  new CommandHarness({
    argv: [process.execPath, join(folder, 'agent.mjs'), '{instruction}'],
    readOnlyFolders: [folder],
  })

harnessContract('command', make, (baseFolder) => new ProcessSandbox({ baseFolder, graceMs: 200 }))

const probe = await probeBubblewrap()
const reason = probe.works ? '' : ` (not tested: ${probe.reason})`
describe.skipIf(!probe.works)(`command${reason}`, () => {
  harnessContract('command in bubblewrap', make, (baseFolder) => new BubblewrapSandbox({ baseFolder, graceMs: 200 }))
})

test.each([
  ['no-such-agent', 'PATH /usr/bin'],
  ['/no/such/agent', 'there'],
])('says where it looked for %s', async (program, where) => {
  const harness = new CommandHarness({ argv: [program], path: '/usr/bin' })
  const error: unknown = await harness.prepare(() => undefined).catch((e: unknown) => e)
  expect(hasCode(error, 'E_HARNESS_NOT_FOUND')).toBe(true)
  expect(String(error)).toContain(`"${program}"`)
  expect(String(error)).toContain(where)
})
