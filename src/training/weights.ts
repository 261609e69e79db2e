/** @file Two-level averaging: over the tokens of an execution first, then over executions. */
import type { ExecutionId } from '../core/ids.ts'

/**
 * Weight of each trainable token of an execution in the loss of its step: 1 / (E n), n trainable tokens of
 * the execution, E executions that have any. The weights of all tokens sum to 1, so an execution that
 * branches more or runs longer counts the same (QwenGyre, arXiv 2609.33848, two-level averaging).
 * @param trainableTokens of every execution whose group gives gradient. [tokens]
 */
export function tokenWeights(trainableTokens: ReadonlyMap<ExecutionId, number>): ReadonlyMap<ExecutionId, number> {
  const counted = [...trainableTokens].filter(([, tokens]) => tokens > 0)
  return new Map(counted.map(([executionId, tokens]) => [executionId, 1 / (counted.length * tokens)]))
}
