/** @file What has to be true of the books of every run, whatever happened to it. */
import { expect } from 'vitest'
import type { ExecutionRow, GroupRow, Store } from '../../src/ports/store.ts'
import { ExecutionTree } from '../../src/trajectory/tree.ts'

export interface ExpectedBooks {
  readonly groupSize: number
  readonly groupsPerStep: number
  readonly steps: number
}

/** Nothing lost, nothing trained twice, every token accounted for. */
export function expectSoundLedger(store: Store, expected: ExpectedBooks): void {
  expectStepsOnce(store, expected)
  const consumed = new Set(store.groups().filter((group) => group.state === 'consumed'))
  for (const group of store.groups()) {
    const members = membersOf(store, group)
    if (group.state !== 'evaluation') expect(members.size, `members of ${group.groupId}`).toBe(expected.groupSize)
    if (consumed.has(group)) for (const attempts of members.values()) expectConsumed(store, group, attempts)
    for (const row of [...members.values()].flat()) expectExactPaths(store, group, row)
  }
}

/** Steps are 1..n, each with its groups; a group that was consumed is in exactly the step it says. */
function expectStepsOnce(store: Store, { groupsPerStep, steps }: ExpectedBooks): void {
  const rows = store.steps()
  expect(rows.map((row) => row.step)).toEqual(Array.from({ length: steps }, (_, i) => i + 1))
  expect(store.latestCheckpoint()).toMatchObject({ step: steps })
  const stepOf = new Map(rows.flatMap((row) => row.groups.map((id) => [id, row.step] as const)))
  expect(stepOf.size, 'groups of all steps, each once').toBe(steps * groupsPerStep)
  const groups = store.groups()
  expect(new Map(groups.filter((g) => g.state === 'consumed').map((g) => [g.groupId, g.consumedStep]))).toEqual(stepOf)
  // What was dispatched is consumed, given up, or was still open when the last step was done.
  const open = groups.filter((g) => g.state === 'dispatched' || g.state === 'ready')
  const others = groups.filter((g) => g.state === 'consumed' || g.state === 'excluded' || g.state === 'evaluation')
  expect(open.length + others.length).toBe(groups.length)
  const bursts = groups.filter((g) => g.state !== 'evaluation').map((g) => g.burst)
  expect(bursts, 'groups in order of dispatch').toEqual(bursts.toSorted((a, b) => a - b))
}

function membersOf(store: Store, group: GroupRow): ReadonlyMap<number, readonly ExecutionRow[]> {
  const rows = store.executions(group.groupId)
  return new Map(rows.map(({ member }) => [member, rows.filter((row) => row.member === member)]))
}

/** Only the last attempt of a member counts; each leaf of its tree has a fate. */
function expectConsumed(store: Store, group: GroupRow, attempts: readonly ExecutionRow[]): void {
  const sorted = attempts.toSorted((a, b) => a.attempt - b.attempt)
  const last = sorted.at(-1)
  if (last === undefined) return
  const where = `execution ${last.executionId}`
  expect(sorted.map((row) => row.attempt)).toEqual(sorted.map((_, i) => i))
  for (const row of sorted.slice(0, -1)) {
    expect([row.state, row.errorCode !== undefined], `earlier attempt ${row.executionId}`).toEqual(['excluded', true])
    expect(store.leaves(row.executionId)).toEqual([])
  }
  expect(['scored', 'excluded'], where).toContain(last.state)
  expect(last.outcome, `${where}: what was interrupted runs again`).not.toBe('interrupted')
  if (last.state === 'excluded') return
  expect(last.reward, where).toBeGreaterThanOrEqual(0)
  const tree = ExecutionTree.fromRecords(last.executionId, store.calls(last.executionId))
  const fates = store.leaves(last.executionId)
  expect(
    fates.map((leaf) => leaf.leaf).toSorted((a, b) => a - b),
    `${where}: leaves with a fate`,
  ).toEqual(tree.leaves().toSorted((a, b) => a - b))
  for (const leaf of fates) expect(leaf.trainedTokens, where).toBeLessThanOrEqual(leaf.policyTokens)
  expect(group.consumedStep).toBeGreaterThan(0)
}

/** Root to leaf is what the engine was given and gave, for every call; every token says which policy sampled it. */
function expectExactPaths(store: Store, group: GroupRow, row: ExecutionRow): void {
  const records = store.calls(row.executionId)
  const tree = ExecutionTree.fromRecords(row.executionId, records)
  const newest = store.latestCheckpoint()?.policyVersion ?? 0
  for (const [i, record] of records.entries()) {
    const where = `call ${record.callId}`
    expect(record.sequence, where).toBe(i)
    const node = tree.node(tree.call(record.callId)?.node ?? 0)
    if (node?.provenance !== 'policy') throw new Error(`${where} generated nothing`)
    const { promptTokens, completionTokens } = record.usage
    expect(tree.pathLength(node.parent), where).toBe(promptTokens)
    expect(tree.pathTokenIds(node.id).length, where).toBe(promptTokens + completionTokens)
    expect(
      node.behaviorLogprobs.every((logprob) => logprob <= 0),
      `${where}: evidence for every token`,
    ).toBe(true)
    const versions = [...node.policyVersions]
    expect(versions, `${where}: versions never fall`).toEqual(versions.toSorted((a, b) => a - b))
    for (const version of versions) {
      expect(version, where).toBeGreaterThanOrEqual(group.dispatchVersion)
      expect(version, where).toBeLessThanOrEqual(newest)
    }
  }
}
