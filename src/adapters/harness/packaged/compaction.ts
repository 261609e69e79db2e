/** @file When a harness that can be told should make room: for its next answer, and for the words that ask for it. */

/** Above these a larger window needs no more room. [tokens] */
const LARGEST_ANSWER = 20_000
const LARGEST_MARGIN = 13_000

/** Length of a conversation at which it is to be compacted; at least 1. The margin shrinks with the window. [tokens] */
export function compactionThreshold(contextWindow: number, maxOutputTokens: number): number {
  const room = Math.max(0, contextWindow - Math.min(maxOutputTokens, LARGEST_ANSWER))
  return Math.max(1, Math.floor(room - Math.min(LARGEST_MARGIN, room / 8)))
}
