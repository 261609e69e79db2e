import { Agent, request } from 'node:http'
import { expect, test } from 'vitest'
import { byteCodec } from '../../test/support/byte-codec.ts'
import { startRig, turn } from '../../test/support/gateway-rig.ts'
import type { Rig } from '../../test/support/gateway-rig.ts'
import { mutatedBody, mutatedEnvelope, picked } from '../../test/support/wire-mutations.ts'
import type { Envelope } from '../../test/support/wire-mutations.ts'
import { wireSamples } from '../../test/support/wire-samples.ts'
import type { DialectOfSample, WireSample } from '../../test/support/wire-samples.ts'
import { faultInAnswer, faultInError } from '../../test/support/wire-verdicts.ts'
import type { WireAnswer } from '../../test/support/wire-verdicts.ts'
import type { ExecutionId } from '../core/ids.ts'
import type { AssistantItem, Json } from '../core/items.ts'
import { hashSeed, seededRng } from '../core/rng.ts'
import type { Rng } from '../core/rng.ts'
import { wireRoute } from '../wire/routes.ts'

const REQUESTS = Number(process.env['GYRE_TEST_REQUESTS'] ?? 10_000)
const SEED = Number(process.env['GYRE_TEST_SEED'] ?? 20_261_201)
/** How long one answer may take. [ms] */
const ANSWER_MS = 10_000
const CLIENTS = 8

/** One of two executions that run at the same time, with everything of it that must not reach the other. */
interface Side {
  readonly id: ExecutionId
  readonly baseUrl: string
  readonly apiKey: string
  readonly marker: string
  readonly samples: readonly WireSample[]
}

interface Shot {
  readonly side: Side
  readonly envelope: Envelope
  readonly body: string
  /** The dialect that must be spoken; undefined when the path is no longer its. */
  readonly dialect: DialectOfSample | undefined
  /** Nothing may be answered to it. */
  readonly isStranger: boolean
}

const KEY_HEADERS: Readonly<Record<DialectOfSample, readonly [name: string, prefix: string]>> = {
  anthropic: ['x-api-key', ''],
  'openai-chat': ['authorization', 'Bearer '],
  'openai-responses': ['authorization', 'Bearer '],
  gemini: ['x-goog-api-key', ''],
}

function isServed({ path }: WireSample): boolean {
  const [bare = '', query = ''] = path.split('?')
  return wireRoute(bare, {}, query) !== undefined
}

function openSide(rig: Rig, name: string): Side {
  const endpoint = rig.open(name)
  rig.route(endpoint.id, 'e')
  const marker = `PLANTED-IN-${name.toUpperCase()}`
  return { ...endpoint, marker, samples: wireSamples(marker).filter(isServed) }
}

function soundShot(side: Side, sample: WireSample): Shot {
  const [keyHeader, prefix] = KEY_HEADERS[sample.dialect]
  const headers = { 'content-type': 'application/json', [keyHeader]: prefix + side.apiKey }
  const path = new URL(side.baseUrl).pathname + sample.path
  return {
    side,
    dialect: sample.dialect,
    isStranger: false,
    envelope: { method: 'POST', path, headers },
    body: JSON.stringify(sample.body),
  }
}

/** What comes at one index depends on the seed and the index only, so that one request can be looked at by itself. */
function mutatedShot(side: Side, other: Side, donors: readonly Json[], rng: Rng): Shot {
  const sample = picked(side.samples, rng)
  const sound = soundShot(side, sample)
  const mutated = { ...sound, body: mutatedBody(sample.body, donors, rng) }
  if (rng.below(8) !== 0) return mutated
  const strangers = [other.apiKey, 'nobody', `${side.apiKey}x`, 'x'.repeat(500)]
  const [keyHeader] = KEY_HEADERS[sample.dialect]
  const envelope = mutatedEnvelope(sound.envelope, keyHeader, strangers, rng)
  const samePath = envelope.path.split('?')[0] === sound.envelope.path.split('?')[0]
  const isStranger = envelope.headers[keyHeader] !== sound.envelope.headers[keyHeader]
  return { ...mutated, envelope, isStranger, dialect: samePath ? sample.dialect : undefined }
}

async function fire(port: number, agent: Agent, { envelope, body }: Shot): Promise<WireAnswer> {
  const bytes = Buffer.from(body)
  const headers = { ...envelope.headers, 'content-length': bytes.length }
  return new Promise((resolve, reject) => {
    const options = { port, host: '127.0.0.1', agent, method: envelope.method, path: envelope.path, headers }
    const client = request({ ...options, signal: AbortSignal.timeout(ANSWER_MS) }, (response) => {
      let text = ''
      response.setEncoding('utf8').on('data', (chunk: string) => (text += chunk))
      response.on('error', reject)
      response.on('end', () => {
        resolve({ status: response.statusCode ?? 0, contentType: response.headers['content-type'] ?? '', text })
      })
    })
    client.on('error', reject)
    client.end(bytes)
  })
}

