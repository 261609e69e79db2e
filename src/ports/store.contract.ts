/** @file What every Store must do. Each adapter's test calls storeContract with its own opener. */
import { spawn } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { isDeepStrictEqual } from 'node:util'
import fc from 'fast-check'
import { afterAll, describe, expect, test } from 'vitest'
import { callId, executionId, groupId, queryId } from '../core/ids.ts'
import type { CallRecord } from '../trajectory/node.ts'
import { expectedCall, expectedGroup, expectedStep } from './store-crash.contract.ts'
import type { ExecutionRow, GroupRow, LeafRow, Store } from './store.ts'

export interface StoreUnderTest {
  /** Opens, or creates, the store whose files are in this folder. */
  open(folder: string): Store
  /** The module that exports `openForCrash(folder)`, for a child process. */
  readonly openerModule: string
}

const group = (name: string, over: Partial<GroupRow> = {}): GroupRow => ({
  groupId: groupId(name),
  queryId: queryId(`query-of-${name}`),
  taskName: 'trail-007',
  dispatchVersion: 3,
  burst: 1,
  state: 'dispatched',
  consumedStep: undefined,
  ...over,
})

const execution = (of: string, name: string, over: Partial<ExecutionRow> = {}): ExecutionRow => ({
  executionId: executionId(name),
  groupId: groupId(of),
  member: 0,
  attempt: 0,
  state: 'queued',
  outcome: undefined,
  reward: undefined,
  parts: {},
  errorCode: undefined,
  errorMessage: undefined,
  startedAtMs: undefined,
  endedAtMs: undefined,
  ...over,
})

const leaf = (id: number, fate: LeafRow['fate']): LeafRow => ({
  executionId: executionId('e'),
  leaf: id,
  role: 'main',
  fate,
  policyTokens: 30,
  trainedTokens: 20,
})

/** Any text a harness or a model may produce: NUL and lone surrogates included. */
const text = fc.string({ unit: 'binary', maxLength: 20 }).map((s) => s + (s.length % 3 === 0 ? '\0tail\ud800' : ''))
const anyCall = (name: string, sequence: number): fc.Arbitrary<CallRecord> =>
  fc
    .record({
      text,
      thread: text,
      arguments: text,
      ids: fc.array(fc.integer({ min: 0, max: 151_000 }), { maxLength: 9 }),
    })
    .chain((made) =>
      fc
        .record({
          logprobs: fc.float32Array({ minLength: made.ids.length, maxLength: made.ids.length }),
          status: fc.constantFrom('committed', 'aborted', 'orphan'),
          finishReason: fc.constantFrom('stop', 'tool-calls', 'length'),
          reported: fc.nat(),
        })
        .map((more): CallRecord => ({
          callId: callId(`${name}.${sequence}`),
          executionId: executionId(name),
          sequence,
          dialect: 'openai-chat',
          thread: made.thread,
          role: 'main',
          requestHash: 'abc123',
          nodes: [
            {
              id: sequence * 2 + 1,
              parent: sequence * 2,
              provenance: 'harness',
              items: [{ kind: 'user', text: made.text }],
              tokenIds: Int32Array.from(made.ids),
            },
            {
              id: sequence * 2 + 2,
              parent: sequence * 2 + 1,
              provenance: 'policy',
              callId: callId(`${name}.${sequence}`),
              turn: {
                kind: 'assistant',
                thinking: made.text,
                text: made.thread,
                toolCalls: [{ id: 'c1', name: 'bash', argumentsText: made.arguments }],
              },
              finishReason: more.finishReason,
              // A view into a larger buffer, as the gateway may hand out.
              tokenIds: Int32Array.from([7, ...made.ids]).subarray(1),
              behaviorLogprobs: Float32Array.from(more.logprobs),
              policyVersions: Int32Array.from(made.ids, (_, i) => i),
              status: more.status,
            },
          ],
          usage: { promptTokens: more.reported, cachedTokens: 0, completionTokens: made.ids.length },
          startedAtMs: 1_700_000_000_123.5,
          endedAtMs: 1_700_000_000_456,
          moves: 2,
        })),
    )

/** The same call under another execution. */
function renamed(call: CallRecord, name: string): CallRecord {
  const id = callId(`${name}.${call.sequence}`)
  const nodes = call.nodes.map((n) => (n.provenance === 'policy' ? { ...n, callId: id } : n))
  return { ...call, executionId: executionId(name), callId: id, nodes }
}

