import { once } from 'node:events'
import { request } from 'node:http'
import { connect, createServer } from 'node:net'
import type { AddressInfo } from 'node:net'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { byteCodec } from '../../test/support/byte-codec.ts'
import { MemorySink, says, startRig } from '../../test/support/gateway-rig.ts'
import type { ExecutionEndpoint } from '../ports/forwarding.ts'
import { createGateway } from './gateway.ts'

const HI = { messages: [{ role: 'user', content: 'hi' }] }

async function post(url: string, body: string, headers: Record<string, string> = {}): Promise<Response> {
  return fetch(url, { method: 'POST', headers: { 'content-type': 'application/json', ...headers }, body })
}

function bearer({ apiKey }: ExecutionEndpoint): Record<string, string> {
  return { authorization: `Bearer ${apiKey}` }
}

interface Refused {
  readonly status: number
  readonly error: { readonly type: string; readonly message: string; readonly code?: string }
  readonly type?: string
}

async function refused(response: Response): Promise<Refused> {
  const body = (await response.json()) as Omit<Refused, 'status'>
  return { status: response.status, ...body }
}

test('the key of one execution opens nothing of another', async () => {
  await using rig = await startRig()
  rig.addEngine('e', says('mine'))
  const [one, two] = [rig.open('x1'), rig.open('x2')]
  for (const { id } of [one, two]) rig.route(id, 'e')
  expect(one.apiKey).not.toBe(two.apiKey)
  const chat = (execution: ExecutionEndpoint, headers: Record<string, string>): Promise<Response> =>
    post(`${execution.baseUrl}/v1/chat/completions`, JSON.stringify(HI), headers)
  expect(await refused(await chat(one, bearer(two)))).toMatchObject({
    status: 401,
    error: { type: 'invalid_request_error', code: 'E_GATEWAY_UNAUTHORIZED' },
  })
  expect(await refused(await post(`${one.baseUrl}/v1/messages`, '{}'))).toMatchObject({
    status: 401,
    type: 'error',
    error: { type: 'authentication_error' },
  })
  expect(rig.legs).toHaveLength(0)
  expect((await chat(one, bearer(one))).status).toBe(200)
  expect((await chat(two, { 'x-api-key': two.apiKey })).status).toBe(200)
  expect(rig.sink.of(one.id)).toHaveLength(1)
  expect(rig.sink.of(two.id)).toHaveLength(1)
})

test('unknown executions, routes and methods are refused in the dialect that was spoken', async () => {
  await using rig = await startRig()
  const execution = rig.open('x1')
  const { url } = rig.gateway
  const unknown = await refused(await post(`${url}/x/nobody/v1/messages`, '{}'))
  expect(unknown).toMatchObject({ status: 404, type: 'error', error: { type: 'not_found_error' } })
  expect(unknown.error.message).toContain('"nobody"')
  const route = await refused(await post(`${execution.baseUrl}/v1/embeddings`, '{}', bearer(execution)))
  expect(route).toMatchObject({ status: 404, error: { code: 'E_GATEWAY_UNKNOWN_ROUTE' } })
  const get = await fetch(`${execution.baseUrl}/v1/chat/completions`, { headers: bearer(execution) })
  expect(await refused(get)).toMatchObject({ status: 405, error: { code: 'E_GATEWAY_METHOD' } })
  expect((await refused(await fetch(`${url}/nowhere`))).status).toBe(404)
})

test('health needs no key, HEAD is answered, and the models list names the policy', async () => {
  await using rig = await startRig()
  const execution = rig.open('a/b ä')
  expect(await (await fetch(`${rig.gateway.url}/health`)).json()).toEqual({ status: 'ok' })
  expect((await fetch(execution.baseUrl, { method: 'HEAD' })).status).toBe(200)
  const models = async (headers: Record<string, string>): Promise<unknown> =>
    (await fetch(`${execution.baseUrl}/v1/models`, { headers: { ...bearer(execution), ...headers } })).json()
  expect(await models({})).toMatchObject({ object: 'list', data: [{ id: 'policy', object: 'model' }] })
  expect(await models({ 'anthropic-version': '2023-06-01' })).toMatchObject({ data: [{ type: 'model', id: 'policy' }] })
})

test.each(['with a length', 'without a length'])(
  'a body over the limit %s is refused before it is held',
  async (how) => {
    await using rig = await startRig({ limits: { bodyBytes: 1000 } })
    const execution = rig.open('x1')
    const size = 300_000
    const response = await new Promise<{ status: number | undefined; text: string }>((resolve, reject) => {
      const headers = how === 'with a length' ? { 'content-length': size } : {}
      const client = request(
        `${execution.baseUrl}/v1/messages`,
        { method: 'POST', headers: { ...headers, ...bearer(execution) } },
        (incoming) => {
          let text = ''
          incoming.setEncoding('utf8').on('data', (chunk: string) => (text += chunk))
          incoming.on('end', () => resolve({ status: incoming.statusCode, text }))
        },
      )
      client.on('error', reject)
      client.end('x'.repeat(size))
    })
    expect(response.status).toBe(413)
    expect(JSON.parse(response.text)).toMatchObject({ type: 'error', error: { type: 'request_too_large' } })
  },
)