const DIALECTS: readonly DialectOfSample[] = ['anthropic', 'openai-chat', 'gemini', 'openai-responses']

/** What is wrong with the answer to a shot; undefined when it is whole, or refused as the dialect refuses. */
function wrongIn(shot: Shot, answer: WireAnswer, other: Side): string | undefined {
  const { status, text } = answer
  if (text.includes(other.marker)) return 'it tells of the other execution'
  if (shot.envelope.method === 'HEAD') return status === 200 && text === '' ? undefined : `HEAD got ${status}`
  if (shot.isStranger && status === 200) return 'it was given with the wrong key'
  if (status !== 200 && (status < 400 || status > 499)) return `status ${status}`
  const judge = status === 200 ? faultInAnswer : faultInError
  const faults = (shot.dialect === undefined ? DIALECTS : [shot.dialect]).map((dialect) => judge(dialect, answer))
  return faults.includes(undefined) || isModelList(shot, answer) ? undefined : faults[0]
}

function isModelList({ dialect }: Shot, { status, text }: WireAnswer): boolean {
  return dialect === undefined && status === 200 && /^\{"(?:object":"list|data|models|name)/.test(text)
}

/** Ids as text, without the cost of reading UTF-8: the markers are plain letters. */
function plainText(tokenIds: Int32Array): string {
  return Buffer.from(tokenIds).toString('latin1')
}

/** Says what the context told it, so that a mixed-up context would be heard. */
function parrot(promptIds: Int32Array): Int32Array {
  const heard = [...new Set(plainText(promptIds).match(/PLANTED-IN-[A-Z]+/g))].join(' ')
  const said: AssistantItem = { ...turn(`heard ${heard}`, ['Bash', '{"command": "ls"}']), thinking: heard }
  return byteCodec.encodeTurn(promptIds.length % 2 === 0 ? said : { ...said, thinking: '', toolCalls: [] })
}

function expectApart(rig: Rig, mine: Side, other: Side): void {
  const tree = rig.sink.tree(mine.id)
  expect(tree.calls().length).toBeGreaterThan(REQUESTS / 50)
  for (const node of tree.nodes()) {
    expect(plainText(node.tokenIds)).not.toContain(other.marker)
    expect(JSON.stringify(node.provenance === 'policy' ? node.turn : node.items)).not.toContain(other.marker)
  }
}

test(`${REQUESTS} mutated requests get whole answers or typed refusals, and two executions stay apart`, async () => {
  await using rig = await startRig()
  rig.addEngine('e', { script: parrot, chunkTokens: 4096 })
  const sides = [openSide(rig, 'alpha'), openSide(rig, 'beta')] as const
  const agent = new Agent({ keepAlive: true, maxSockets: CLIENTS })
  const { port } = rig.gateway
  const statuses = new Map<string, number>()
  try {
    for (const side of sides) {
      for (const sample of side.samples) {
        const shot = soundShot(side, sample)
        const answer = await fire(port, agent, shot)
        const what = `${sample.path} ${answer.status} ${answer.text.slice(0, 300)}`
        expect([answer.status, faultInAnswer(sample.dialect, answer)], what).toEqual([200, undefined])
      }
    }
    const donors = sides.map(({ samples }) => samples.map(({ body }) => body))
    let next = 0
    const client = async (): Promise<void> => {
      for (let index = next++; index < REQUESTS; index = next++) {
        const rng = seededRng(hashSeed(SEED, index))
        const [side, other] = index % 2 === 0 ? sides : ([sides[1], sides[0]] as const)
        const shot = mutatedShot(side, other, donors[index % 2] ?? [], rng)
        const where = `GYRE_TEST_SEED=${SEED}, request ${index}: ${shot.envelope.method} ${shot.envelope.path}`
        const answer = await fire(port, agent, shot).catch((error: unknown) => {
          throw new Error(`${where}: ${String(error)}\n${shot.body.slice(0, 2000)}`)
        })
        const wrong = wrongIn(shot, answer, other)
        expect(wrong, `${where}\n${shot.body.slice(0, 2000)}\n${answer.text.slice(0, 2000)}`).toBeUndefined()
        const key = `${shot.dialect ?? 'other'} ${answer.status === 200 ? 'answered' : 'refused'}`
        statuses.set(key, (statuses.get(key) ?? 0) + 1)
      }
    }
    await Promise.all(Array.from({ length: CLIENTS }, client))
  } finally {
    agent.destroy()
  }
  // Most mutations must get past the first check, and enough of them must not.
  for (const dialect of new Set(sides[0].samples.map((sample) => sample.dialect))) {
    for (const end of ['answered', 'refused']) {
      expect(statuses.get(`${dialect} ${end}`), `${dialect} ${end}`).toBeGreaterThan(REQUESTS / 100)
    }
  }
  expect(rig.failures).toEqual([])
  expect(rig.gateway.stats()).toMatchObject({ tokensMismatched: 0, harnessErrors: 0, held: 0 })
  expectApart(rig, sides[0], sides[1])
  expectApart(rig, sides[1], sides[0])
}, 180_000)
