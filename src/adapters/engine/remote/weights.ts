/** @file What giving a server weights has in common. */
import type { OpenedServer } from './connect.ts'

/** A server may read for minutes; whoever waits has a deadline of its own. [ms] */
export const LOAD_MS = 30 * 60_000

/** What a server is told to call the weights of a version. */
export function labelFor(policyVersion: number): string {
  return `gyre-v${policyVersion}`
}

/** Closes the connection when the server turns out not to be usable. */
export async function orCloseEngine<T>(opened: OpenedServer, check: () => T): Promise<T> {
  try {
    return check()
  } catch (error) {
    await opened.engine.close()
    throw error
  }
}
