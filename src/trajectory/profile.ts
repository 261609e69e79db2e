/**
 * @file What is known about a harness, as data: how it shows who speaks, and the facts that other parts need.
 */

/** All conditions given must hold. Texts are compared without case; every listed text must occur. */
export interface CallSignal {
  /** Name in lower case of a header that must be there. */
  readonly header?: string
  /** Text that this header must hold. */
  readonly headerIncludes?: string
  readonly systemIncludes?: readonly string[]
  readonly firstUserIncludes?: readonly string[]
  readonly firstUserLacks?: readonly string[]
  /** The last item, system text apart, must be a user item that holds these. */
  readonly lastUserIncludes?: readonly string[]
  readonly tools?: 'none' | 'some'
}

/** Each list holds alternatives. Side signals go first, then summary; the two summary roles follow from subAgent. */
export interface HarnessProfile {
  readonly name: string
  /** Headers in lower case that name the thread, the first present one wins; none when the harness sends none. */
  readonly threadHeaders: readonly string[]
  readonly side: readonly CallSignal[]
  readonly summary: readonly CallSignal[]
  readonly subAgent: readonly CallSignal[]
}
