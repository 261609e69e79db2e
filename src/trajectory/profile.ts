/**
 * @file What is known about a harness, as data: how it shows who speaks, and the facts that other parts need.
 *
 * docs/profiles.md explains the fields to somebody who writes one; src/config/profile.ts reads one from a file.
 */
import type { Json } from '../core/items.ts'

/** All conditions given must hold. Texts are compared without case; every listed text must occur. */
export interface CallSignal {
  /** Name in lower case of a header that must be there. */
  readonly header?: string
  /** Text that this header must hold. Blanks do not count, on either side. */
  readonly headerIncludes?: string
  /** In the system text, wherever in the request it stands. */
  readonly systemIncludes?: readonly string[]
  /** In the first user text. */
  readonly firstUserIncludes?: readonly string[]
  readonly firstUserLacks?: readonly string[]
  /** In the user texts after the last turn of the policy: what it is asked now. */
  readonly lastUserIncludes?: readonly string[]
  readonly tools?: 'none' | 'some'
}

/** How a harness names the tool that takes a shell command. */
export interface ShellTool {
  readonly name: string
  /** The argument that takes the command. */
  readonly argument: string
  /** Further arguments the tool insists on. */
  readonly extra?: Readonly<Record<string, Json>>
}

/**
 * Each list of signals holds alternatives. A summary is never a side call, a side call is nothing else, and the two
 * summary roles follow from `subAgent`.
 */
export interface HarnessProfile {
  readonly name: string
  /** Headers in lower case that name the thread, the first present one wins; none when the harness sends none. */
  readonly threadHeaders: readonly string[]
  readonly side: readonly CallSignal[]
  readonly summary: readonly CallSignal[]
  readonly subAgent: readonly CallSignal[]
  /** How lines of system text begin that change inside a conversation and that the policy must not read. */
  readonly volatileSystemLines: readonly string[]
  /** Shortest silence after which the harness gives a request up. [ms] */
  readonly silenceLimitMs: number
  readonly shellTool: ShellTool
  /** Headers in lower case that a recording keeps: they carry signals and no secrets. */
  readonly headersToRecord: readonly string[]
}

/** A profile that says only where it differs from another one; `extends` is the name of a shipped one. */
export type ProfileOverrides = Partial<HarnessProfile> & { readonly name: string; readonly extends?: string }
