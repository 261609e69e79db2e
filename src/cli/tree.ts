import { join } from 'node:path'
import type { Command } from 'commander'
import { openSqliteStore } from '../adapters/store/sqlite/sqlite-store.ts'
import { GyreError } from '../core/errors.ts'
import { executionId } from '../core/ids.ts'
import type { ExecutionRow, Store } from '../ports/store.ts'
import { printTree } from '../trajectory/print.ts'
import { ExecutionTree } from '../trajectory/tree.ts'
import type { CliContext } from './context.ts'
import { findRun, LEDGER, readRunCodec } from './run-folder.ts'

interface TreeOptions {
  readonly run?: string
  readonly runs: string
  readonly preview: string
  readonly json?: true
}

/** `gyre tree EXECUTION` */
export function registerTree(program: Command, context: CliContext): void {
  program
    .command('tree')
    .description(
      'Print the tree of one execution: who said what, in how many tokens, and why each leaf was trained or not.',
    )
    .argument('<execution>', 'id of an execution, or the unique beginning of one; gyre status --executions lists them')
    .option('--run <run>', 'name or folder of the run; the latest by default')
    .option('--runs <folder>', 'folder of run folders', 'runs')
    .option('--preview <characters>', 'longest preview of a text', '60')
    .option('--json', 'print nodes and leaves as JSON')
    .action((execution: string, options: TreeOptions) => {
      const runFolder = findRun(options.run, options.runs, context)
      const store = openSqliteStore(join(runFolder, LEDGER), { access: 'read' })
      try {
        const row = findExecution(store, execution, runFolder)
        context.print(options.json ? treeJson(store, row) : treeText(store, row, runFolder, options))
      } finally {
        store.close()
      }
    })
}

function treeText(store: Store, row: ExecutionRow, runFolder: string, options: TreeOptions): string {
  const id = row.executionId
  const codec = readRunCodec(runFolder, store.latestCheckpoint()?.folder)
  const tree = ExecutionTree.fromRecords(id, store.calls(id))
  const previewLength = Number(options.preview)
  const text = printTree(tree, store.leaves(id), {
    ...(codec === undefined ? {} : { decode: (ids: Int32Array) => codec.decode(ids) }),
    ...(Number.isFinite(previewLength) ? { previewLength } : {}),
  })
  return `${text.trimEnd()}\n${outcomeLine(row)}`
}

function outcomeLine(row: ExecutionRow): string {
  const parts = [`group ${row.groupId}, member ${row.member}, attempt ${row.attempt}: ${row.outcome ?? row.state}`]
  if (row.reward !== undefined) parts.push(`reward ${row.reward}`)
  if (row.errorCode !== undefined) parts.push(`${row.errorCode} ${row.errorMessage ?? ''}`.trim())
  return parts.join(', ')
}

function treeJson(store: Store, row: ExecutionRow): string {
  const { executionId: id } = row
  return JSON.stringify({ execution: row, calls: store.calls(id), leaves: store.leaves(id) }, plainArrays)
}

function plainArrays(_key: string, value: unknown): unknown {
  return value instanceof Int32Array || value instanceof Float32Array ? Array.from(value) : value
}

function findExecution(store: Store, text: string, runFolder: string): ExecutionRow {
  const exact = store.execution(executionId(text))
  if (exact !== undefined) return exact
  const all = store.executions()
  const close = all.filter((row) => row.executionId.startsWith(text))
  const [only] = close
  if (only !== undefined && close.length === 1) return only
  const hint =
    close.length > 1
      ? `${close.length} begin so, among them ${listed(close)}`
      : `the latest are ${listed(all) || 'none'}`
  throw new GyreError(`no execution "${text}" in ${runFolder}: ${hint}`, {
    boundary: 'config',
    code: 'E_CONFIG_EXECUTION_NOT_FOUND',
  })
}

function listed(rows: readonly ExecutionRow[]): string {
  return rows
    .slice(-6)
    .map((row) => row.executionId)
    .join(', ')
}
