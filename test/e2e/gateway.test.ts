/** @file `gyre gateway` as a process: keys, administration, a kill in the middle of a conversation, a clean end. */
import { readdirSync, readFileSync, statSync } from 'node:fs'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { openSqliteStore } from '../../src/adapters/store/sqlite/sqlite-store.ts'
import { executionId } from '../../src/core/ids.ts'
import type { ExecutionId } from '../../src/core/ids.ts'
import { byteTokenizerFiles } from '../../src/recording/byte-chat-codec.ts'
import { ExecutionTree } from '../../src/trajectory/tree.ts'
import type { GyreProcess } from '../support/gyre-process.ts'
import { Place } from '../support/gyre-process.ts'
import type { BaseServer } from '../support/servers/base-server.ts'
import { startSglangServer } from '../support/servers/sglang-server.ts'
import { startTinkerServer } from '../support/servers/tinker-server.ts'
import { startVllmServer } from '../support/servers/vllm-server.ts'

interface Announced {
  readonly executionId: string
  readonly baseUrl: string
  readonly apiKey: string
  readonly adminUrl: string
  readonly tokenFile: string
  readonly reopened: readonly string[]
}

interface Message {
  readonly role: string
  readonly content: string | null
  readonly tool_calls?: readonly { readonly id: string }[]
  readonly tool_call_id?: string
}

const SCENARIO = `name: two-turns
instruction: unused
rules:
  - turns:
      - { thinking: hm, shell: ls }
      - { text: Done with it. }
`

let place: Place

beforeEach(() => {
  place = new Place()
  place.write('scenario.yaml', SCENARIO)
})

afterEach(async () => place.close())

async function start(...args: readonly string[]): Promise<{ gyre: GyreProcess; at: Announced }> {
  return serve('--engine', `scripted:${place.file('scenario.yaml')}`, '--profile', 'pi', ...args)
}

async function serve(...args: readonly string[]): Promise<{ gyre: GyreProcess; at: Announced }> {
  const gyre = place.gyre('gateway', '--out', 'traces', '--json', ...args)
  const line = await gyre.until('the gateway served', () => /^\{"executionId".*\}$/m.exec(gyre.said())?.[0])
  return { gyre, at: JSON.parse(line) as Announced }
}

