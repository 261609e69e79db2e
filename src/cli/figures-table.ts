/** @file The figures of recordings as a table for people. */
import type { ReplayFigures } from '../recording/figures.ts'

export interface NamedFigures {
  readonly name: string
  readonly figures: ReplayFigures
}

const HEADS = [
  'recording',
  'calls',
  'sampled',
  'trainable',
  'wrong',
  'trees',
  'rows',
  'distinct',
  'trees/distinct',
  'orphans',
]

/** One row a recording, and below it its leaves by role and fate. */
export function figuresTable(rows: readonly NamedFigures[]): string {
  const cells = rows.map(({ name, figures }) => [name, ...cellsOf(figures)])
  const widths = HEADS.map((head, i) => Math.max(head.length, ...cells.map((row) => row[i]?.length ?? 0)))
  const line = (row: readonly string[]): string =>
    row.map((cell, i) => (i === 0 ? cell.padEnd(widths[i] ?? 0) : cell.padStart(widths[i] ?? 0))).join('  ')
  const body = rows.flatMap(({ figures }, i) => [line(cells[i] ?? []), `  leaves: ${leavesText(figures.leaves)}`])
  return [line(HEADS), ...body].join('\n')
}

function cellsOf(figures: ReplayFigures): readonly string[] {
  const { calls, sampledTokens, trainableTokens, wrongContexts, emittedTokens, flatTokens, distinctTokens, orphans } =
    figures
  const share = sampledTokens === 0 ? 100 : (100 * trainableTokens) / sampledTokens
  return [
    String(calls),
    String(sampledTokens),
    `${trainableTokens} (${share.toFixed(share === 100 ? 0 : 1)} %)`,
    String(wrongContexts),
    String(emittedTokens),
    String(flatTokens),
    String(distinctTokens),
    (emittedTokens / Math.max(1, distinctTokens)).toFixed(3),
    String(orphans),
  ]
}

function leavesText(leaves: ReplayFigures['leaves']): string {
  const roles = Object.entries(leaves).map(([role, fates]) => {
    const counts = Object.entries(fates).map(([fate, count]) => `${count} ${fate}`)
    return `${role} ${counts.join(', ')}`
  })
  return roles.join('; ') || 'none'
}
