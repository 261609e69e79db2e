/** @file Every golden recording, replayed through the real gateway: no sampled token may be lost, no context wrong. */
import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { replayRecording } from '../src/cli/compose/replay-session.ts'
import { byteChatCodec } from '../src/recording/byte-chat-codec.ts'
import { figuresOf, missedGoals } from '../src/recording/figures.ts'
import { isRecording, readRecording } from '../src/recording/files.ts'

const GOLDEN = join(import.meta.dirname, 'golden')
const recordings = readdirSync(GOLDEN)
  .filter((name) => isRecording(join(GOLDEN, name)))
  .toSorted()
const codec = byteChatCodec()

test('there are recordings', () => {
  expect(recordings.length).toBeGreaterThan(0)
})

test.each(recordings)('%s replays to what was recorded, and meets the goals', async (name) => {
  const recording = readRecording(join(GOLDEN, name))
  expect(name.startsWith(`${recording.head.harness}-${recording.head.version}-`)).toBe(true)
  expect(recording.head.tokenizer, 'golden recordings are made with bytes').toBe('bytes')
  const { tree, wrong, differences } = await replayRecording(recording, { codec, isOwnTokenizer: true })
  expect(differences).toEqual([])
  expect(wrong).toEqual([])
  const figures = figuresOf(tree, wrong.length, { jMax: 5, seed: 0 })
  expect(missedGoals(figures)).toEqual([])
  expect(figures.calls).toBe(recording.calls.length)
})
