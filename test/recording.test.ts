/** @file A session with everything that can go wrong in it: recorded, written, read, replayed, and caught when forged. */
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { CommandHarness } from '../src/adapters/harness/command/command-harness.ts'
import { makeRecording } from '../src/cli/compose/golden.ts'
import type { Golden } from '../src/cli/compose/golden.ts'
import { replayRecording } from '../src/cli/compose/replay-session.ts'
import { runScenario } from '../src/cli/compose/scenario-session.ts'
import type { SessionResult } from '../src/cli/compose/scenario-session.ts'
import type { Engine } from '../src/ports/engine.ts'
import { byteChatCodec } from '../src/recording/byte-chat-codec.ts'
import { missedGoals } from '../src/recording/figures.ts'
import { readRecording, writeRecording } from '../src/recording/files.ts'
import { scenarioOf } from '../src/recording/scenario.ts'
import { sleep } from './support/gateway-rig.ts'

const ODD_HARNESS = join(import.meta.dirname, 'support/odd-harness.mjs')
const codec = byteChatCodec()
const scenario = scenarioOf({
  name: 'odd',
  instruction: 'be odd',
  contextWindow: 50_000,
  rules: [
    { when: { firstIncludes: ['go left'] }, turns: [{ text: 'I went left.' }] },
    {
      when: { firstIncludes: ['go right'] },
      turns: [{ text: 'I went right, which is a longer way and takes a while.' }],
    },
    { when: { firstIncludes: ['nobody waits'] }, turns: [{ text: 'many words '.repeat(150) }] },
    {
      turns: [
        { thinking: 'hm', calls: [{ tool: 'bash', args: '{"b" : 1.0, "a":"caf\\u00e9"}' }] },
        { text: 'a long answer that somebody leaves in the middle, and comes back to. '.repeat(4) },
        [{ text: 'The short question cuts this off.' }, { text: 'The other question does not.' }],
        { text: 'The end.' },
      ],
    },
  ],
})

let folder: string
let session: SessionResult
let golden: Golden

/** So that parallel calls overlap and there is time to hang up. */
function slow(engine: Engine): Engine {
  return {
    id: engine.id,
    async *generate(request, signal) {
      for await (const event of engine.generate(request, signal)) {
        await sleep(12)
        yield event
      }
    },
  }
}

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'gyre-recording-'))
  session = await runScenario({
    scenario,
    profile: 'generic',
    folder,
    codec,
    harness: () => new CommandHarness({ argv: [process.execPath, ODD_HARNESS] }),
    wrapEngine: slow,
    limits: { abandonMs: 600 },
  })
  golden = await makeRecording(session, {
    codec,
    folders: [homedir(), folder],
    head: {
      harness: 'odd',
      version: '1',
      scenario: 'odd',
      profile: 'generic',
      tokenizer: 'bytes',
      contextWindow: scenario.contextWindow,
      maxOutputTokens: scenario.maxOutputTokens,
      gyre: '0',
    },
  })
  writeRecording(join(folder, 'out'), golden.files)
}, 60_000)

afterAll(async () => {
  await session[Symbol.asyncDispose]()
  rmSync(folder, { recursive: true })
})

test('every kind of trouble was there, and cost no token', () => {
  expect(session.ends).toMatchObject([{ exitCode: 0 }])
  const statuses = session.tree
    .calls()
    .map(({ node }) => session.tree.node(node))
    .map((node) => (node?.provenance === 'policy' ? node.status : ''))
  expect(statuses.toSorted()).toEqual([
    'aborted',
    'committed',
    'committed',
    'committed',
    'committed',
    'committed',
    'committed',
    'orphan',
  ])
  expect(session.exchanges.filter(({ isComplete }) => !isComplete)).toHaveLength(2)
  expect(session.exchanges.filter(({ status }) => status === 400)).toHaveLength(1)
  expect(session.stats).toMatchObject({ harnessErrors: 0, tokensMismatched: 0 })
  expect(session.failures).toEqual([])
  expect(missedGoals(golden.figures)).toEqual([])
  expect(golden.figures).toMatchObject({ calls: 8, wrongContexts: 0, orphans: 1 })
})

test('the files replay to the same tree as often as one likes', async () => {
  const recording = readRecording(join(folder, 'out'))
  for (let i = 0; i < 2; i++) {
    const { tree, wrong, differences } = await replayRecording(recording, { codec, isOwnTokenizer: true })
    expect(differences).toEqual([])
    expect(wrong).toEqual([])
    expect(tree.nodes().map(({ parent, tokenIds }) => [parent, tokenIds.length])).toEqual(
      session.tree.nodes().map(({ parent, tokenIds }) => [parent, tokenIds.length]),
    )
  }
})

test('no long text, folder or key of the session is in the files', () => {
  const out = join(folder, 'out')
  const text = readdirSync(out)
    .map((name) => readFileSync(join(out, name), 'utf8'))
    .join('\n')
  expect(text).not.toContain('Do as you are told')
  expect(text).not.toContain('xxxxxxxx"')
  expect(text).not.toContain('hush')
  expect(text).not.toContain('Bearer')
  expect(text).toContain('/v1/chat/completions?v=1"')
  for (const seen of [homedir(), ...session.folders]) expect(text).not.toContain(`${seen}/`)
  expect(text).toContain('somebody leaves in the middle')
  expect(text.length).toBeLessThan(12_000)
})

test('a recording that cannot be played says where it stands, and a broken one names the place', async () => {
  const recording = readRecording(join(folder, 'out'))
  const lost = recording.exchanges.filter(({ match }) => match?.call !== 1)
  const play = replayRecording({ ...recording, exchanges: lost }, { codec, isOwnTokenizer: true, deadlineMs: 400 })
  await expect(play).rejects.toThrow(/[0-7] of 8 calls are committed, before request \d/)
  writeRecording(join(folder, 'broken'), recording)
  const calls = join(folder, 'broken', 'calls.jsonl')
  writeFileSync(calls, readFileSync(calls, 'utf8').replace('"role":"main"', '"role":"king"'))
  expect(() => readRecording(join(folder, 'broken'))).toThrow(/calls\.jsonl:1: role/)
})