export function storeContract(name: string, subject: StoreUnderTest): void {
  const folders: string[] = []
  const freshFolder = (): string => {
    const folder = mkdtempSync(join(tmpdir(), 'gyre-store-'))
    folders.push(folder)
    return folder
  }
  afterAll(() => folders.forEach((folder) => rmSync(folder, { recursive: true, force: true })))

  /** Runs `work` on a new store, then `check` on the same store and again after it was closed and opened. */
  const durably = async (
    work: (store: Store) => void | Promise<void>,
    check: (store: Store) => void,
  ): Promise<void> => {
    const folder = freshFolder()
    const first = subject.open(folder)
    await work(first)
    check(first)
    first.close()
    const second = subject.open(folder)
    check(second)
    second.close()
  }

  describe(`store contract: ${name}`, () => {
    test('a new store is empty', async () => {
      await durably(
        () => undefined,
        (store) => {
          expect([store.groups(), store.executions(), store.steps()]).toEqual([[], [], []])
          expect(store.latestCheckpoint()).toBeUndefined()
          expect(store.execution(executionId('e'))).toBeUndefined()
          expect(store.calls(executionId('e'))).toEqual([])
          expect(store.getMeta('seed')).toBeUndefined()
        },
      )
    })

    test('facts of the run are kept, the last value wins', async () => {
      await durably(
        (store) => {
          store.setMeta('cursor', '1')
          store.setMeta('cursor', 'two\0three')
          store.setMeta('', '')
        },
        (store) => expect([store.getMeta('cursor'), store.getMeta('')]).toEqual(['two\0three', '']),
      )
    })

    test('groups come back in dispatch order with their latest state', async () => {
      await durably(
        (store) => {
          store.putGroup(group('b'), [])
          store.putGroup(group('a'), [])
          store.setGroupState(groupId('b'), 'ready')
        },
        (store) => expect(store.groups()).toEqual([group('b', { state: 'ready' }), group('a')]),
      )
    })

    test('an execution keeps every field, and a restarted attempt is a row of its own', async () => {
      const done = execution('g', 'e1', {
        state: 'scored',
        outcome: 'finished',
        reward: 0.25,
        parts: { found: 1, exact: -0.5 },
        errorCode: 'E_HARNESS_EXIT',
        errorMessage: 'exit 1: \0 \ud800',
        startedAtMs: 1.5,
        endedAtMs: 1_700_000_000_456.25,
      })
      const retried = execution('g', 'e1-again', { attempt: 1 })
      await durably(
        (store) => {
          store.putGroup(group('g'), [execution('g', 'e1'), execution('g', 'e0', { member: 1 })])
          store.putExecution(done)
          store.putExecution(retried)
        },
        (store) => {
          expect(store.execution(executionId('e1'))).toEqual(done)
          expect(store.executions(groupId('g'))).toEqual([done, retried, execution('g', 'e0', { member: 1 })])
          expect(store.executions().map((e) => e.executionId)).toEqual(['e1', 'e0', 'e1-again'])
        },
      )
    })

    test('any call comes back bit for bit', async () => {
      const store = subject.open(freshFolder())
      let next = 0
      await fc.assert(
        fc.asyncProperty(anyCall('x', 0), anyCall('x', 1), async (first, second) => {
          const id = `run-${next++}`
          const a = renamed(first, id)
          const b = renamed(second, id)
          await Promise.all([store.appendCall(b), store.appendCall(a)])
          expect(store.calls(executionId(id))).toEqual([a, b])
        }),
        { numRuns: 50 },
      )
      store.close()
    })

    test('calls appended at once are all durable, and one that conflicts harms no other', async () => {
      const calls = fc.sample(anyCall('x', 0), { numRuns: 1, seed: 1 }).flatMap((call) =>
        Array.from({ length: 8 }, (_, i) => ({
          ...call,
          callId: callId(`c${i}`),
          executionId: executionId(`e${i}`),
        })),
      )
      await durably(
        async (store) => {
          const ends = await Promise.allSettled([...calls, ...calls.slice(0, 1)].map((call) => store.appendCall(call)))
          expect(ends.map((end) => end.status)).toEqual([...calls.map(() => 'fulfilled'), 'rejected'])
          expect(ends.at(-1)).toMatchObject({ reason: { code: 'E_STORE_CONFLICT' } })
        },
        (store) => calls.forEach((call) => expect(store.calls(call.executionId)).toHaveLength(1)),
      )
    })

    test('an answer that was never used is marked, an aborted one stays aborted', async () => {
      const call = expectedCall(0)
      const aborted: CallRecord = {
        ...expectedCall(1),
        nodes: expectedCall(1).nodes.map((n) => (n.provenance === 'policy' ? { ...n, status: 'aborted' } : n)),
      }
      await durably(
        async (store) => {
          await Promise.all([store.appendCall(call), store.appendCall(aborted)])
          await store.markOrphan(call.executionId, call.callId)
          await store.markOrphan(aborted.executionId, aborted.callId)
          await expect(store.markOrphan(call.executionId, callId('nope'))).rejects.toMatchObject({
            code: 'E_STORE_CONFLICT',
          })
        },
        (store) => {
          const status = (c: CallRecord): unknown[] =>
            store
              .calls(c.executionId)
              .find((x) => x.callId === c.callId)
              ?.nodes.map((n) => 'status' in n && n.status) ?? []
          expect([status(call), status(aborted)]).toEqual([
            [false, 'orphan'],
            [false, 'aborted'],
          ])
        },
      )
    })

    test('leaves are replaced as a whole', async () => {
      await durably(
        (store) => {
          store.putLeaves(executionId('e'), [leaf(2, 'picked'), leaf(4, 'side')])
          store.putLeaves(executionId('e'), [leaf(9, 'over-budget'), leaf(4, 'masked')])
        },
        (store) => expect(store.leaves(executionId('e'))).toEqual([leaf(4, 'masked'), leaf(9, 'over-budget')]),
      )
    })

    test('a checkpoint consumes its groups once and only once', async () => {
      const step = {
        step: 1,
        burst: 0,
        groups: [groupId('a')],
        metrics: { reward: 0.5, loss: Number.NaN, big: -Infinity },
      }
      const checkpoint = { step: 1, policyVersion: 1, burst: 0, folder: 'checkpoints/step_1' }
      const conflict = expect.objectContaining({ code: 'E_STORE_CONFLICT' }) as unknown
      await durably(
        (store) => {
          store.putGroup(group('a'), [])
          store.putGroup(group('b'), [])
          store.commitCheckpoint(checkpoint, [step])
          const again = { ...checkpoint, step: 2, folder: 'checkpoints/step_2' }
          const both = { ...step, step: 2, groups: [groupId('b'), groupId('a')] }
          expect(() => store.commitCheckpoint(again, [both])).toThrow(conflict)
          expect(() => store.setGroupState(groupId('a'), 'ready')).toThrow(conflict)
          expect(() => store.putGroup(group('a'), [])).toThrow(conflict)
          expect(() => store.setGroupState(groupId('unknown'), 'ready')).toThrow(conflict)
        },
        (store) => {
          expect(store.groups()).toEqual([group('a', { state: 'consumed', consumedStep: 1 }), group('b')])
          expect(store.steps()).toEqual([step])
          expect(store.latestCheckpoint()).toEqual(checkpoint)
        },
      )
    })

    test('kill -9 in the middle of writes loses nothing that was acknowledged and leaves no half record', async () => {
      const folder = freshFolder()
      for (const untilAck of [40, 25, 60]) {
        const acked = await killedWriter(subject.openerModule, folder, untilAck)
        const store = subject.open(folder)
        const groups = store.groups()
        expect(groups.length).toBeGreaterThan(acked)
        const steps = store.steps()
        const consumedBy = new Map(steps.flatMap((s) => s.groups.map((id) => [id, s.step] as const)))
        expect(groups).toEqual(groups.map((row, n) => expectedGroup(n, consumedBy.get(row.groupId))))
        const broken = groups.flatMap((_, n) => {
          const calls = store.calls(expectedCall(n).executionId)
          // The group is written first: only the very last may lack its call.
          const mayLack = n > acked && calls.length === 0
          return mayLack || isDeepStrictEqual(calls, [expectedCall(n)]) ? [] : [n]
        })
        expect(broken).toEqual([])
        steps.forEach((step, i) => expect(step).toEqual(expectedStep(i + 1)))
        expect(store.latestCheckpoint()?.step).toBe(steps.at(-1)?.step)
        store.close()
      }
    })
  })
}

/** Starts the writer on the folder, kills it after that many acknowledgements, returns the last number acknowledged. */
async function killedWriter(openerModule: string, folder: string, untilAck: number): Promise<number> {
  const script = new URL('./store-crash.contract.ts', import.meta.url).pathname
  const child = spawn(process.execPath, ['--import', 'tsx', script, openerModule, folder], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const ended = new Promise<string | null>((resolve) => child.on('exit', (_, signal) => resolve(signal)))
  let last = -1
  let seen = 0
  for await (const line of createInterface({ input: child.stdout })) {
    last = Number(line)
    if (++seen === untilAck) child.kill('SIGKILL')
  }
  expect(await ended).toBe('SIGKILL')
  return last
}
