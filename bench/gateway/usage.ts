/** @file What a process of the bench has used. */
import { monitorEventLoopDelay } from 'node:perf_hooks'
import type { Usage } from './child.ts'

const stalls = monitorEventLoopDelay({ resolution: 5 })
stalls.enable()

export async function usage(collectGarbage: boolean): Promise<Usage> {
  const { user, system } = process.cpuUsage()
  if (collectGarbage) {
    for (let i = 0; i < 6; i++) {
      globalThis.gc?.()
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
  }
  const { rss, heapUsed, arrayBuffers } = process.memoryUsage()
  const longestStallMs = stalls.max / 1e6
  stalls.reset()
  return { cpuMs: (user + system) / 1000, residentBytes: rss, heldBytes: heapUsed + arrayBuffers, longestStallMs }
}