test('the bound on model calls ends the loop with a clear message that no client retries', async () => {
  await using rig = await startRig()
  rig.addEngine('e', says('words'))
  const execution = rig.open('x1', { maxCalls: 1 })
  rig.route(execution.id, 'e')
  const chat = (content: string): Promise<Response> =>
    post(
      `${execution.baseUrl}/v1/chat/completions`,
      JSON.stringify({ messages: [{ role: 'user', content }] }),
      bearer(execution),
    )
  expect((await chat('a')).status).toBe(200)
  const second = await refused(await chat('b'))
  expect(second).toMatchObject({ status: 403, error: { code: 'E_GATEWAY_CALL_LIMIT' } })
  expect(second.error.message).toContain('1 model calls')
  expect(rig.gateway.stats().harnessErrors).toBe(0)
})

test('a busy port is a typed error that says what to do', async () => {
  const holder = createServer()
  await new Promise<void>((resolve) => void holder.listen(0, '127.0.0.1', resolve))
  const { port } = holder.address() as AddressInfo
  const deps = { codec: byteCodec, sink: new MemorySink(), model: 'm', maxContext: 10, port }
  await expect(createGateway(deps)).rejects.toMatchObject({
    code: 'E_GATEWAY_PORT',
    message: expect.stringMatching(/cannot listen on 127\.0\.0\.1:\d+: free it, or choose another/) as string,
  })
  holder.close()
})

test('odd targets, a nested abyss and a client that leaves in mid-body break nothing', async () => {
  await using rig = await startRig()
  const execution = rig.open('x1')
  const abyss = `{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"t","parameters":{"a":${'['.repeat(200_000)}${']'.repeat(200_000)}}}}]}`
  const deep = await refused(await post(`${execution.baseUrl}/v1/chat/completions`, abyss, bearer(execution)))
  expect(deep).toMatchObject({ status: 400, error: { code: 'E_WIRE_MALFORMED' } })
  for (const target of ['//', '/x/%E0%A4%A/v1/messages', '/x//v1/messages', '/x/x1']) {
    const socket = connect(rig.gateway.port, '127.0.0.1')
    socket.end(`GET ${target} HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n`)
    const [head] = (await once(socket, 'data')) as [Buffer]
    expect(head.toString()).toContain('404 Not Found')
  }
  const leaver = connect(rig.gateway.port, '127.0.0.1')
  const head = `POST /x/x1/v1/messages HTTP/1.1\r\nHost: gateway\r\nx-api-key: ${execution.apiKey}\r\nContent-Length: 99\r\n\r\n`
  leaver.write(`${head}{"messages"`, () => leaver.destroy())
  await once(leaver, 'close')
  expect((await fetch(`${rig.gateway.url}/health`)).status).toBe(200)
  expect(rig.failures).toEqual([])
})

test('hundreds of broken requests get typed refusals, and the gateway serves on', async () => {
  await using rig = await startRig()
  rig.addEngine('e', says('fine'))
  const execution = rig.open('x1')
  rig.route(execution.id, 'e')
  const sound = JSON.stringify({
    model: 'm',
    max_tokens: 5,
    tools: [{ type: 'function', function: { name: 't', parameters: {} } }],
    messages: [
      { role: 'system', content: 'S' },
      { role: 'user', content: [{ type: 'text', text: 'hi' }] },
      {
        role: 'assistant',
        content: null,
        tool_calls: [{ id: 'c', type: 'function', function: { name: 't', arguments: '{}' } }],
      },
      { role: 'tool', tool_call_id: 'c', content: 'r' },
    ],
  })
  const mutated = fc
    .tuple(fc.nat(sound.length), fc.nat(12), fc.constantFrom('', '"', '{', '}', '[]', 'null', '-1', ',', '\u0000', 'é'))
    .map(([at, cut, put]) => sound.slice(0, at) + put + sound.slice(at + cut))
  const path = fc.constantFrom('chat/completions', 'messages', 'messages/count_tokens')
  await fc.assert(
    fc.asyncProperty(fc.oneof(mutated, fc.string(), fc.json()), path, async (body, where) => {
      const response = await post(`${execution.baseUrl}/v1/${where}`, body, bearer(execution))
      expect([200, 400]).toContain(response.status)
      const json = (await response.json()) as { error?: { message: string } }
      if (response.status === 400) expect(json.error?.message).toMatch(/\w+/)
    }),
    { numRuns: 400 },
  )
  expect(rig.failures).toEqual([])
  expect(rig.gateway.stats()).toMatchObject({ tokensMismatched: 0, harnessErrors: 0 })
  const last = await post(`${execution.baseUrl}/v1/chat/completions`, JSON.stringify(HI), bearer(execution))
  expect(last.status).toBe(200)
})