async function ask(
  { baseUrl, apiKey }: Pick<Announced, 'baseUrl' | 'apiKey'>,
  messages: readonly Message[],
  maxTokens = 4000,
): Promise<Message> {
  const response = await fetch(`${baseUrl}/v1/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'm', messages, max_tokens: maxTokens }),
  })
  const body = (await response.json()) as { choices?: { message: Message }[] }
  const message = body.choices?.[0]?.message
  if (message === undefined) throw new Error(JSON.stringify(body))
  return message
}

async function administer(
  at: Announced,
  method: string,
  path: string,
  body?: unknown,
): Promise<{ status: number; body: Record<string, unknown> }> {
  const response = await fetch(`${at.adminUrl}${path}`, {
    method,
    headers: { authorization: `Bearer ${readFileSync(at.tokenFile, 'utf8').trim()}` },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  })
  return { status: response.status, body: (await response.json()) as Record<string, unknown> }
}

function treeOf(id: ExecutionId): ExecutionTree {
  const store = openSqliteStore(place.file('traces', 'ledger.sqlite'), { access: 'read' })
  try {
    return ExecutionTree.fromRecords(id, store.calls(id))
  } finally {
    store.close()
  }
}

const HI: Message = { role: 'user', content: 'hi' }

test('a gateway killed in the middle goes on at the same URL with the same key and the same tree', async () => {
  const first = await start()
  const said = await ask(first.at, [HI])
  first.gyre.kill('SIGKILL')
  await first.gyre.ended

  const second = await start()
  expect(second.at).toMatchObject({ baseUrl: first.at.baseUrl, apiKey: first.at.apiKey, reopened: ['default'] })
  const result: Message = { role: 'tool', tool_call_id: said.tool_calls?.[0]?.id ?? '', content: 'a.txt' }
  expect((await ask(second.at, [HI, said, result])).content).toBe('Done with it.')

  const tree = treeOf(executionId('default'))
  expect(tree.calls().map(({ callId }) => callId)).toEqual(['default.0', 'default.1'])
  expect(tree.leaves()).toHaveLength(1)
  const closed = await administer(second.at, 'DELETE', '/executions/default')
  expect(closed).toMatchObject({
    status: 200,
    body: { state: 'closed', modelCalls: 2, distinctTokens: tree.tokenCount },
  })
  expect(closed.body['leaves']).toMatchObject([
    { role: 'main', fate: 'picked', trainedTokens: closed.body['sampledTokens'] },
  ])
  await expect(ask(second.at, [HI])).rejects.toThrow('E_GATEWAY_CLOSED')

  second.gyre.kill('SIGINT')
  expect(await second.gyre.ended).toMatchObject({ code: 0 })
  const printed = await place.gyre('tree', 'default', '--run', 'traces').ended
  expect(printed).toMatchObject({ code: 0 })
  expect(printed.out).toContain('Done with it.')
  // A closed execution stays closed; a new one gets a name of its own.
  const third = await start()
  expect(third.at).toMatchObject({ reopened: [], executionId: 'x1' })
  third.gyre.kill('SIGTERM')
  await third.gyre.ended
  expect(await place.leftovers()).toEqual([])
})

test('executions have keys of their own, and no key stands in the store or can be read by others', async () => {
  const { gyre, at } = await start()
  expect(await (await fetch(`${at.adminUrl}/health`)).json()).toEqual({ status: 'ok' })
  expect((await fetch(`${at.adminUrl}/executions`)).status).toBe(401)
  const other = await administer(at, 'POST', '/executions', {
    id: 'mine',
    profile: 'claude-code',
    sampling: { temperature: 0.5 },
  })
  expect(other).toMatchObject({ status: 201, body: { executionId: 'mine' } })
  expect(await administer(at, 'POST', '/executions', { id: 'mine' })).toMatchObject({ status: 409 })
  expect(await administer(at, 'POST', '/executions', { id: '../x' })).toMatchObject({ status: 400 })
  expect(await administer(at, 'POST', '/executions', { profil: 'pi' })).toMatchObject({ status: 400 })
  expect(await administer(at, 'DELETE', '/executions/nobody')).toMatchObject({ status: 404 })
  expect(await administer(at, 'PUT', '/executions')).toMatchObject({ status: 405 })
  const mine = other.body as unknown as Announced
  await ask(mine, [HI])
  await expect(ask({ baseUrl: mine.baseUrl, apiKey: at.apiKey }, [HI])).rejects.toThrow('E_GATEWAY_UNAUTHORIZED')
  expect((await administer(at, 'GET', '/executions')).body).toMatchObject({
    executions: [
      { executionId: 'default', state: 'open', profile: 'pi', modelCalls: 0 },
      { executionId: 'mine', state: 'open', profile: 'claude-code', modelCalls: 1 },
    ],
  })
  const token = readFileSync(at.tokenFile, 'utf8').trim()
  for (const name of readdirSync(place.file('traces')).filter((file) => file.startsWith('ledger'))) {
    const bytes = readFileSync(place.file('traces', name), 'latin1')
    for (const key of [at.apiKey, mine.apiKey, token]) expect(bytes.includes(key), name).toBe(false)
  }
  for (const file of [at.tokenFile, place.file('traces', 'gateway.secret')])
    expect(statSync(file).mode & 0o777).toBe(0o600)
  gyre.kill('SIGINT')
  const end = await gyre.ended
  expect(end.err).not.toContain(token)
})

/** Servers that speak the protocols of the real ones. */
const ENGINES: readonly (readonly [kind: string, start: () => Promise<BaseServer>, args: readonly string[]])[] = [
  ['sglang', async () => startSglangServer({ contextLength: 4096, logprobs: 'raw' }), []],
  ['vllm', async () => startVllmServer({ maxModelLen: 4096, script: () => undefined }), []],
  [
    'tinker',
    async () => startTinkerServer(),
    ['--engine-model', 'toy/model', '--engine-key-env', 'GYRE_TEST_TINKER_KEY'],
  ],
]

test.each(ENGINES)(
  '%s serves a call, and its tokens are recorded with their log-probs',
  async (kind, startServer, args) => {
    process.env['GYRE_TEST_TINKER_KEY'] = 'tml-test'
    const server = await startServer()
    try {
      for (const [name, text] of Object.entries(byteTokenizerFiles())) place.write(`tokenizer/${name}`, text)
      const { gyre, at } = await serve('--engine', kind, '--url', server.baseUrl, '--tokenizer', 'tokenizer', ...args)
      await ask(at, [HI], 8)
      gyre.kill('SIGINT')
      expect(await gyre.ended).toMatchObject({ code: 0 })
      const node = treeOf(executionId('default')).nodes().at(-1)
      if (node?.provenance !== 'policy') throw new Error('the last node is a sampled one')
      expect(node.tokenIds).toHaveLength(8)
      expect([...node.behaviorLogprobs].every((logprob) => logprob < 0)).toBe(true)
    } finally {
      await server.close()
    }
  },
)
