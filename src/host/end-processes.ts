import { setTimeout as sleep } from 'node:timers/promises'
import { findMembers, type ProcessSigns } from './process-table.ts'

const FIRST_POLL_MS = 20
const MAX_POLL_MS = 250
const KILL_DEADLINE_MS = 10_000

/**
 * Ends every process with these signs: SIGTERM, then SIGKILL after `graceMs`, until none is left.
 * Returns how many different ones it met, and those that outlived SIGKILL (stuck in the kernel).
 */
export async function endProcesses(
  signs: ProcessSigns,
  graceMs: number,
): Promise<{ readonly met: number; readonly survivors: readonly number[] }> {
  const met = new Set<number>()
  let alive = signal(signs, 'SIGTERM', met)
  const graceEnd = performance.now() + graceMs
  for (
    let poll = FIRST_POLL_MS;
    alive.length > 0 && performance.now() < graceEnd;
    poll = Math.min(2 * poll, MAX_POLL_MS)
  ) {
    await sleep(Math.min(poll, graceMs))
    alive = findMembers(signs)
  }
  const deadline = performance.now() + KILL_DEADLINE_MS
  while (alive.length > 0 && performance.now() < deadline) {
    alive = signal(signs, 'SIGKILL', met)
    if (alive.length > 0) await sleep(FIRST_POLL_MS)
  }
  return { met: met.size, survivors: alive }
}

function signal(signs: ProcessSigns, name: 'SIGTERM' | 'SIGKILL', met: Set<number>): readonly number[] {
  const members = findMembers(signs)
  // The group first: one call reaches also what is being forked at this moment.
  if (members.length > 0) for (const group of signs.groups) send(-group, name)
  for (const pid of members) {
    met.add(pid)
    send(pid, name)
  }
  return members
}

function send(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name)
  } catch {
    // It ended in the meantime, or belongs to somebody else: the next look tells.
  }
}
