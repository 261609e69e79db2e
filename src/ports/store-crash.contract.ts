/**
 * @file The victim of the contract's kill -9: writes records without end and prints the number of each one that the
 * store acknowledged. Run as `node --import tsx store-crash.contract.ts OPENER_MODULE FOLDER`.
 */
import { writeSync } from 'node:fs'
import { pathToFileURL } from 'node:url'
import { callId, executionId, groupId, queryId } from '../core/ids.ts'
import type { CallRecord } from '../trajectory/node.ts'
import type { GroupRow, StepRow, Store } from './store.ts'

const GROUPS_PER_STEP = 5

export function expectedGroup(n: number, consumedStep?: number): GroupRow {
  return {
    groupId: groupId(`g${n}`),
    queryId: queryId(`q${n}`),
    taskName: `task-${n}`,
    dispatchVersion: n,
    burst: n,
    state: consumedStep === undefined ? 'dispatched' : 'consumed',
    consumedStep,
  }
}

/** Large enough to fill several pages, so that a torn write would show. */
export function expectedCall(n: number): CallRecord {
  const tokenIds = Int32Array.from({ length: 3000 }, (_, i) => n * 7 + i)
  return {
    callId: callId(`c${n}`),
    executionId: executionId(`e${n}`),
    sequence: 0,
    dialect: 'anthropic',
    thread: '',
    role: 'main',
    requestHash: String(n),
    nodes: [
      { id: 1, parent: 0, provenance: 'harness', items: [{ kind: 'user', text: `question ${n}` }], tokenIds },
      {
        id: 2,
        parent: 1,
        provenance: 'policy',
        callId: callId(`c${n}`),
        turn: { kind: 'assistant', thinking: '', text: `answer ${n}`, toolCalls: [] },
        finishReason: 'stop',
        tokenIds,
        behaviorLogprobs: Float32Array.from(tokenIds, (id) => -id / 3),
        policyVersions: tokenIds,
        status: 'committed',
      },
    ],
    usage: { promptTokens: 3000, cachedTokens: n, completionTokens: 3000 },
    startedAtMs: n,
    endedAtMs: n + 1,
    moves: 0,
  }
}

/** Step s, from 1, consumes groups [(s - 1) * GROUPS_PER_STEP, s * GROUPS_PER_STEP). */
export function expectedStep(step: number): StepRow {
  const first = (step - 1) * GROUPS_PER_STEP
  const groups = Array.from({ length: GROUPS_PER_STEP }, (_, i) => groupId(`g${first + i}`))
  return { step, burst: step, groups, metrics: { reward: step / 8 } }
}

/** Goes on after the records that are already there. */
async function writeForever(store: Store): Promise<never> {
  const known = store.groups().length
  // A group without its call is what the last kill interrupted.
  if (known > 0 && store.calls(executionId(`e${known - 1}`)).length === 0)
    await store.appendCall(expectedCall(known - 1))
  let step = store.steps().length
  for (let n = known; ; n++) {
    store.putGroup(expectedGroup(n), [])
    await store.appendCall(expectedCall(n))
    writeSync(1, `${n}\n`)
    if (n + 1 >= (step + 1) * GROUPS_PER_STEP) {
      step++
      store.commitCheckpoint({ step, policyVersion: step, burst: step, folder: `step_${step}` }, [expectedStep(step)])
    }
  }
}

const [, script, openerModule, folder] = process.argv
if (openerModule !== undefined && folder !== undefined && import.meta.url === pathToFileURL(script ?? '').href) {
  const opener = (await import(openerModule)) as { openForCrash(folder: string): Store }
  await writeForever(opener.openForCrash(folder))
}
